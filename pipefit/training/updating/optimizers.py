"""From the tables of optimizers in an experiment file to what does the updates."""

from __future__ import annotations

from typing import Any

import keras

from pipefit import refs
from pipefit.spec import Builder, Optimizer
from pipefit.training.updating.gradients import Clip
from pipefit.training.updating.rates import Group
from pipefit.training.updating.updates import Part


def built_rate(rate: float | Builder | None, where: str) -> Any:
    """The learning rate at a dotted key: a number, a schedule, or None."""
    return refs.build(rate.call, where) if isinstance(rate, Builder) else rate


def built_optimizer(table: Optimizer, rate: Any, where: str) -> keras.optimizers.Optimizer:
    """The optimizer of a table; `rate` is its learning rate, None: its own default."""
    extra = {} if rate is None else {"learning_rate": rate}
    call = refs.Call(table.builder, table.arguments)
    built: keras.optimizers.Optimizer = refs.build(call, where, **extra)
    return built


def part_of(name: str, optimizer: keras.optimizers.Optimizer, table: Optimizer) -> Part:
    """An optimizer with all that its table says; `name` is that of [optimizers.NAME], or ""."""
    where = f"optimizers.{name}" if name else "optimizer"
    groups = [
        Group(
            match=group.match,
            scale=1.0 if group.scale is None else group.scale,
            learning_rate=built_rate(group.learning_rate, f"{where}.groups[{i}].learning_rate"),
        )
        for i, group in enumerate(table.groups)
    ]
    return Part(
        optimizer=optimizer,
        name=name,
        match=getattr(table, "match", None),
        clip=Clip(**table.clip.table()) if table.clip else None,
        groups=tuple(groups),
        weight_decay_on=table.weight_decay_on,
    )
