"""Validation: every example of a set once, with the model's variables as they are."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.data import Source
from pipefit.errors import SpecError, TrainingError
from pipefit.training.devices import Batch, Replicas, Slice
from pipefit.training.objective import Forward, Objective
from pipefit.training.pipeline import Failures, validation_batches
from pipefit.training.targets import Means, Targets

#: Is called with each batch's wanted outputs, dicts of arrays [examples, ...].
Sink = Callable[[dict[str, np.ndarray[Any, Any]]], None]


@dataclass(frozen=True)
class Validated:
    """The numbers of one validation.

    Attributes:
        metrics: means over all examples, summed in float64; scalar targets among them.
        values: means of the targets that are arrays, float64.
        examples: how many were read.
    """

    metrics: dict[str, float]
    values: dict[str, np.ndarray[Any, Any]]
    examples: int


class Validator:
    """Reads every example of a validation set once; changes nothing.

    Args:
        objective: the model (the one in training, or a restored one), loss and metrics.
        source: the examples.
        replicas: as of the model.
        batch_size: examples at once; the last batch may be smaller.
        outputs: names of model outputs to hand out per example.
        targets: further values, of which the means over the batches are taken.
        loop: ``loop(step, iterator)``, called in place of calling `step` with every batch; see
            `ValidationStep`.
        averages: by the path of a variable the averaged values to validate with.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        source: Source,
        replicas: Replicas,
        batch_size: int,
        outputs: tuple[str, ...] = (),
        targets: Targets | None = None,
        loop: ValidationLoop | None = None,
        averages: Mapping[str, Any] | None = None,
    ):
        self.objective, self.replicas = objective, replicas
        self.outputs = outputs
        self.targets = targets or Targets({}, "validation")
        self._failures = Failures()
        self._dataset = validation_batches(source, batch_size, self._failures)
        self._loop = loop or each_batch
        self._functions: dict[Forward | None, Any] = {}
        self._averages = dict(averages or {})
        self._exchange = tf.function(self._exchanged, autograph=False)
        self._length = self._dataset.examples

    def run(self, sink: Sink | None = None, alive: Callable[[], None] = lambda: None) -> Validated:
        """Validate.

        Args:
            sink: receives the wanted outputs.
            alive: is called after every batch.

        Raises:
            DataError: if the source failed, or gave something else than it declared.
            TrainingError: if an operation failed, or an own loop left examples out.
            SpecError: if the model has no output of a wanted name.
        """
        step = ValidationStep(self, sink, alive)
        with self._failures.surfacing(), self._averaged():
            self._loop(step, iter(self._dataset))
        if self._length is not None and step.examples != self._length:
            raise TrainingError(
                f"validation loop: the set has {self._length} examples, step was called with "
                f"{step.examples}: call it once with every batch"
            )
        return step.validated()

    def first(self) -> Validated:
        """Validate the first batch only, to see that it can be done."""
        step = ValidationStep(self)
        with self._failures.surfacing(), self._averaged():
            self._loop(step, itertools.islice(self._dataset, 1))
        return step.validated()

    def compiled(self, forward: Forward | None, batch: Batch) -> Any:
        """What gives a batch's values, wanted outputs and targets."""
        if forward not in self._functions:
            self._functions[forward] = tf.function(
                lambda fields: self._batch(fields, forward), autograph=False
            )
        # There are two sizes, a full batch and the last one; called with tensors, TensorFlow would
        # warn of "retracing".
        return self._functions[forward].get_concrete_function(batch)

    def _batch(self, batch: Batch, forward: Forward | None) -> tuple[Batch, Batch, Batch]:
        values, outputs = self.replicas.run(
            lambda slices: self._replica(slices, forward), self.replicas.split(batch)
        )
        joined = self.replicas.joined
        values = {k: joined(v) for k, v in values.items()}
        outputs = {k: joined(v) for k, v in outputs.items()}
        wanted = {name: outputs[name] for name in self.outputs}
        return values, wanted, self.targets(batch, outputs)

    def _replica(self, slices: list[Slice], forward: Forward | None) -> tuple[Batch, Batch]:
        values, outputs = self.objective(*slices[0], training=False, forward=forward)
        missing = [name for name in self.outputs if name not in outputs]
        if missing:
            raise SpecError(
                f"outputs = {missing}: the model has no such outputs; it has {', '.join(outputs)}"
            )
        return values, outputs if self.targets else {name: outputs[name] for name in self.outputs}

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; no second copy of it is made."""
        if not self._averages:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchanged(self) -> None:
        for variable in self.objective.model.trainable_variables:
            average = self._averages[variable.path]
            kept = tf.identity(variable.value)
            variable.value.assign(tf.identity(average))
            average.assign(kept)


class ValidationStep:
    """The evaluation of one batch, called by an own loop, once with every batch.

    Attributes:
        model: the model.
        examples: how many were evaluated so far.
    """

    def __init__(
        self,
        validator: Validator,
        sink: Sink | None = None,
        alive: Callable[[], None] = lambda: None,
    ):
        self.model: keras.Model = validator.objective.model
        self.examples = 0
        self._validator, self._sink, self._alive = validator, sink, alive
        self._sums: dict[str, float] = {}
        self._means = Means()

    def __call__(
        self, batch: Batch, forward: Forward | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Evaluate a batch.

        Args:
            batch: what the iterator gave; fields may be added or changed.
            forward: f(model, fields) -> outputs, called in place of the model.

        Returns:
            The wanted outputs, arrays [examples, ...].
        """
        values, outputs, targets = self._validator.compiled(forward, batch)(batch)
        examples = 0
        for name, value in values.items():
            examples = value.shape[0]
            total = float(np.sum(value.numpy(), dtype=np.float64))
            self._sums[name] = self._sums.get(name, 0.0) + total
        self.examples += examples
        self._means.add({name: value.numpy() for name, value in targets.items()}, examples)
        arrays = {name: value.numpy() for name, value in outputs.items()}
        if self._sink is not None and arrays:
            self._sink(arrays)
        self._alive()
        return arrays

    def validated(self) -> Validated:
        """The numbers so far."""
        means = self._means.values()
        metrics = {name: value / max(self.examples, 1) for name, value in self._sums.items()}
        metrics.update({name: float(value) for name, value in means.items() if value.ndim == 0})
        arrays = {name: value for name, value in means.items() if value.ndim}
        return Validated(metrics, arrays, self.examples)


ValidationLoop = Callable[[ValidationStep, Iterator[Batch]], object]


def each_batch(step: ValidationStep, iterator: Iterator[Batch]) -> None:
    """The loop that does nothing of its own."""
    for batch in iterator:
        step(batch)
