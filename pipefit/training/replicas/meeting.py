"""What the devices of a model have in common: where they meet, and what must be equal on all.

The devices can only meet, to sum statistics or gradients, if all of them come. So a device that
got no example of a small batch computes one of another device's, as a stand-in that counts for
nothing: see `stand_in`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.errors import SpecError, TrainingError


class _Here(threading.local):
    """Every device is traced in a thread of its own."""

    stand_in = False
    meeting = False


_here = _Here()


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """Inside, this device computes an example that counts for nothing in `sum_over_devices`.

    Raises:
        SpecError: inside, if a layer exchanges values with the other devices in another way.
    """
    _here.stand_in = True
    try:
        with _refusing(
            "model.devices: this layer exchanges values between the devices (all_reduce, "
            "all_gather, or a variable with an aggregation), so every device needs an example, "
            "but a batch, or a slice of it, has fewer; use fewer devices or a larger batch"
        ):
            yield
    finally:
        _here.stand_in = False


def without_meeting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function to be compiled by XLA for one of several devices.

    Raises:
        SpecError: when it is called, if a layer exchanges values with the other devices.
    """

    def call(*args: Any) -> Any:
        with _refusing(
            "train.jit_compile = true: this layer exchanges values between the devices "
            "(all_reduce, all_gather, or a variable with an aggregation), which XLA cannot amid a "
            "pass; leave it out or set model.devices = 1"
        ):
            return function(*args)

    return call


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Inside, every exchange between the devices but `sum_over_devices` raises SpecError."""
    context = tf.distribute.get_replica_context()
    names = ("merge_call", "all_reduce", "all_gather")  # on CPUs all are merge_call in the end

    def guarded(exchange: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _here.meeting:
                raise SpecError(reason)
            return exchange(*args, **kwargs)

        return call

    before = {name: vars(context)[name] for name in names if name in vars(context)}
    for name in names:
        setattr(context, name, guarded(getattr(context, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(context, name)
        vars(context).update(before)


def sum_over_devices(value: tf.Tensor) -> tf.Tensor:
    """On every device the sum of all devices' values; the gradient is summed likewise."""
    if _here.stand_in:
        value *= 0  # not a constant, so that the devices also meet on the gradient's way back
    _here.meeting = True
    try:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    finally:
        _here.meeting = False


def refuse_unweighted(model: keras.Model, sizes: Sequence[int]) -> None:
    """Check that no variable takes a mean over devices which have different numbers of examples.

    Args:
        model: built.
        sizes: how many examples of a batch, or of a slice of it, each device gets.

    Raises:
        SpecError: naming the variable.
    """
    for variable in model.non_trainable_variables:
        if variable.aggregation == "mean" and len(set(sizes)) > 1:
            raise SpecError(
                f"model.devices: {len(sizes)} devices get {', '.join(map(str, sizes))} examples, "
                f"but the variable {variable.path!r} has aggregation='mean', which counts every "
                f"device alike; choose a batch that divides evenly, or let the layer sum over the "
                f"devices by tf.distribute.get_replica_context().all_reduce"
            )


def refuse_different(model: keras.Model) -> None:
    """Check that variables which layers set by themselves are the same on all devices.

    Raises:
        TrainingError: naming the first that is not: only one of its copies would be saved.
    """
    for variable in model.non_trainable_variables:
        copies = [copy.numpy() for copy in getattr(variable.value, "values", ())]
        if any(not np.array_equal(copy, copies[0], equal_nan=True) for copy in copies[1:]):
            raise TrainingError(
                f"model: the variable {variable.path!r} differs between the devices: its layer "
                f"computes it from each device's slice of the batch alone; let the layer sum over "
                f"the devices by tf.distribute.get_replica_context().all_reduce, or use one device"
            )
