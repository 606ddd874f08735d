"""Rules that join several sections of an experiment file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipefit.errors import SpecError
from pipefit.records import TIMING, check_run_name
from pipefit.refs import dotted, parse, show, unknown
from pipefit.spec.runs import run_name
from pipefit.spec.secrets import told
from pipefit.spec.sections import (
    Data,
    FromArchive,
    FromFile,
    FromRun,
    MetricRule,
    Train,
    ValidationSet,
)
from pipefit.spec.tables import Builder, Table

if TYPE_CHECKING:
    from pipefit.spec.experiment import Spec


def broken_rules(spec: Spec) -> list[str]:
    """One line "place = value: problem" for each broken rule."""
    return [
        *_either_or(spec),
        *_long_names(spec),
        *_unknown_names(spec),
        *_taken_names(spec),
        *_unknown_metrics(spec),
        *_uneven_slices(spec),
        *_without_effect(spec),
        *_bad_nested_builders(spec),
        *_secrets(spec),
        *_bad_loads(spec),
    ]


class _Member(NamedTuple):
    """What the rules ask of one model: where its data are named, the data, the loss."""

    place: str
    data: str
    loss: Builder | None


def _members(spec: Spec) -> list[_Member]:
    members = [
        _Member(dotted("models", name, "data"), model.data, model.loss or spec.loss)
        if model.data
        else _Member("train.data", spec.train.data, model.loss or spec.loss)
        for name, model in spec.models.items()
    ]
    return members or [_Member("train.data", spec.train.data, spec.loss)]


# ---- what excludes each other ----


def _either_or(spec: Spec) -> Iterator[str]:
    yield from _one_of("", "model", spec.model, spec.models, required=True)
    common = bool(spec.optimizer or spec.optimizers)
    yield from _one_of("", "optimizer", spec.optimizer, spec.optimizers, required=not spec.models)
    for name, model in spec.models.items():
        place = dotted("models", name)
        one, several = model.optimizer, model.optimizers
        yield from _one_of(place, "optimizer", one, several, required=not common)


def _one_of(
    place: str, key: str, one: Table | None, several: Mapping[str, Table], *, required: bool
) -> Iterator[str]:
    here, there = dotted(place, key), dotted(place, f"{key}s")
    if one and several:
        names = ", ".join(dotted(there, name) for name in several)
        yield f"{here}: is there together with {names}; leave out [{here}] or [{there}.*]"
    elif not one and not several and required:
        yield f"{here}: is required (or several tables [{there}.NAME])"


# ---- names ----


def _long_names(spec: Spec) -> Iterator[str]:
    for name in spec.models:
        try:
            check_run_name(run_name(spec.name, name))
        except ValueError as error:
            yield f"{dotted('models', name)}: {error}; its run is called like this"


def _unknown_names(spec: Spec) -> Iterator[str]:
    used = {member.place: member.data for member in _members(spec)}
    for place, data in {"train.data": spec.train.data, **used}.items():
        yield from _unknown("data table", place, data, spec.data)
    for place, table in spec.builder_tables():
        if isinstance(table, Data):
            for where, archive in table.archives(place):
                yield from _unknown("archive", where, archive, spec.archives)
    for name, validation in spec.validation.items():
        if isinstance(validation.data, str):
            place = dotted("validation", name, "data")
            yield from _unknown("data table", place, validation.data, spec.data)


def _unknown(what: str, place: str, name: str, allowed: Collection[str]) -> Iterator[str]:
    if name not in allowed:
        yield f"{place} = {show(name)}: {unknown(f'unknown {what}', name, allowed)}"


#: What is recorded beside a user's own metrics, in training and in validation.
_IN_TRAINING = ("step", "loss", "learning_rate", "gradient_norm", "update_norm", *sorted(TIMING))
_IN_VALIDATION = ("step", "set", "examples", "checkpoint", "seconds", "loss")


def _taken_names(spec: Spec) -> Iterator[str]:
    """Metrics and targets named like something else that is recorded."""
    yield from _taken("train", spec.train, _IN_TRAINING)
    for name, validation in spec.validation.items():
        yield from _taken(dotted("validation", name), validation, _IN_VALIDATION)


def _taken(place: str, section: Train | ValidationSet, taken: Collection[str]) -> Iterator[str]:
    metrics = section.metrics or {}
    for key, names in (("metrics", metrics), ("targets", section.targets)):
        for name in names:
            if name in taken:
                yield (
                    f"{dotted(place, key, name)}: is recorded anyway under this name; choose "
                    f"another name (not allowed: {', '.join(taken)})"
                )
    for name in section.targets:
        if name in metrics:
            yield f"{dotted(place, 'targets', name)}: is a metric as well; choose another name"


def _unknown_metrics(spec: Spec) -> Iterator[str]:
    """Metrics that decide something, but are not validated for every model."""
    for place, rule in _metric_rules(spec).items():
        if rule.validation not in spec.validation:
            text = unknown("unknown validation set", rule.validation, spec.validation)
            yield f"{place} = {show(rule.metric)}: {text}"
            continue
        if _may_be_other(spec, rule):
            continue
        metrics = spec.validation[rule.validation].metrics
        by_default = all(member.loss is None for member in _members(spec))
        own = metrics if metrics is not None else ("accuracy",) if by_default else ()
        known = [f"{rule.validation}/{name}" for name in ("loss", *own)]
        yield from _unknown("metric", place, rule.metric, known)


def _may_be_other(spec: Spec, rule: MetricRule) -> bool:
    """Whether it may be a value of a target, or one of a class's; only the worker knows them."""
    target, slash, _ = rule.metric.removeprefix(f"{rule.validation}/").partition("/")
    known = target in spec.validation[rule.validation].targets
    return bool(slash) and (known or spec.experiment is not None)


def _metric_rules(spec: Spec) -> dict[str, MetricRule]:
    rules = {"save.best.metric": spec.save.best, "train.early_stop.metric": spec.train.early_stop}
    return {place: rule for place, rule in rules.items() if rule}


# ---- numbers that must fit ----


def _uneven_slices(spec: Spec) -> Iterator[str]:
    """`train.accumulate` must divide the batch size of every model's data."""
    parts = spec.train.accumulate
    for name in dict.fromkeys(member.data for member in _members(spec)):
        if name not in spec.data or spec.data[name].batch_size % parts == 0:
            continue
        size = spec.data[name].batch_size
        below = size // parts * parts
        sizes = f"{below} and {below + parts}" if below else f"{parts}"
        place = f"{dotted('data', name, 'batch_size')} = {size}"
        yield f"train.accumulate = {parts}: must divide {place}; nearest that work: {sizes}"


def _without_effect(spec: Spec) -> Iterator[str]:
    """Keys that mean something only beside others, or elsewhere."""
    for name, validation in spec.validation.items():
        if isinstance(validation.data, Data) and validation.data.augment:
            place = dotted("validation", name, "data", "augment")
            yield f"{place}: only training data are augmented; leave it out"
        if validation.averaged and spec.train.average is None:
            place = dotted("validation", name, "averaged")
            yield f"{place} = true: needs train.average, such as 0.999"
    if spec.train.early_stop and not spec.save.validate_every:
        yield "save.validate_every = 0: train.early_stop needs validations; set it to 1 or more"


def _bad_nested_builders(spec: Spec) -> Iterator[str]:
    for place, call in spec.calls():
        try:
            parse(call.builder)
        except SpecError as error:
            yield f"{place}.builder = {error}"


def _secrets(spec: Spec) -> Iterator[str]:
    for place in told(spec.table()):
        yield (
            f"{place}: a password, token or key is no part of an experiment, which is stored and "
            "shown: let the builder read it from an environment variable, such as "
            'os.environ["..."], and leave it out here'
        )


def _bad_loads(spec: Spec) -> Iterator[str]:
    """Sources of weights that are not there, or are the run itself."""
    runs = [("load", spec.name, spec.load)] if spec.load or not spec.models else []
    for name, model in spec.models.items():
        place, own = ("load", spec.load) if model.load is None else ("", model.load)
        place = place or dotted("models", name, "load")
        runs.append((place, run_name(spec.name, name), own))
    for place, run, loads in runs:
        for index, table in enumerate(loads):
            yield from _bad_source(spec, f"{place}[{index}].from", table.source, run)


def _bad_source(spec: Spec, place: str, source: Table, run: str) -> Iterator[str]:
    match source:
        case FromArchive():
            yield from _unknown("archive", f"{place}.archive", source.archive, spec.archives)
        case FromFile() if "://" in source.path and source.sha256 is None:
            yield f"{place}.path = {show(source.path)}: an address needs sha256 beside it"
        case FromRun(name=name, database=None) if name == run:
            if source.collection in (None, spec.collection):
                told = "a run cannot be loaded into itself; give one of them another name"
                yield f"{place}.name = {show(name)}: {told}"
