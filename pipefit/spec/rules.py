"""Rules that join several sections of an experiment file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from pipefit.errors import SpecError
from pipefit.refs import dotted, parse, show, unknown
from pipefit.spec.sections import Data

if TYPE_CHECKING:
    from pipefit.spec.experiment import Spec


def broken_rules(spec: Spec) -> list[str]:
    """One line "place = value: problem" for each broken rule."""
    return [
        *_unknown_names(spec),
        *_taken_names(spec),
        *_uneven_slices(spec),
        *_bad_nested_builders(spec),
    ]


def _unknown_names(spec: Spec) -> Iterator[str]:
    yield from _unknown("data table", "train.data", spec.train.data, spec.data)
    for place, table in spec.builder_tables():
        if isinstance(table, Data) and table.archive is not None:
            yield from _unknown("archive", f"{place}.archive", table.archive, spec.archives)
    for name, validation in spec.validation.items():
        if isinstance(validation.data, str):
            place = dotted("validation", name, "data")
            yield from _unknown("data table", place, validation.data, spec.data)
    if (best := spec.save.best) and best.validation not in spec.validation:
        text = unknown("unknown validation set", best.validation, spec.validation)
        yield f"save.best.metric = {show(best.metric)}: {text}"


#: What is recorded beside a user's own metrics, in training and in validation.
_IN_TRAINING = ("step", "loss", "learning_rate")
_IN_VALIDATION = ("step", "set", "examples", "checkpoint", "seconds", "loss")


def _taken_names(spec: Spec) -> Iterator[str]:
    """Metrics named like something else that is recorded, and a best metric that is not."""
    yield from _taken(dotted("train", "metrics"), spec.train.metrics or (), _IN_TRAINING)
    for name, validation in spec.validation.items():
        place = dotted("validation", name, "metrics")
        yield from _taken(place, validation.metrics or (), _IN_VALIDATION)
    if (best := spec.save.best) and best.validation in spec.validation:
        metrics = spec.validation[best.validation].metrics
        own = metrics if metrics is not None else ("accuracy",) if spec.loss is None else ()
        known = [f"{best.validation}/{name}" for name in ("loss", *own)]
        yield from _unknown("metric", "save.best.metric", best.metric, known)


def _taken(place: str, names: Collection[str], taken: Collection[str]) -> Iterator[str]:
    for name in names:
        if name in taken:
            yield (
                f"{dotted(place, name)}: is recorded anyway under this name; choose another name "
                f"(not allowed: {', '.join(taken)})"
            )


def _unknown(what: str, place: str, name: str, allowed: Collection[str]) -> Iterator[str]:
    if name not in allowed:
        yield f"{place} = {show(name)}: {unknown(f'unknown {what}', name, allowed)}"


def _uneven_slices(spec: Spec) -> Iterator[str]:
    """`train.accumulate` must divide the batch size."""
    parts = spec.train.accumulate
    if spec.train.data not in spec.data or spec.train_data.batch_size % parts == 0:
        return
    size = spec.train_data.batch_size
    below = size // parts * parts
    sizes = f"{below} and {below + parts}" if below else f"{parts}"
    place = dotted("data", spec.train.data, "batch_size")
    yield f"train.accumulate = {parts}: must divide {place} = {size}; nearest that work: {sizes}"


def _bad_nested_builders(spec: Spec) -> Iterator[str]:
    for place, call in spec.calls():
        try:
            parse(call.builder)
        except SpecError as error:
            yield f"{place}.builder = {error}"
