"""Numbers for every batch, computed by NumPy in blocks: indices of examples, seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data.order import Indices
from pipefit.training.feeding.options import as_written
from pipefit.training.feeding.readers import Readers

#: Positions per call into Python: so many that the call costs nothing per step.
BLOCK = 1 << 15

#: (start, count) -> int64 [count, ...]: something about the positions start, start + 1, ...
OfPositions = Callable[[int, int], Indices]


def per_batch(
    function: OfPositions,
    *,
    position: int,
    batch_size: int,
    threads: Readers,
    what: str,
    shape: tuple[int, ...] = (),
) -> tf.data.Dataset:
    """For every batch from a position on what a function says of its positions.

    Args:
        function: gives int64 [count, *shape].
        position: of the first example.
        batch_size: examples per batch.
        threads: call the function.
        what: is tried, for messages of failures.
        shape: of what it gives for one position.

    Returns:
        Endless dataset of int64 [batch_size, *shape].
    """
    batches = max(1, BLOCK // batch_size)
    whole = [batches, batch_size, *shape]

    def block(i: Any) -> Indices:
        count = batches * batch_size
        start = position + int(i) * count
        numbers: Indices = threads.call(function, start, count, what=lambda *_: what)
        return numbers.reshape(whole)

    def numbers(i: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(block, [i], tf.int64, stateful=False), whole)

    return tf.data.Dataset.counter().map(as_written(numbers)).prefetch(1).unbatch()


def repeated(function: OfPositions, period: int | None) -> OfPositions:
    """The function as if the first `period` positions came again and again; None: as it is."""
    if period is None:
        return function

    def again(start: int, count: int) -> Indices:
        if period <= count:
            return function(0, period)[np.arange(start, start + count) % period]
        first = start % period
        rest = max(0, first + count - period)
        return np.concatenate([function(first, count - rest), function(0, rest)])

    return again
