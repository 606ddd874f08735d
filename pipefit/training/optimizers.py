"""A Keras optimizer made exact on several devices, with clipping and learning rates by name.

Under MirroredStrategy Keras clips each device's gradients before their sum, which is wrong. Here
gradients are summed over the devices first, then clipped, then applied, so one and several devices
do the same. The summing inside Keras' `apply` is switched off in exchange.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from pipefit.errors import SpecError


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
        """The clipped gradients; None entries stay None."""
        if self.value is not None:
            return [
                g if g is None else tf.clip_by_value(_dense(g), -self.value, self.value)
                for g in gradients
            ]
        if self.norm is not None:
            return [g if g is None else tf.clip_by_norm(_dense(g), self.norm) for g in gradients]
        if self.global_norm is not None:
            # Sparse gradients may name a row twice: their norm is right only once they are added.
            dense = [g if g is None else _dense(g) for g in gradients]
            return list(tf.clip_by_global_norm(dense, self.global_norm)[0])
        return gradients


class _Scaled:
    """Mixed into the class of an optimizer by `prepare`."""

    pipefit_scales: list[float]

    def _scale(self, variable: Any) -> float:
        return self.pipefit_scales[self._get_variable_index(variable)]  # type: ignore[attr-defined]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        scale = self._scale(variable)
        if scale != 1.0:
            learning_rate = learning_rate * tf.cast(scale, learning_rate.dtype)
        super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        # Keras' own decays with the unscaled learning rate.
        if self.weight_decay is None:  # type: ignore[attr-defined]
            return
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._decay,
            self._distribution_strategy,  # type: ignore[attr-defined]
            [v for v in variables if self._use_weight_decay(v)],  # type: ignore[attr-defined]
        )

    def _decay(self, strategy: Any, variables: Sequence[Any]) -> None:
        for variable in variables:
            rate = self._scale(variable) * self.weight_decay * self.learning_rate  # type: ignore[attr-defined]
            strategy.extended.update(
                variable.value,
                lambda v, rate: v.assign_sub(v * tf.cast(rate, v.dtype)),
                args=(rate,),
                group=False,
            )

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # summed already, see the module


def prepare(
    optimizer: Any, variables: Sequence[Any], groups: Sequence[tuple[str, float]] = ()
) -> Any:
    """Build the optimizer's variables and give it learning rates by variable name.

    Args:
        optimizer: a keras.optimizers.Optimizer, not built yet.
        variables: the trainable variables.
        groups: (regex, scale) pairs; the first that is found in a variable's path scales its
            learning rate. A scale of 0 leaves the variable as it is.

    Raises:
        SpecError: if it is no Keras optimizer, uses what Pipefit does itself, or a regex matches
            no variable.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SpecError(
            f"optimizer: the builder must return a keras.optimizers.Optimizer, "
            f"not {type(optimizer).__name__}"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise SpecError(
            "optimizer: the loss is not scaled, so a LossScaleOptimizer would only divide the "
            "gradients; use its inner optimizer (bfloat16 needs no scaling)"
        )
    if optimizer.gradient_accumulation_steps:
        raise SpecError("optimizer.gradient_accumulation_steps: set train.accumulate instead")
    scales = _scales([v.path for v in variables], groups)
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (_Scaled, cls), {"__module__": cls.__module__})
    optimizer.pipefit_scales = scales
    optimizer.build(list(variables))
    return optimizer


def _scales(paths: Sequence[str], groups: Sequence[tuple[str, float]]) -> list[float]:
    matched = {
        pattern: [path for path in paths if re.search(pattern, path)] for pattern, _ in groups
    }
    for pattern, found in matched.items():
        if not found:
            raise SpecError(
                f"optimizer.groups: match = {pattern!r} matches no trainable variable; "
                f"there are {', '.join(paths)}"
            )
    return [
        next((scale for pattern, scale in groups if path in matched[pattern]), 1.0)
        for path in paths
    ]


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
        else tf.add_n([_dense(g) for g in column if g is not None])
        for column in zip(*parts, strict=True)
    ]


def _dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient)
