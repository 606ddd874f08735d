"""Applies gradients that are given, so that every rule of an update can be computed by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from training_helpers import Rule, Weights, perceptron

from pipefit.training.replicas.devices import Replicas
from pipefit.training.state import State
from pipefit.training.updating.freezing import freeze
from pipefit.training.updating.gradients import summed
from pipefit.training.updating.updates import Part, Updates

SHAPES = {"a/kernel": (6, 5), "a/bias": (5,), "b/kernel": (5, 3), "b/bias": (3,)}


def gradients(steps: int, seed: int = 0, size: float = 1.0) -> list[Weights]:
    """Random gradients of `perceptron`, one dict per step."""
    draw = np.random.default_rng(seed)
    return [
        {
            path: (size * draw.normal(size=shape)).astype(np.float32)
            for path, shape in SHAPES.items()
        }
        for _ in range(steps)
    ]


class Steps:
    """A model and its updates; `run` applies gradients the way a step does.

    On several devices each gets a share of a gradient: far from the whole, but adding up to it.
    """

    def __init__(
        self,
        parts: Callable[[], Sequence[Part]],
        *,
        model: Callable[[], keras.Model] = perceptron,
        devices: int = 1,
        trainable: str | None = None,
        **options: Any,
    ):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        self.replicas = Replicas(kind="cpu", count=devices)
        with self.replicas.scope():
            self.model = model()
            if trainable is not None:
                freeze(self.model, trainable)
            self.updates = Updates(self.model, parts(), **options)
        self.state = State(self.model, self.updates)
        self._step = tf.function(self._one, autograph=False)

    def run(self, steps: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Apply one dict of gradients after the other; the learning rates, [steps] by column."""
        rates = [self._step(self._shares(gradients)) for gradients in steps]
        columns = self.updates.rate_columns
        return dict(zip(columns, np.array(rates, np.float32).T, strict=True))

    def weights(self) -> Weights:
        return {v.path: v.numpy() for v in self.model.variables}

    def averages(self) -> Weights:
        return {path: v.numpy() for path, v in self.updates.average_values().items()}

    def arrays(self) -> Weights:
        """All state now."""
        return {name: value.numpy() for name, value in self.state.snapshot().items()}

    def _shares(self, gradients: Mapping[str, np.ndarray]) -> list[list[tf.Tensor]]:
        wanted = [gradients[v.path] for v in self.updates.trainable]
        draw = np.random.default_rng(3)
        shares = []
        for _ in range(self.replicas.count - 1):
            shares.append([draw.normal(size=g.shape).astype(g.dtype) for g in wanted])
            wanted = [g - share for g, share in zip(wanted, shares[-1], strict=True)]
        return [[tf.constant(g) for g in share] for share in [*shares, wanted]]

    def _one(self, shares: list[list[tf.Tensor]]) -> list[tf.Tensor]:
        rates = self.updates.rates()
        scaled = [[self.updates.scaled(g) for g in share] for share in shares]
        ready = self.replicas.run(self._ready, scaled)
        if not self.updates.loss_scaling:
            self.replicas.call(self.updates.apply, ready)
            return rates
        finite = self.updates.finite(self.replicas.firsts(ready))
        tf.cond(finite, lambda: self.replicas.call(self.updates.apply, ready), lambda: None)
        self.updates.rescale(finite)
        return rates

    def _ready(self, share: list[tf.Tensor]) -> list[tf.Tensor]:
        return self.updates.unscaled(summed(share))


def by_hand(
    start: Mapping[str, np.ndarray], steps: Sequence[Mapping[str, np.ndarray]], rule: Rule
) -> Weights:
    """The weights after these gradients, in float64.

    Args:
        start: by path.
        steps: gradients by path.
        rule: (path, weight, gradient, step from 1) -> new weight.
    """
    now = {path: value.astype(np.float64) for path, value in start.items()}
    for number, step in enumerate(steps, start=1):
        now = {
            path: rule(path, value, step[path].astype(np.float64), number)
            if path in step
            else value
            for path, value in now.items()
        }
    return now


def by_layer(**rules: Rule) -> Rule:
    """Another rule for each layer, by its name."""
    return lambda path, *rest: rules[path.split("/")[0]](path, *rest)
