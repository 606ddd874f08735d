"""From a data source to batches of tensors, by tf.data, without any state worth saving.

The order of examples is computed in blocks (`pipefit.data.order`), so a pipeline that starts at
position p is as cheap as one that starts at 0 and nothing of the iterator is ever stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Arrays, FieldSpec, Source, check_fields, examples, field_specs

#: Indices computed per call into Python: large enough that the call costs nothing per step.
BLOCK_INDICES = 1 << 15
#: Batches read at once, and kept ready, for sources that are read through Python.
READERS = 4


def training_batches(
    source: Source, *, seed: int, position: int, batch_size: int
) -> tf.data.Dataset:
    """Endless batches of exactly `batch_size` examples, continuing at a position.

    Args:
        source: the examples.
        seed: of the run.
        position: examples consumed so far.
        batch_size: examples per batch; a batch may span epochs.

    Returns:
        Dataset of dicts of tensors of shape [batch_size, ...].
    """
    per_block = max(1, BLOCK_INDICES // batch_size)
    n = len(source)

    def block(i: Any) -> np.ndarray[Any, Any]:
        start = position + int(i) * per_block * batch_size
        order = examples(seed=seed, start=start, count=per_block * batch_size, n=n)
        return order.reshape(per_block, batch_size)

    def indices(i: tf.Tensor) -> tf.Tensor:
        out = tf.numpy_function(block, [i], tf.int64, stateful=False)
        return tf.ensure_shape(out, [per_block, batch_size])

    blocks = tf.data.Dataset.counter().map(indices).prefetch(1)
    return _read(source, blocks.unbatch(), batch_size)


def validation_batches(source: Source, batch_size: int) -> tf.data.Dataset:
    """Every example once, in order; the last batch may be smaller."""
    every = tf.data.Dataset.range(len(source)).batch(batch_size)
    return _read(source, every, None)


def _read(source: Source, indices: tf.data.Dataset, size: int | None) -> tf.data.Dataset:
    specs = field_specs(source)
    if isinstance(source, Arrays):
        with tf.device("CPU:0"):
            tensors = {name: tf.constant(value) for name, value in source.fields.items()}
        batches = indices.map(lambda i: {name: tf.gather(t, i) for name, t in tensors.items()})
    else:
        batches = indices.map(
            lambda i: _take(source, specs, i, size), num_parallel_calls=READERS, deterministic=True
        )
    options = tf.data.Options()
    # Its sleeping thread can delay the end of a process by up to a minute, and it is not needed.
    options.autotune.enabled = False
    options.deterministic = True
    return batches.prefetch(READERS).with_options(options)


def _take(
    source: Source, specs: dict[str, FieldSpec], indices: tf.Tensor, size: int | None
) -> dict[str, tf.Tensor]:
    names = list(specs)

    def take(i: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        fields = source.take(i)
        check_fields(fields, len(i), specs, repr(source))
        return [np.asarray(fields[name]) for name in names]

    values = tf.numpy_function(take, [indices], [specs[name].dtype for name in names])
    return {
        name: tf.ensure_shape(value, [size, *specs[name].shape])
        for name, value in zip(names, values, strict=True)
    }
