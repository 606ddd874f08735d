"""Batches of a tf.data.Dataset of examples: see `Streamed`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Fields, FieldSpec
from pipefit.errors import DataError
from pipefit.training.feeding.failures import reason_of
from pipefit.training.feeding.options import as_written, options
from pipefit.training.feeding.readers import Readers
from pipefit.training.feeding.streams import Skip, ended
from pipefit.training.feeding.waiting import Waiting

logger = logging.getLogger("pipefit.run")

#: Between two looks whether skipping is over.
_LOOK_SECONDS = 0.1


class Streamed:
    """Reads a tf.data.Dataset of examples; all of it stays inside of TensorFlow.

    Args:
        source: gives examples, dicts of tensors of known shapes.

    Raises:
        DataError: it gives batches, something nested, or nothing.
    """

    #: At most one batch is read at once, and how many examples there are is not known.
    parallel = False
    length = None

    def __init__(self, source: tf.data.Dataset):
        self._source = source
        self.name = f"tf.data.Dataset ({type(source).__name__.strip('_')})"
        self.specs = self._field_specs()
        self._refuse_batches()
        self._first = self._read_first()

    def first(self) -> Fields:
        """The first example, arrays of shape [1, ...]."""
        return self._first

    def endless(self, threads: Readers, skip: Skip, batch_size: int) -> tf.data.Dataset:
        """Batches of exactly `batch_size` examples; the end of the stream is an error.

        Args:
            threads: tell of the skipping and of the end.
            skip: how many examples to leave out.
            batch_size: examples per batch.
        """
        if any(getattr(d, "_reshuffle_each_iteration", False) for d in _origins(self._source)):
            logger.warning(
                "%s: shuffle() gives another order whenever it is read again in one process, so "
                "the run may not continue exactly; give every epoch a seed of its own: "
                "tf.data.Dataset.counter().flat_map(lambda epoch: "
                "rows.shuffle(SIZE, seed=epoch, reshuffle_each_iteration=False))",
                self.name,
            )
        counter = Waiting()  # of batches, those that are skipped too
        whole, rest = divmod(skip.count, batch_size)
        batches = self._source.skip(rest).batch(batch_size, drop_remainder=True)
        batches = counter.measured(batches).skip(whole)
        if not skip.over:
            skip.progress = lambda: min(rest + counter.count() * batch_size, skip.count)
            tell = (skip, lambda: counter.count() > whole, counter, threads)
            threading.Thread(target=_tell, args=tell, daemon=True).start()

        def end() -> Any:
            raise ended(self.name, rest + counter.count() * batch_size, batch_size)

        def ending(i: tf.Tensor) -> dict[str, tf.Tensor]:
            specs = batches.element_spec
            types = [spec.dtype for spec in specs.values()]
            # Beside a stateful function nothing is read ahead when ops are deterministic.
            values = tf.numpy_function(
                lambda _: threads.call(end, what=lambda: self.name), [i], types, stateful=False
            )
            return {
                name: tf.ensure_shape(value, spec.shape)
                for (name, spec), value in zip(specs.items(), values, strict=True)
            }

        # Nothing is called per batch: that would cost more than small models do.
        return batches.concatenate(tf.data.Dataset.range(1).map(as_written(ending)))

    def once(self, _: Readers, batch_size: int) -> tf.data.Dataset:
        """Every example once, in order; the last batch may be smaller.

        Raises:
            DataError: if it never ends.
        """
        if self._source.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                f"{self.name}: never ends, so it cannot be read once, to validate on; leave "
                f".repeat() out"
            )
        return self._source.batch(batch_size)

    def _field_specs(self) -> dict[str, FieldSpec]:
        elements = self._source.element_spec
        if not isinstance(elements, Mapping):
            raise DataError(
                f"{self.name}: must give dicts of tensors by field name, not {elements}; name "
                f'them: .map(lambda x, y: {{"images": x, "labels": y}})'
            )
        found = {}
        for name, spec in elements.items():
            if type(spec) is not tf.TensorSpec or not isinstance(name, str):
                raise DataError(
                    f"{self.name}: field {name!r} is {spec}; every field must be one dense tensor "
                    f"with a name: take nested dicts apart, and pad ragged or sparse tensors, by "
                    f".map()"
                )
            if not spec.shape.is_fully_defined():
                raise DataError(
                    f"{self.name}: field {name!r} has the shape {spec.shape}; all examples must "
                    f"have one known shape: say it by tf.ensure_shape, and leave .batch() out"
                )
            dtype = np.dtype("S") if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
            found[name] = FieldSpec(tuple(spec.shape), np.dtype(dtype))
        return found

    def _refuse_batches(self) -> None:
        """A batch of examples cannot be told from an example by its shape; by its origin it can."""
        for kind in (type(origin).__name__ for origin in _origins(self._source)):
            if "Unbatch" in kind or "FlatMap" in kind or "Interleave" in kind:
                return
            if "Batch" in kind:
                raise DataError(
                    f"{self.name}: gives batches; leave .batch() out (or add .unbatch()): "
                    f"data.NAME.batch_size is what makes batches"
                )

    def _read_first(self) -> Fields:
        try:
            for example in self._source.batch(1).take(1).with_options(options()):
                return {name: value.numpy() for name, value in example.items()}
        except tf.errors.OpError as error:
            raise DataError(
                f"{self.name}: cannot be read: {reason_of(error)}\n{error.message}"
            ) from error
        raise DataError(f"{self.name} has no examples; at least one is needed")


def _tell(skip: Skip, over: Callable[[], bool], counter: Waiting, threads: Readers) -> None:
    """Say when the first batch has come, and how long it took."""
    while not threads.closed.wait(_LOOK_SECONDS):
        if over():
            skip.done(counter.seconds())
            return


def _origins(dataset: Any) -> Iterator[Any]:
    """A dataset, what it was made of, what that was made of, and so on."""
    while dataset is not None:
        yield dataset
        inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
        dataset = inputs[0] if len(inputs) == 1 else None
