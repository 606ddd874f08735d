"""The builder tables of an experiment, with the places where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pipefit.refs import dotted
from pipefit.spec.sections import Data, NamedModel, Optimizer, Train, ValidationSet
from pipefit.spec.tables import Builder

if TYPE_CHECKING:
    from pipefit.spec.experiment import Spec

Placed = Iterator[tuple[str, Builder]]


def builder_tables(spec: Spec) -> Placed:
    """Every builder table with its dotted place, those inside arguments apart."""
    for name, data in spec.data.items():
        yield from _of_data(dotted("data", name), data)
    if spec.model:
        yield "model", spec.model
    for name, model in spec.models.items():
        yield from _of_named_model(dotted("models", name), model)
    if spec.loss:
        yield "loss", spec.loss
    yield from _of_optimizers("", spec.optimizer, spec.optimizers)
    yield from _of_recording("train", spec.train)
    for name, validation in spec.validation.items():
        place = dotted("validation", name)
        if isinstance(validation.data, Data):
            yield from _of_data(dotted(place, "data"), validation.data)
        yield from _of_recording(place, validation)


def _of_data(place: str, data: Data) -> Placed:
    yield place, data
    for index, table in enumerate(data.augment):
        yield f"{dotted(place, 'augment')}[{index}]", table


def _of_named_model(place: str, model: NamedModel) -> Placed:
    yield place, model
    if model.loss:
        yield dotted(place, "loss"), model.loss
    yield from _of_optimizers(place, model.optimizer, model.optimizers)


def _of_optimizers(place: str, one: Optimizer | None, parts: Mapping[str, Optimizer]) -> Placed:
    tables = {dotted(place, "optimizers", name): part for name, part in parts.items()}
    if one:
        tables[dotted(place, "optimizer")] = one
    for where, table in tables.items():
        yield where, table
        for index, group in enumerate(table.groups):
            if isinstance(group.learning_rate, Builder):
                yield f"{dotted(where, 'groups')}[{index}].learning_rate", group.learning_rate


def _of_recording(place: str, section: Train | ValidationSet) -> Placed:
    for name, table in (section.metrics or {}).items():
        yield dotted(place, "metrics", name), table
    for name, table in section.targets.items():
        yield dotted(place, "targets", name), table
    if section.loop:
        yield dotted(place, "loop"), section.loop
