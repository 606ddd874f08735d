"""Averaged weights. See `Averages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pipefit.errors import SpecError


class Averages:
    """The exponential moving average of each variable: Polyak and Juditsky's idea, forgetting.

    average = momentum * average + (1 - momentum) * variable, after each update that was applied.
    It starts at what the variables are when this is made.

    Args:
        variables: keras.Variables.
        momentum: above 0, below 1.

    Raises:
        SpecError: for another momentum, or variables of 16 bits.
    """

    def __init__(self, variables: Sequence[Any], momentum: float):
        if not 0 < momentum < 1:
            raise SpecError(f"train.average = {momentum}: must be above 0 and below 1")
        for variable in variables:
            if variable.value.dtype.size < 4:
                raise SpecError(
                    f"train.average: the variable {variable.path!r} is {variable.dtype}, in which "
                    f"an average could not take small changes in; keep variables in float32, as "
                    f"train.precision = 'bfloat16' does, which computes in 16 bits all the same"
                )
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
        average.assign(self._momentum * average + (1 - self._momentum) * variable)


def _copy(variable: Any) -> Any:
    initial = tf.convert_to_tensor(variable.value)
    with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):
        return tf.Variable(initial, trainable=False, name=f"average_{variable.name}")
