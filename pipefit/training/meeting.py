"""What the devices of a model have in common: where they meet, and what must be equal on all.

The devices can only meet, to sum statistics or gradients, if all of them come. So a device that
got no example of a small batch computes one of another device's, as a stand-in that counts for
nothing: see `stand_in`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
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
    context = tf.distribute.get_replica_context()
    merge_call = context.merge_call  # under every exchange

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _here.meeting:
            raise SpecError(
                "model.devices: this layer exchanges values between the devices (all_reduce, "
                "all_gather, or a variable with an aggregation), so every device needs an example, "
                "but a batch, or a slice of it, has fewer; use fewer devices or a larger batch"
            )
        return merge_call(*args, **kwargs)

    context.merge_call = guarded
    _here.stand_in = True
    try:
        yield
    finally:
        _here.stand_in = False
        del context.merge_call


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
