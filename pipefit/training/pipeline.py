"""From a data source to batches of tensors, by tf.data, without any state worth saving.

The order of examples is computed in blocks (`pipefit.data.order`), so a pipeline that starts at
position p is as cheap as one that starts at 0 and nothing of the iterator is ever stored.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Arrays, Source, check_fields, examples, field_specs
from pipefit.errors import DataError, PipefitError, TrainingError
from pipefit.training.sharing import shared
from pipefit.training.waiting import Waiting

Batch = dict[str, tf.Tensor]

#: Indices computed per call into Python: large enough that the call costs nothing per step.
BLOCK_INDICES = 1 << 15
#: Batches read at once, and kept ready, for sources that are read through Python.
READERS = 4

#: The reason in a message of TensorFlow stands before the first node that is named.
_REASON = re.compile(
    r"^(?: *\(\d+\) [A-Z_]+: *)?(?:assertion failed: )?(.+)\n[ \t]*\[\[\{\{node", re.MULTILINE
)


class Failures:
    """What a source raised while TensorFlow was reading it.

    TensorFlow hands on an exception's text only, inside of its own: so the exception is kept here
    under a mark, and found again by the mark in TensorFlow's message.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Exception] = {}

    def keep(self, error: Exception) -> str:
        """Keep an exception; the mark to raise in its place."""
        mark = f"<source failure {id(self):x}/{len(self._kept)}>"
        self._kept[mark] = error
        return mark

    def surfacing(self) -> contextlib.AbstractContextManager[None]:
        """See `surfacing_of`."""
        return Failures.surfacing_of([self])

    @staticmethod
    @contextlib.contextmanager
    def surfacing_of(failures: Iterable[Failures]) -> Iterator[None]:
        """Inside, what TensorFlow raises for kept exceptions is raised as these exceptions.

        Its other errors become `TrainingError` with the reason, which it tells last, first.
        """
        try:
            yield
        except tf.errors.OpError as error:
            known = (item for one in failures for item in one._kept.items())
            kept = next((e for mark, e in known if mark in error.message), None)
            if kept is not None:
                raise kept from kept.__cause__
            reason = _REASON.search(error.message)
            first = reason[1] if reason else error.message.split("\n")[0]
            raise TrainingError(f"{type(error).__name__}: {first}\n{error.message}") from error


class Feed:
    """Endless batches of a source, from any position on.

    Args:
        source: the examples.
        seed: of the run.
        batch_size: examples per batch; a batch may span epochs.
        readers: batches read at once, for sources that are read through Python.
        prefetch: batches kept ready.
    """

    def __init__(
        self, source: Source, *, seed: int, batch_size: int, readers: int = 4, prefetch: int = 4
    ):
        field_specs(source)
        self.batch_size = batch_size
        self.failures = Failures()
        self.waiting = Waiting()
        self._source, self._seed = source, seed
        self._readers, self._prefetch = readers, prefetch

    def iterator(self, position: int) -> Iterator[Batch]:
        """A fresh tf.data iterator that continues after `position` examples."""
        dataset = training_batches(
            self._source,
            seed=self._seed,
            position=position,
            batch_size=self.batch_size,
            failures=self.failures,
        )
        return iter(self.waiting.measured(dataset))

    def example(self) -> Batch:
        """One example as a batch of 1, to build the model with."""
        fields = self._source.take(np.zeros(1, np.int64))
        return {name: tf.constant(value) for name, value in fields.items()}


def training_batches(
    source: Source,
    *,
    seed: int,
    position: int,
    batch_size: int,
    failures: Failures | None = None,
) -> tf.data.Dataset:
    """Endless batches of exactly `batch_size` examples, continuing at a position.

    Args:
        source: the examples.
        seed: of the run.
        position: examples consumed so far.
        batch_size: examples per batch; a batch may span epochs.
        failures: keeps what the source raises.

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
    return _read(source, blocks.unbatch(), batch_size, failures or Failures())


def validation_batches(
    source: Source, batch_size: int, failures: Failures | None = None
) -> tf.data.Dataset:
    """Every example once, in order; the last batch may be smaller."""
    every = tf.data.Dataset.range(len(source)).batch(batch_size)
    return _read(source, every, None, failures or Failures())


def _read(
    source: Source, indices: tf.data.Dataset, size: int | None, failures: Failures
) -> tf.data.Dataset:
    options = tf.data.Options()
    # Its sleeping thread can delay the end of a process by up to a minute, and it is not needed.
    options.autotune.enabled = False
    options.deterministic = True
    if type(source) is Arrays:  # a subclass may give something else than its arrays
        tensors = {name: shared(value) for name, value in source.fields.items()}
        batches = indices.map(lambda i: {name: tf.gather(t, i) for name, t in tensors.items()})
    else:
        batches = _read_in_python(source, indices, size, failures)
        # Readers wait for disks and networks: there may be more of them than cores.
        options.threading.private_threadpool_size = READERS + 1
    return batches.prefetch(READERS).with_options(options)


def _read_in_python(
    source: Source, indices: tf.data.Dataset, size: int | None, failures: Failures
) -> tf.data.Dataset:
    specs = field_specs(source)

    def take(i: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        try:
            fields = source.take(i)
            check_fields(fields, len(i), specs, type(source).__name__)
            return [np.asarray(fields[name]) for name in specs]
        except Exception as error:
            raise RuntimeError(failures.keep(_explained(error, source, i))) from error

    def batch(i: tf.Tensor) -> dict[str, tf.Tensor]:
        # Declared stateful, it would be called by one thread only when ops are deterministic.
        values = tf.numpy_function(take, [i], [s.dtype for s in specs.values()], stateful=False)
        return {
            name: tf.ensure_shape(value, [size, *spec.shape])
            for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    return indices.map(batch, num_parallel_calls=READERS, deterministic=True)


def _explained(error: Exception, source: Source, indices: np.ndarray[Any, Any]) -> Exception:
    """The error to show: ours as they are, the source's own with what was read and where."""
    if isinstance(error, PipefitError):
        return error
    which = ", ".join(map(str, indices[:3])) + (", ..." if len(indices) > 3 else "")
    # Without the frame of our own call.
    frames = error.__traceback__ and error.__traceback__.tb_next
    details = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    explained = DataError(
        f"{type(source).__name__}: take() of {len(indices)} examples ({which}) failed with "
        f"{type(error).__name__}: {error}\n{details}"
    )
    explained.__cause__ = error
    return explained
