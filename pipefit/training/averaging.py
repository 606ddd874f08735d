"""Averaged weights. See `Averages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Averages:
    """The exponential moving average of each variable: Polyak and Juditsky's idea, forgetting.

    average = momentum * average + (1 - momentum) * variable, after each update that was applied.
    It starts at what the variables are when this is made. Averages of 16-bit variables are kept
    in float32, as most of their small changes would be lost.

    Args:
        variables: keras.Variables.
        momentum: above 0, below 1.
    """

    def __init__(self, variables: Sequence[Any], momentum: float):
        self._momentum = momentum
        self._variables = [v.value for v in variables]
        self.values: dict[str, Any] = {v.path: _copy(v) for v in variables}

    def update(self) -> None:
        """Take the variables as they are now into the averages; in a replica context."""
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update, tf.distribute.get_strategy()
        )

    def _update(self, strategy: tf.distribute.Strategy) -> None:
        for average, variable in zip(self.values.values(), self._variables, strict=True):
            strategy.extended.update(average, self._one, args=(variable,), group=False)

    def _one(self, average: Any, variable: Any) -> None:
        now = tf.cast(variable, average.dtype)
        average.assign(self._momentum * average + (1 - self._momentum) * now)


def _copy(variable: Any) -> Any:
    dtype = tf.float32 if variable.value.dtype.size < 4 else variable.value.dtype
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
        return tf.Variable(
            tf.cast(variable.value, dtype), trainable=False, name=f"average_{variable.name}"
        )
