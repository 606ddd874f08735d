"""Losses scaled up so that small float16 gradients do not vanish. See `LossScale`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pipefit.errors import Diverged

#: The scale of the first step; powers of two scale exactly.
INITIAL = 2.0**15
#: After so many steps in a row whose gradients were finite the scale is doubled.
GROWTH_STEPS = 2000
#: No gradient is finite at a smaller scale and infinite at this one for its size alone.
_LEAST = 2.0**-24


class LossScale:
    """A dynamic loss scale (Micikevicius et al., Mixed Precision Training, ICLR 2018).

    The loss is multiplied by it before it is differentiated, the gradients are divided by it
    afterwards. A step whose gradients are not finite halves it and changes nothing else.

    Attributes:
        variables: its state by name: the scale, the good steps since it last changed, and how
            many steps were skipped in all.
    """

    def __init__(self) -> None:
        self._scale = tf.Variable(INITIAL, trainable=False, name="loss_scale")
        self._good = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self._skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_steps")
        self.variables: dict[str, Any] = {
            "scale": self._scale,
            "good_steps": self._good,
            "skipped_steps": self._skipped,
        }

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate."""
        return loss * tf.cast(self._scale, loss.dtype)

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients of the loss itself, in float32 at least (in 16 bits they would vanish)."""
        return [g if g is None else self._divided(g) for g in gradients]

    def rescale(self, finite: tf.Tensor) -> None:
        """Take note of a step, after it; not in a replica context.

        Args:
            finite: bool scalar, whether its gradients were finite (if not, it was skipped).
        """
        good = tf.where(finite, self._good + 1, 0)
        grown = good >= GROWTH_STEPS
        larger = tf.where(grown, self._scale * 2, self._scale)
        self._scale.assign(tf.where(finite, larger, tf.maximum(self._scale / 2, _LEAST)))
        self._good.assign(tf.where(grown, tf.zeros_like(good), good))
        self._skipped.assign_add(tf.where(finite, tf.zeros_like(good), tf.ones_like(good)))

    def skipped(self) -> int:
        """Steps skipped so far."""
        return int(self._skipped.numpy())

    def check(self) -> None:
        """Check that training does not stand still.

        Raises:
            Diverged: if the last gradients were not finite at the smallest scale either.
        """
        if float(self._scale.numpy()) <= _LEAST:
            raise Diverged(
                f"train.precision = 'float16': the gradients are not finite, at a loss scale of "
                f"{_LEAST:g} either, so the training stands still; try a smaller learning rate, "
                f"train.precision = 'bfloat16' or 'float32' under another name"
            )

    def _divided(self, gradient: Any) -> Any:
        dtype = tf.float32 if gradient.dtype.size < 4 else gradient.dtype
        factor = tf.cast(1.0 / self._scale, dtype)
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.cast(gradient.values, dtype) * factor
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.cast(gradient, dtype) * factor
