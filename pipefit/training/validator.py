"""Validation: every example of a set once, with the model's variables as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.data import Source
from pipefit.errors import SpecError, TrainingError
from pipefit.training.feeding.pipeline import Failures, validation_batches
from pipefit.training.loops.own_loops import different, refuse_different_again
from pipefit.training.loops.turns import Traced, Turns, joined_rows, on_devices
from pipefit.training.objective import Forward, Objective
from pipefit.training.replicas.devices import Batch, Replicas, Slice
from pipefit.training.state import Arrays, State, refuse_unsaved_random, to_numpy
from pipefit.training.targets import Means, Targets, refuse_taken

#: Before the names of outputs that travel among the fields.
_GIVEN = "outputs/"

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
        where: dotted key of the loop, for messages.
        deterministic: all ops are, so what an own loop does can be compared with doing it again.
        readers: batches read at once.
        prefetch: batches kept ready.
        declared: dtype and shape by field.
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
        where: str = "validation.loop",
        deterministic: bool = True,
        readers: int = 4,
        prefetch: int = 4,
        declared: Mapping[str, str] | None = None,
    ):
        self.objective, self.replicas = objective, replicas
        self.outputs = outputs
        self.targets = targets or Targets({}, "validation")
        self._failures = Failures()
        self._dataset = validation_batches(
            *(source, batch_size, self._failures),
            readers=readers,
            prefetch=prefetch,
            declared=declared,
        )
        self._loop = loop or each_batch
        self._where, self._deterministic = where, deterministic
        self._to_rehearse = loop is not None
        self._batches = Traced(where, self._batch, _check)
        self._calls = Traced(
            where,
            lambda function, fields: on_devices(replicas, objective.model, function, fields),
            _check,
        )
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
        with self._failures.surfacing(), self._averaged():
            if self._to_rehearse:
                self._rehearse(next(iter(self._dataset)))
            found = self._over(iter(self._dataset), sink, alive)
        if self._length is not None and found.examples != self._length:
            raise TrainingError(
                f"{self._where}: the set has {self._length} examples, {found.examples} were read"
            )
        return found

    def first(self) -> Validated:
        """Validate the first batch only, to see that it can be done."""
        with self._failures.surfacing(), self._averaged():
            batch = next(iter(self._dataset))
            return self._rehearse(batch) if self._to_rehearse else self._over(iter([batch]))

    def evaluate(
        self, batch: Batch, forward: Forward | None, outputs: Batch
    ) -> tuple[Batch, Batch, Batch]:
        """A batch's values, wanted outputs and targets; see `ValidationStep`."""
        given = {_GIVEN + name: value for name, value in outputs.items()}
        return self._batches(forward, {**batch, **given})  # type: ignore[no-any-return]

    def call(self, function: Forward, fields: Batch) -> Batch:
        """See `ValidationStep.call`."""
        return self._calls(function, fields)  # type: ignore[no-any-return]

    def _over(
        self,
        batches: Iterator[Batch],
        sink: Sink | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> Validated:
        turns = Turns(self._where, batches)
        step = ValidationStep(self, turns, sink, alive)
        turns.call(self._loop, step, turns)
        return step.validated()

    def _rehearse(self, batch: Batch) -> Validated:
        """A batch twice, to see that an own loop changes nothing and depends on nothing unsaved."""
        state = State(self.objective.model)
        before = to_numpy(state.snapshot())
        found = self._over(iter([batch]))
        if changed := different(before, to_numpy(state.snapshot())):
            raise TrainingError(
                f"{self._where}: changed {changed[0]!r} of the model; a validation leaves it as "
                f"it is: call it with training=False"
            )
        if self._deterministic:
            again = self._over(iter([batch]))
            refuse_different_again(f"{self._where}: a batch", _arrays(found), _arrays(again))
        self._to_rehearse = False
        return found

    def _batch(self, forward: Forward | None, batch: Batch) -> tuple[Batch, Batch, Batch]:
        values, outputs = self.replicas.run(
            lambda slices: self._replica(slices, forward), self.replicas.split(batch)
        )
        values = {name: self.replicas.joined(value) for name, value in values.items()}
        outputs = joined_rows(self.replicas, outputs, batch, "output")
        wanted = {name: outputs[name] for name in self.outputs}
        targets = self.targets(_parted(batch)[0], outputs)
        refuse_taken(values, targets)
        return values, wanted, targets

    def _replica(self, slices: list[Slice], forward: Forward | None) -> tuple[Batch, Batch]:
        fields, given = _parted(slices[0].fields)
        spare, spare_given = _parted(slices[0].spare)
        if given:
            forward = lambda model, used: given if used is fields else spare_given  # noqa: E731
        values, outputs = self.objective(fields, spare, training=False, forward=forward)
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
        self, validator: Validator, turns: Turns, sink: Sink | None, alive: Callable[[], None]
    ):
        self.model: keras.Model = validator.objective.model
        self.examples = 0
        self._validator, self._turns, self._sink, self._alive = validator, turns, sink, alive
        self._sums: dict[str, float] = {}
        self._means = Means()

    def __call__(
        self, batch: Mapping[str, Any], outputs: Mapping[str, Any] | Forward | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Evaluate a batch.

        Args:
            batch: what the iterator gave; fields may be added or changed, with one row for each
                example.
            outputs: what the loop has made of it, in place of the model's outputs; or a function
                f(model, fields) -> outputs, called on every device with its slice of the batch
                (and compiled when it is met for the first time).

        Returns:
            The wanted outputs, arrays [examples, ...].
        """
        fields = self._turns.take(batch)
        given, forward = (outputs, None) if isinstance(outputs, Mapping) else ({}, outputs)
        values, wanted, targets = self._validator.evaluate(
            fields, forward, self._turns.rows(given, "output")
        )
        examples = 0
        for name, value in values.items():
            examples = value.shape[0]
            total = float(np.sum(value.numpy(), dtype=np.float64))
            self._sums[name] = self._sums.get(name, 0.0) + total
        self.examples += examples
        self._means.add({name: np.asarray(value) for name, value in targets.items()}, examples)
        arrays = {name: value.numpy() for name, value in wanted.items()}
        if self._sink is not None and arrays:
            self._sink(arrays)
        self._alive()
        return arrays

    def call(self, function: Forward, fields: Mapping[str, Any]) -> Batch:
        """Compute something with the model, as often as needed for a batch.

        Args:
            function: f(model, fields) -> tensors by name, compiled when it is met for the first
                time, and called on every device with its slice of the fields.
            fields: tensors with the same number of rows.

        Returns:
            Its results; those of several devices joined.
        """
        return self._validator.call(
            function, {name: tf.convert_to_tensor(value) for name, value in fields.items()}
        )

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


def _parted(fields: Batch) -> tuple[Batch, Batch]:
    """Fields and, among them, the outputs that a loop has given."""
    given = {name: value for name, value in fields.items() if name.startswith(_GIVEN)}
    rest = {name: value for name, value in fields.items() if name not in given}
    return rest, {name.removeprefix(_GIVEN): value for name, value in given.items()}


def _check(graph: Any) -> None:
    refuse_unsaved_random(graph.as_graph_def())


def _arrays(found: Validated) -> Arrays:
    return {**{k: np.array(v) for k, v in found.metrics.items()}, **found.values}
