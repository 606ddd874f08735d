"""Learning rates by variable name inside a Keras optimizer, whatever its class. See `adapt`.

Under MirroredStrategy Keras sums and clips each device's gradients inside `apply`, in the wrong
order. Pipefit sums before, so the summing in there is switched off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from pipefit.errors import SpecError


@dataclass(frozen=True)
class Group:
    """Variables with a learning rate of their own; exactly one of the last two is given.

    Attributes:
        match: regex, looked for in the variable's path. Of several groups the first counts.
        scale: factor on the optimizer's learning rate; 0 leaves the variables as they are.
        learning_rate: in its place: a number, a Keras schedule, or a function without arguments.
    """

    match: str
    scale: float = 1.0
    learning_rate: float | Callable[..., Any] | None = None


class Rates:
    """Which learning rate each variable of one optimizer has.

    Args:
        paths: of the optimizer's variables, in its order.
        groups: first match counts.
        factor: variable or tensor, a factor on all learning rates.
        weight_decay_on: regex of the variables that decay, if the optimizer decays any; None: all.
    """

    def __init__(
        self,
        paths: Sequence[str],
        groups: Sequence[Group],
        factor: Any,
        weight_decay_on: str | None,
    ):
        self.groups = tuple(groups)
        self._factor = factor
        self._group_of = [
            next((g for g in groups if re.search(g.match, path)), None) for path in paths
        ]
        self._decays = [
            weight_decay_on is None or bool(re.search(weight_decay_on, path)) for path in paths
        ]
        self._current: Group | None = None

    @contextmanager
    def within(self, group: Group | None) -> Iterator[None]:
        """The optimizer's learning rate is meanwhile that of this group; None: of no group."""
        # Set, not saved and put back: several devices' threads take turns in here, all with the
        # same group whenever the optimizer goes on.
        self._current = group
        try:
            yield
        finally:
            self._current = None

    def now(self, base: Callable[[], Any], iterations: Any) -> tf.Tensor:
        """The current group's learning rate, given that of the optimizer."""
        group = self._current
        if group is None or group.learning_rate is None:
            rate = tf.convert_to_tensor(base())
            if group is not None:
                rate *= tf.cast(group.scale, rate.dtype)
        elif isinstance(group.learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = tf.convert_to_tensor(group.learning_rate(iterations))
        else:
            own = group.learning_rate
            rate = tf.convert_to_tensor(own() if callable(own) else own, keras.config.floatx())
        return rate * tf.cast(self._factor, rate.dtype)

    def members(self, indices: Sequence[int]) -> Iterator[tuple[Group | None, list[int]]]:
        """Positions in `indices` (of variables), by group."""
        for group in (None, *self.groups):
            positions = [k for k, i in enumerate(indices) if self._group_of[i] is group]
            if positions:
                yield group, positions

    def decays(self, index: int) -> bool:
        """Whether the optimizer's weight decay applies to this variable."""
        return self._decays[index]


class _Outside:
    """Comes before the optimizer's own class."""

    pipefit_rates: Rates

    def _get_current_learning_rate(self) -> tf.Tensor:
        return self.pipefit_rates.now(
            super()._get_current_learning_rate,  # type: ignore[misc]
            self._iterations,  # type: ignore[attr-defined]
        )

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        rates = self.pipefit_rates
        indices = [self._get_variable_index(v) for v in variables]  # type: ignore[attr-defined]
        for group, positions in rates.members(indices):
            chosen = [variables[k] for k in positions if rates.decays(indices[k])]
            if chosen:
                with rates.within(group):
                    super()._apply_weight_decay(chosen)  # type: ignore[misc]


class _Inside(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Comes between the optimizer's own class and Keras' base class.

    So what an optimizer does once per step in its own `_backend_update_step`, as Nadam does, is
    done once, however many groups there are.
    """

    pipefit_rates: Rates

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        rates = self.pipefit_rates
        indices = [self._get_variable_index(v) for v in trainable_variables]
        for group, positions in rates.members(indices):
            with rates.within(group):
                rate = learning_rate if group is None else self.learning_rate
                super()._backend_update_step(
                    [grads[k] for k in positions],
                    [trainable_variables[k] for k in positions],
                    rate,
                )

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # summed already, see the module


def adapt(optimizer: Any, variables: Sequence[Any], rates: Rates) -> None:
    """Build the optimizer's variables and give it these learning rates, in place."""
    cls = type(optimizer)
    optimizer.__class__ = type(
        cls.__name__, (_Outside, cls, _Inside), {"__module__": cls.__module__}
    )
    optimizer.pipefit_rates = rates
    optimizer.build(list(variables))


def check_optimizer(optimizer: Any, where: str) -> None:
    """Refuse what is no Keras optimizer, or does itself what Pipefit does.

    Args:
        optimizer: what a builder returned.
        where: dotted key in the experiment file, for messages.

    Raises:
        SpecError: naming what to use instead.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SpecError(
            f"{where}: the builder must return a keras.optimizers.Optimizer, "
            f"not {type(optimizer).__name__}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise SpecError(
            f"{where}: a LossScaleOptimizer cannot be used, as it scales no loss here; use its "
            f"inner optimizer, and train.precision = 'float16' for losses scaled dynamically"
        )
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        raise SpecError(
            f"{where}: a MultiOptimizer cannot be used; write one table [optimizers.NAME] with "
            f"`match` for each of its optimizers"
        )
    refused = {
        "gradient_accumulation_steps": "set train.accumulate instead",
        "loss_scale_factor": "leave it out; train.precision = 'float16' scales losses dynamically",
        "use_ema": "set train.average instead, the momentum of the averaged weights",
    }
    for argument, instead in refused.items():
        if value := getattr(optimizer, argument, None):
            raise SpecError(f"{where}.{argument} = {value}: cannot be used; {instead}")
    if optimizer.built:
        raise SpecError(
            f"{where}: the builder must return a new optimizer, not one that is already in use"
        )
