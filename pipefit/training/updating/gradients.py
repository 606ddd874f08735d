"""Lists of gradients, one per variable: None where the loss does not depend on the variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Clip:
    """How gradients are clipped; at most one is set.

    Attributes:
        value: every element to [-value, value].
        norm: every variable's gradient to this L2 norm.
        global_norm: all gradients together to this L2 norm (Pascanu et al., ICML 2013).
    """

    value: float | None = None
    norm: float | None = None
    global_norm: float | None = None

    def __call__(self, gradients: list[Any]) -> list[Any]:
        """The clipped gradients; None entries stay None, sparse ones must be `distinct`."""
        if self.value is not None:
            return [
                g if g is None else tf.clip_by_value(g, -self.value, self.value) for g in gradients
            ]
        if self.norm is not None:
            return [g if g is None else tf.clip_by_norm(g, self.norm) for g in gradients]
        if self.global_norm is not None:
            return list(tf.clip_by_global_norm(gradients, self.global_norm)[0])
        return gradients


def distinct(gradients: list[Any]) -> list[Any]:
    """Add up the rows that a sparse gradient (of an embedding) names several times.

    Keras' optimizers and the norms square each row by itself: a word that a batch holds twice
    would count otherwise than in a dense gradient.
    """
    return [_distinct(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def _distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    rows, position = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, position, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def summed(gradients: list[Any]) -> list[Any]:
    """Sum over the devices, in a replica context; without a strategy, the gradients themselves."""
    context = tf.distribute.get_replica_context()
    if context is None or context.strategy.num_replicas_in_sync == 1:
        return gradients
    present = [g for g in gradients if g is not None]
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if g is None else next(reduced) for g in gradients]


def averaged(parts: Sequence[list[Any]]) -> list[Any]:
    """Add up the gradients of several slices (each already divided by the whole batch's size)."""
    if len(parts) == 1:
        return parts[0]
    return [
        None
        if all(g is None for g in column)
        else tf.add_n([tf.convert_to_tensor(g) for g in column if g is not None])
        for column in zip(*parts, strict=True)
    ]


def all_finite(gradients: Sequence[Any]) -> tf.Tensor:
    """Whether no element is NaN or infinite; a bool scalar."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(value)) for value in values if value is not None]
    )
