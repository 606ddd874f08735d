"""Random changes to the examples of every batch, the same in every attempt. See `Augmentation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipefit.data.order import augmentation_seeds
from pipefit.errors import DataError, TrainingError
from pipefit.training.feeding.numbers import per_batch, repeated
from pipefit.training.feeding.options import as_written
from pipefit.training.feeding.readers import Readers
from pipefit.training.state import unsaved_random

Batch = dict[str, tf.Tensor]
#: f(fields, seeds int64 [batch, 2]) -> fields
Change = Callable[[Batch, tf.Tensor], Mapping[str, tf.Tensor]]

#: What a function writes with to a variable; a change would be lost with the process.
_WRITES = frozenset(["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"])


class Augmentation:
    """Functions that change batches, one after the other, inside of tf.data.

    Each gets seeds of its own, which are pure functions of the run's seed and of the positions of
    the examples: the same after a resume, and whatever the number of devices and readers.

    Args:
        changes: the functions.
        elements: shapes and dtypes of a batch before them.

    Raises:
        DataError: if one does not return a dict of tensors [batch, ...] of known shapes.
        TrainingError: if one draws random numbers whose state cannot be saved.
    """

    def __init__(self, changes: Sequence[Change], elements: Mapping[str, tf.TensorSpec]):
        self._changes = list(changes)
        size = next(iter(elements.values())).shape[0]
        specs = dict(elements)
        for i, change in enumerate(self._changes):
            specs = _checked(change, i, specs, size)

    def __call__(self, fields: Batch, seeds: tf.Tensor) -> Batch:
        """The changed batch.

        Args:
            fields: tensors [batch, ...].
            seeds: int64 tensor [batch, 2].
        """
        for i, change in enumerate(self._changes):
            fields = dict(change(fields, seeds + tf.constant([0, i], tf.int64)))
        return fields

    def applied(
        self,
        batches: tf.data.Dataset,
        threads: Readers,
        *,
        seed: int,
        position: int,
        batch_size: int,
        period: int | None,
    ) -> tf.data.Dataset:
        """The changed batches of a training, from a position on; as many at once as readers."""
        seeds = per_batch(
            repeated(lambda start, count: _seeds(seed, start, count), period),
            position=position,
            batch_size=batch_size,
            threads=threads,
            what="seeds",
            shape=(2,),
        )
        both = tf.data.Dataset.zip((batches, seeds))
        return both.map(as_written(self), num_parallel_calls=threads.count, deterministic=True)


def _seeds(seed: int, start: int, count: int) -> Any:
    return augmentation_seeds(seed=seed, start=start, count=count)


def _checked(
    change: Change, i: int, specs: Mapping[str, tf.TensorSpec], size: int
) -> dict[str, tf.TensorSpec]:
    """Trace a change and check what it does; shapes and dtypes of what it returns."""
    where = f"augment[{i}] ({getattr(change, '__qualname__', type(change).__name__)})"
    traced = tf.function(change, autograph=False).get_concrete_function(
        dict(specs), tf.TensorSpec([size, 2], tf.int64)
    )
    returned = traced.structured_outputs
    if not isinstance(returned, Mapping) or not returned:
        raise DataError(f"{where}: must return a dict of tensors, not {type(returned).__name__}")
    for name, value in returned.items():
        shape = tf.TensorShape(value.shape)
        if not shape.is_fully_defined() or shape.rank < 1 or shape[0] != size:
            raise DataError(
                f"{where}: field {name!r} has shape {shape} for {size} examples; it must be "
                f"[{size}, ...] and known: tf.ensure_shape says it where TensorFlow cannot tell"
            )
    graph = traced.graph.as_graph_def()
    node = unsaved_random(graph) or _writing(graph)
    if node is not None:
        raise TrainingError(
            f"{where}: {node.name} ({node.op}) has state that is not saved, so the run could not "
            f"be continued exactly; draw with tf.random.stateless_uniform and its like, or with "
            f"pipefit.training.augment.uniform, from the seeds that it is given"
        )
    return {name: tf.TensorSpec(value.shape, value.dtype) for name, value in returned.items()}


def _writing(graph: Any) -> Any | None:
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return next((node for node in nodes if node.op in _WRITES), None)
