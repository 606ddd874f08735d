"""Batches of an iterable of examples, which can only be read from its beginning: `Iterated`.

It continues at a position by skipping what lies before it, which costs as much as reading it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Fields, check_fields
from pipefit.errors import DataError
from pipefit.training.feeding.indexed import encoded
from pipefit.training.feeding.options import as_written
from pipefit.training.feeding.readers import Readers

logger = logging.getLogger("pipefit.run")

#: Between two lines of the log while examples are skipped.
_LOG_SECONDS = 30.0


class Skip:
    """Tells what skipping the first examples of a stream costs.

    Args:
        name: of the source.
        count: examples to skip.

    Attributes:
        over: whether all are skipped.
        progress: gives how many are skipped by now.
    """

    def __init__(self, name: str, count: int):
        self.count = count
        self.over = count == 0
        self.progress: Callable[[], int] = lambda: 0
        self._name = name

    def going_on(self, count: int) -> None:
        """So many are skipped."""
        logger.info("%s: skipped %d of %d examples", self._name, count, self.count)

    def done(self, seconds: float) -> None:
        """All are skipped."""
        self.over = True
        logger.info(
            "%s: skipped %d examples in %.1f s to continue: a stream is read from its beginning",
            *(self._name, self.count, seconds),
        )


def ended(name: str, examples: int, batch_size: int) -> DataError:
    """The error of a training whose stream is too short."""
    steps = examples // batch_size
    return DataError(
        f"{name}: ended after {examples} examples, which are {steps} steps; let it begin again at "
        f"its end (a tf.data.Dataset by .repeat()), or set train.steps = {steps}"
    )


def size_of(fields: dict[str, tf.Tensor]) -> tf.Tensor:
    """Number of examples of a batch, int64."""
    return tf.shape(next(iter(fields.values())), tf.int64)[0]


class Iterated:
    """Reads an iterable of examples, one after the other.

    Args:
        source: every `iter(source)` gives the same examples from the first on, dicts of arrays.

    Raises:
        DataError: it can be read once only, is empty, or gives something else.
    """

    #: At most one batch is read at once, and how many examples there are is not known.
    parallel = False
    length = None

    def __init__(self, source: Iterable[Mapping[str, Any]]):
        self._source = source
        self.name = type(source).__name__
        if iter(source) is source:
            raise DataError(
                f"{source!r} can be read only once; return an object whose __iter__() begins anew "
                f"every time: a class with the generator as its method __iter__"
            )
        reading = _Reading(source, Skip(self.name, 0))
        rows = reading.rows(1)
        reading.close()
        if not rows:
            raise DataError(f"{self.name} has no examples; at least one is needed")
        if not isinstance(rows[0], Mapping):
            raise DataError(
                f"{self.name}: must give dicts of arrays by field name, not "
                f"{type(rows[0]).__name__}"
            )
        self._first = {name: np.asarray(value)[None] for name, value in rows[0].items()}
        self.specs = check_fields(self._first, 1, None, self.name)

    def first(self) -> Fields:
        """The first example, arrays of shape [1, ...]."""
        return self._first

    def endless(self, threads: Readers, skip: Skip, batch_size: int) -> tf.data.Dataset:
        """Batches of exactly `batch_size` examples; the end of the stream is an error.

        Args:
            threads: read the iterable, and close it.
            skip: how many examples to leave out.
            batch_size: examples per batch.
        """
        reading = _Reading(self._source, skip)

        def full() -> list[np.ndarray[Any, Any]]:
            rows = reading.rows(batch_size)
            if len(rows) < batch_size:
                raise ended(self.name, reading.done, batch_size)
            return self._stacked(rows, reading.done)

        return self._batches(threads, full, reading, batch_size)

    def once(self, threads: Readers, batch_size: int) -> tf.data.Dataset:
        """Every example once, in order; the last batch may be smaller."""
        reading = _Reading(self._source, Skip(self.name, 0))

        def some() -> list[np.ndarray[Any, Any]]:
            return self._stacked(reading.rows(batch_size), reading.done)

        return self._batches(threads, some, reading, None).take_while(
            as_written(lambda fields: size_of(fields) > 0)
        )

    def _batches(
        self,
        threads: Readers,
        read: Callable[[], list[np.ndarray[Any, Any]]],
        reading: _Reading,
        size: int | None,
    ) -> tf.data.Dataset:
        threads.at_end.append(reading.close)

        def what() -> str:
            return f"{self.name}: reading what follows the first {reading.done} examples"

        def batch(i: tf.Tensor) -> dict[str, tf.Tensor]:
            types = [spec.dtype for spec in self.specs.values()]
            # Declared stateful, nothing would be read ahead when ops are deterministic.
            values = tf.numpy_function(
                lambda _: threads.call(read, what=what), [i], types, stateful=False
            )
            return {
                name: tf.ensure_shape(value, [size, *spec.shape])
                for (name, spec), value in zip(self.specs.items(), values, strict=True)
            }

        return tf.data.Dataset.counter().map(as_written(batch))

    def _stacked(self, rows: list[Any], done: int) -> list[np.ndarray[Any, Any]]:
        """The examples as arrays [examples, ...]; `done` is the number of the one after them."""
        if not rows:
            return [np.zeros((0, *spec.shape), spec.dtype) for spec in self.specs.values()]
        try:
            columns = {name: np.array([row[name] for row in rows]) for name in self.specs}
            check_fields(columns, len(rows), self.specs, self.name)
            if all(len(row) == len(columns) for row in rows):
                return [encoded(column) for column in columns.values()]
        except (ValueError, TypeError, KeyError, IndexError, DataError):
            pass  # it is looked for in the single examples, to tell its number
        for number, row in enumerate(rows, done - len(rows)):
            self._check(row, number)
        raise DataError(f"{self.name}: the examples before number {done} do not fit together")

    def _check(self, row: Any, number: int) -> None:
        if not isinstance(row, Mapping):
            raise DataError(
                f"{self.name}: example {number} is no dict of arrays but a {type(row).__name__}"
            )
        try:
            fields = {name: np.asarray(value)[None] for name, value in row.items()}
            check_fields(fields, 1, self.specs, self.name)
        except (ValueError, DataError) as error:
            raise DataError(f"{error} (example {number})") from error


class _Reading:
    """One reading of an iterable, from the first example on; may be closed by another thread."""

    def __init__(self, source: Iterable[Any], skip: Skip):
        self.done = 0
        self._source, self._skip = source, skip
        self._iterator: Iterator[Any] | None = None
        self._lock = threading.Lock()  # a generator that runs cannot be closed
        skip.progress = lambda: min(self.done, skip.count)

    def rows(self, count: int) -> list[Any]:
        """The next examples, fewer at the end."""
        with self._lock:
            if self._iterator is None:
                self._iterator = iter(self._source)
                self._skip_first(self._iterator)
            rows = list(itertools.islice(self._iterator, count))
        self.done += len(rows)
        return rows

    def close(self) -> None:
        """End it: of a generator, what its `finally` says is done."""
        with self._lock:
            close = getattr(self._iterator, "close", None)
            if close is not None:
                close()

    def _skip_first(self, iterator: Iterator[Any]) -> None:
        begin = told = time.monotonic()
        for _ in itertools.islice(iterator, self._skip.count):
            self.done += 1
            if time.monotonic() - told > _LOG_SECONDS:
                told = time.monotonic()
                self._skip.going_on(self.done)
        if not self._skip.over and self.done == self._skip.count:
            self._skip.done(time.monotonic() - begin)
