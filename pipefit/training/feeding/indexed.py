"""Batches of sources that give any example by its index. See `Indexed`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Arrays, Fields, Source, check_fields, field_specs
from pipefit.data.order import Indices
from pipefit.data.sources import order_of
from pipefit.errors import DataError
from pipefit.training.feeding.numbers import per_batch, repeated
from pipefit.training.feeding.options import as_written
from pipefit.training.feeding.readers import Readers
from pipefit.training.feeding.sharing import shared

#: Bytes of arrays that TensorFlow does not read itself: it is faster by some 0.1 ms per batch, but
#: with deterministic ops it copies them whenever an iterator is made, and drops the copy.
LARGE = 1 << 30


class Indexed:
    """Reads a source in the order of a seed, from any position at the same cost.

    Arrays in memory are read by TensorFlow, unless they are large, everything else by calling
    `take` in threads.

    Args:
        source: the examples.

    Raises:
        DataError: if it is no source, is empty, or gives something that is not arrays.
    """

    def __init__(self, source: Source):
        self.specs = field_specs(source)
        self.length = len(source)
        self._source = source
        self.name = type(source).__name__
        self._tensors: dict[str, tf.Tensor] | None = None
        # A subclass may give something else than its arrays.
        if type(source) is Arrays and _size(source) < LARGE:
            self._tensors = {name: shared(value) for name, value in source.fields.items()}
        #: Whether more than one batch may be read at once.
        self.parallel = self._tensors is None

    def first(self) -> Fields:
        """The first example, arrays of shape [1, ...]."""
        return self._source.take(np.zeros(1, np.int64))

    def endless(
        self, threads: Readers, *, seed: int, position: int, batch_size: int, period: int | None
    ) -> tf.data.Dataset:
        """Batches of exactly `batch_size` examples, continuing at a position.

        Args:
            threads: call the source.
            seed: of the order.
            position: examples consumed so far.
            batch_size: examples per batch.
            period: examples after which the first ones come again; None: never.
        """
        indices = per_batch(
            repeated(lambda start, count: self._order(seed, start, count), period),
            position=position,
            batch_size=batch_size,
            threads=threads,
            what=f"{self.name}: order()",
        )
        return self._read(threads, indices, batch_size)

    def once(self, threads: Readers, batch_size: int) -> tf.data.Dataset:
        """Every example once, in order; the last batch may be smaller."""
        every = tf.data.Dataset.range(self.length).batch(batch_size)
        return self._read(threads, every, None)

    def _order(self, seed: int, start: int, count: int) -> Indices:
        order = np.asarray(order_of(self._source, seed=seed, start=start, count=count))
        if order.dtype.kind not in "iu" or order.shape != (count,):
            raise DataError(
                f"{self.name}: order() of {count} positions must return {count} integers, not "
                f"{order.dtype}{list(order.shape)}"
            )
        if count and (order.min() < 0 or order.max() >= self.length):
            raise DataError(
                f"{self.name}: order() must return indices from 0 to {self.length - 1}, not "
                f"{order.min()} to {order.max()}"
            )
        return order.astype(np.int64, copy=False)

    def _read(
        self, threads: Readers, indices: tf.data.Dataset, size: int | None
    ) -> tf.data.Dataset:
        if self._tensors is not None:
            tensors = self._tensors
            return indices.map(
                as_written(lambda i: {name: tf.gather(t, i) for name, t in tensors.items()})
            )

        def take(i: np.ndarray[Any, Any]) -> Any:
            return threads.call(self._take, i, what=self._taking)

        def batch(i: tf.Tensor) -> dict[str, tf.Tensor]:
            # Declared stateful, it would be called by one thread only when ops are deterministic.
            types = [spec.dtype for spec in self.specs.values()]
            values = tf.numpy_function(take, [i], types, stateful=False)
            return {
                name: tf.ensure_shape(value, [size, *spec.shape])
                for (name, spec), value in zip(self.specs.items(), values, strict=True)
            }

        return indices.map(as_written(batch), num_parallel_calls=threads.count, deterministic=True)

    def _take(self, indices: Indices) -> list[np.ndarray[Any, Any]]:
        fields = self._source.take(indices)
        check_fields(fields, len(indices), self.specs, self.name)
        return [encoded(np.asarray(fields[name])) for name in self.specs]

    def _taking(self, indices: Indices) -> str:
        which = ", ".join(map(str, indices[:3])) + (", ..." if len(indices) > 3 else "")
        return f"{self.name}: take() of {len(indices)} examples ({which})"


def _size(source: Arrays) -> int:
    return sum(value.nbytes for value in source.fields.values())


def encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as TensorFlow takes it from a Python function: of texts their UTF-8."""
    return np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
