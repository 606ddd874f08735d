"""[model] and [models.*]: what is trained, and where."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from pipefit.spec.sections.kinds import Regex
from pipefit.spec.sections.loading import Load
from pipefit.spec.sections.optimizers import Optimizer, OptimizerPart
from pipefit.spec.tables import Builder, Listed, Named
from pipefit.spec.values import FrozenDict

_DEVICE = re.compile(r"cpu:(0|[1-9]\d*)|GPU-[0-9A-Za-z-]+")
_DEVICES_RULE = (
    'must be a count (1 or more), "all", "cpu:N", or a list of GPU indices, UUIDs ("GPU-...") and '
    '"cpu:N", each once'
)


def _checked_devices(value: Any) -> int | str | tuple[int | str, ...]:
    if isinstance(value, list | tuple):
        known = [str(item).lower() for item in value]
        if value and all(map(_is_device, value)) and len(set(known)) == len(known):
            return tuple(value)
    elif isinstance(value, str):
        if value == "all" or (value.startswith("cpu:") and _DEVICE.fullmatch(value)):
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(_DEVICES_RULE)


def _is_device(item: object) -> bool:
    if isinstance(item, str):
        return bool(_DEVICE.fullmatch(item))
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


class Model(Builder):
    """[model]: what is trained.

    Attributes:
        devices: None (the first GPU, else the CPU), a count, "all", "cpu:N", or a tuple of GPU
            indices, GPU UUIDs and "cpu:N".
        trainable: only variables whose path matches are trained; None: all that are trainable.
    """

    devices: Annotated[
        int | str | tuple[int | str, ...] | None, PlainValidator(_checked_devices)
    ] = None
    trainable: Regex | None = None


class NamedModel(Model):
    """[models.NAME]: one of several models that are trained together.

    What it leaves out, it takes from the sections of the file.

    Attributes:
        data: name of a [data.*] table; None: that of `train.data`.
        loss: None: that of the section [loss].
        optimizer: None: `optimizers`, or else those of the file.
        optimizers: as the section of this name.
        load: None: as the section of this name; an empty list: nothing is loaded.
    """

    data: str | None = None
    loss: Builder | None = None
    optimizer: Optimizer | None = None
    optimizers: Named[OptimizerPart] = Field(default_factory=FrozenDict)
    load: Listed[Load] | None = None
