"""From a data source to batches of tensors, by tf.data, without any state worth saving.

The order of examples is computed in blocks (`pipefit.data.order`), so a pipeline that starts at
position p is as cheap as one that starts at 0 and nothing of the iterator is ever stored. Streams,
which can only be read from their beginning, are read from there again.

    >>> import numpy as np
    >>> from pipefit.data import Arrays
    >>> feed = Feed(Arrays(x=np.arange(10.0)), seed=1, batch_size=4)
    >>> next(feed.iterator(position=4))["x"].shape
    TensorShape([4])
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from pipefit.data import FieldSpec, Source
from pipefit.data.fields import check_declared, declared_specs
from pipefit.data.sources import indexable
from pipefit.training.feeding.augmenting import Augmentation, Batch, Change
from pipefit.training.feeding.failures import Failures
from pipefit.training.feeding.indexed import Indexed
from pipefit.training.feeding.options import options
from pipefit.training.feeding.readers import Readers
from pipefit.training.feeding.streamed import Streamed
from pipefit.training.feeding.streams import Iterated, Skip
from pipefit.training.feeding.waiting import Waiting

#: What a `[data.NAME]` table's builder may return: what can be indexed, or a stream of examples, an
#: iterable or a tf.data.Dataset.
Examples: TypeAlias = Source | Iterable[Mapping[str, Any]]

__all__ = ["Batch", "Examples", "Failures", "Feed", "Once", "validation_batches"]

_BYTES = np.dtype("S")
#: A source may use so long to end what it does, when nothing of it is wanted any more.
CLOSE_SECONDS = 2.0


class Feed:
    """The training data of one or several models: endless batches, from any position on.

    Nothing in it has to be saved. What it gives depends on the source, the seed, the batch size,
    augmentation and `overfit` alone; not on devices, readers, nor on where it was interrupted.

    Args:
        source: the examples.
        seed: of the run.
        batch_size: examples per batch; a batch may span epochs.
        readers: batches read at once, by so many threads; a stream is read by one.
        prefetch: batches kept ready.
        augment: functions f(fields, seeds) -> fields, called inside of tf.data with the tensors of
            a batch, [batch_size, ...], and an int64 tensor of seeds, [batch_size, 2].
        overfit: so many batches come again and again, without other augmentation; None: all.
        declared: dtype and shape by field, as text (see `pipefit.data.fields.declared_specs`).

    Attributes:
        source: the examples.
        batch_size: examples per batch.
        failures: what the source raised; read the iterator inside of `failures.surfacing()`.
        waiting: how long readers of the iterators had to wait.

    Raises:
        DataError: if it is no source, is empty, or gives something else than was declared.
    """

    def __init__(
        self,
        source: Examples,
        *,
        seed: int,
        batch_size: int,
        readers: int = 4,
        prefetch: int = 4,
        augment: Sequence[Change] = (),
        overfit: int | None = None,
        declared: Mapping[str, str] | None = None,
    ):
        self.source = source
        self.batch_size = batch_size
        self.failures = Failures()
        self.waiting = Waiting()
        self._seed, self._readers, self._prefetch = seed, readers, prefetch
        self._period = None if overfit is None else overfit * batch_size
        self._reading = _reading(source, declared)
        self._augmentation = (
            Augmentation(augment, _elements(self._reading.specs, batch_size)) if augment else None
        )
        self._skip = Skip("", 0)
        self._open: weakref.WeakSet[Readers] = weakref.WeakSet()

    def iterator(self, position: int) -> Iterator[Batch]:
        """A fresh tf.data iterator that continues after `position` examples.

        Its batches are dicts of tensors [batch_size, ...]. It may be dropped at any time: this
        waits for nothing, even if the source never returns.
        """
        threads = Readers(self._readers, self.failures)
        self._open.add(threads)
        batches = self._batches(threads, position)
        if self._augmentation:
            batches = self._augmentation.applied(
                batches,
                threads,
                seed=self._seed,
                position=position,
                batch_size=self.batch_size,
                period=self._period,
            )
        batches = _with_options(batches.prefetch(self._prefetch), self._reading, threads)
        return _opened(self.waiting.measured(batches), threads)

    def example(self) -> Batch:
        """The first example, augmented, as a batch of 1, to build the model with."""
        with tf.device("CPU:0"):
            fields = {name: tf.constant(v) for name, v in self._reading.first().items()}
            if self._augmentation:
                fields = self._augmentation(fields, tf.zeros([1, 2], tf.int64))
        return fields

    @property
    def skipped(self) -> int:
        """How many examples of a stream were read and left out, to get to the last position."""
        return self._skip.progress()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all iterators; generators are closed. Waits for the source no longer than said."""
        for threads in list(self._open):
            threads.close(seconds)

    def _batches(self, threads: Readers, position: int) -> tf.data.Dataset:
        size, period = self.batch_size, self._period
        if isinstance(self._reading, Indexed):
            return self._reading.endless(
                threads, seed=self._seed, position=position, batch_size=size, period=period
            )
        if period is None:
            self._skip = Skip(self._reading.name, position)
            return self._reading.endless(threads, self._skip, size)
        first = self._reading.endless(threads, Skip(self._reading.name, 0), size)
        return first.take(period // size).cache().repeat().skip(position % period // size)


class Once:
    """A validation set: every example once, in order; each iteration reads it anew.

    Its batches are dicts of tensors [examples, ...], of which the last may have fewer. Make it by
    `validation_batches`.

    Attributes:
        examples: how many there are; None: a stream tells by its end.
    """

    def __init__(
        self, reading: _Reading, batch_size: int, failures: Failures, readers: int, prefetch: int
    ):
        self._reading, self._batch_size, self._failures = reading, batch_size, failures
        self._readers, self._prefetch = readers, prefetch
        self.examples = reading.length

    def __iter__(self) -> Iterator[Batch]:
        threads = Readers(self._readers, self._failures)
        try:
            batches = self._reading.once(threads, self._batch_size).prefetch(self._prefetch)
            # By a name, so that it lives until the threads have ended.
            iterator = _opened(_with_options(batches, self._reading, threads), threads)
            yield from iterator
        finally:
            threads.close()


def validation_batches(
    source: Examples,
    batch_size: int,
    failures: Failures | None = None,
    *,
    readers: int = 4,
    prefetch: int = 4,
    declared: Mapping[str, str] | None = None,
) -> Once:
    """Every example once, in order; of streams, until they end. Nothing is augmented.

    Args:
        source: the examples.
        batch_size: examples per batch; the last one may have fewer.
        failures: keep what the source raises.
        readers: batches read at once.
        prefetch: batches kept ready.
        declared: dtype and shape by field.

    Raises:
        DataError: if it is no source, is empty, or gives something else than was declared.
    """
    reading = _reading(source, declared)
    return Once(reading, batch_size, failures or Failures(), readers, prefetch)


def _opened(batches: tf.data.Dataset, threads: Readers) -> Iterator[Batch]:
    """An iterator that can be dropped at any time."""
    iterator: Iterator[Batch] = iter(batches)
    weakref.finalize(iterator, _end, weakref.ref(iterator), threads)
    return iterator


def _end(iterator: weakref.ref[Any], threads: Readers) -> None:
    """What is done when an iterator goes, or when Python ends before it."""
    threads.close()
    left = iterator()
    if left is not None:
        # Python ends. TensorFlow would wait for ever for its threads, which wait for Python: so
        # its part of the iterator goes now.
        left._iterator_resource = None


_Reading = Indexed | Iterated | Streamed


def _reading(source: Any, declared: Mapping[str, str] | None) -> _Reading:
    reading: _Reading
    if isinstance(source, tf.data.Dataset):
        reading = Streamed(source)
    elif not indexable(source) and not isinstance(source, type) and hasattr(source, "__iter__"):
        reading = Iterated(source)
    else:
        reading = Indexed(source)
    specs = declared_specs(declared or {})
    if isinstance(reading, Streamed):  # TensorFlow's strings are both
        specs = {
            k: replace(s, dtype=_BYTES if s.dtype.kind == "U" else s.dtype)
            for k, s in specs.items()
        }
    check_declared(reading.specs, specs, reading.name)
    return reading


def _elements(specs: Mapping[str, FieldSpec], size: int) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec(
            [size, *spec.shape], tf.string if spec.dtype.kind in "SU" else spec.dtype
        )
        for name, spec in specs.items()
    }


def _with_options(batches: tf.data.Dataset, reading: _Reading, threads: Readers) -> tf.data.Dataset:
    chosen = options()
    if isinstance(reading, Indexed):
        # For them the graph is written out with all tensors in it: arrays would be copied.
        chosen.experimental_optimization.apply_default_optimizations = False
    if reading.parallel:
        # Readers wait for disks and networks: there may be more of them than cores.
        chosen.threading.private_threadpool_size = threads.count + 1
    return batches.with_options(chosen)
