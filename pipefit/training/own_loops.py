"""Training loops of a user's own, in place of the one that is compiled as a whole.

A builder named by `train.loop` returns ``loop(step, iterator, steps)``. It reads exactly `steps`
batches and calls `step` exactly once for each: a step is one optimizer update, and the position in
the data follows from the number of steps. In between it may call whatever it likes, such as other
compiled functions of the model. It is called again and again, for some steps at a time; validating,
saving, recording and stopping happen between the calls.

    def loop(step, iterator, steps):
        for _ in range(steps):
            batch = next(iterator)
            context = encode(step.model, batch)              # compiled by the user
            step({**batch, "context": context}, forward)     # forward(model, fields) -> outputs

It costs a call into Python for every step (see docs/speed.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.errors import TrainingError
from pipefit.training.devices import Batch
from pipefit.training.objective import Forward
from pipefit.training.state import Arrays, refuse_unsaved_random

if TYPE_CHECKING:
    from pipefit.training.trainer import Trainer

class TrainStep:
    """One update, called by an own loop.

    Attributes:
        model: the model in training.
    """

    def __init__(self, trainer: Trainer):
        self.model: keras.Model = trainer.objective.model
        self._trainer = trainer
        self._functions: dict[Forward | None, Any] = {}
        self._traced: set[int] = set()
        self._unsaved: list[tuple[Any, np.ndarray[Any, Any]]] = []
        self.rows: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, batch: Batch, forward: Forward | None = None) -> dict[str, tf.Tensor]:
        """Do one update.

        Args:
            batch: what the iterator gave; fields may be added or changed.
            forward: f(model, fields) -> outputs, called in place of the model, on every device
                with its slice of the batch; compiled once for each function.

        Returns:
            What is recorded of this step, scalars and targets by name.
        """
        if forward not in self._functions:
            self._functions[forward] = tf.function(
                lambda fields: self._trainer.update(fields, forward), autograph=False
            )
        function = self._functions[forward]
        graph = function.get_concrete_function(batch).graph
        if id(graph) not in self._traced:
            self._traced.add(id(graph))
            refuse_unsaved_random(graph.as_graph_def())
            others = self._trainer.state.others(graph.variables)
            self._unsaved += [(variable, variable.numpy()) for variable in others]
        scalars, targets = function(batch)
        self.rows.append((scalars, targets))
        return {**dict(zip(self._trainer.columns, tf.unstack(scalars), strict=True)), **targets}

    def unsaved(self) -> list[tuple[Any, np.ndarray[Any, Any]]]:
        """Variables met for the first time that no state holds, with their values before."""
        found, self._unsaved = self._unsaved, []
        return found


TrainLoop = Callable[[TrainStep, Iterator[Batch], int], object]


def one_by_one(step: TrainStep, iterator: Iterator[Batch], steps: int) -> None:
    """The loop that does nothing of its own."""
    for _ in range(steps):
        step(next(iterator))


class HandLoop:
    """Runs an own loop for one trainer and checks that it did its part."""

    def __init__(self, trainer: Trainer):
        self._loop = trainer.loop or one_by_one
        self._trainer = trainer
        self._step = TrainStep(trainer)

    def run(self, iterator: Iterator[Batch], steps: int) -> Arrays:
        """Do this many steps.

        Returns:
            Every step's numbers [steps, ...].

        Raises:
            TrainingError: if the loop read another number of batches, or did another number of
                updates, or the model has state that cannot be saved.
        """
        from pipefit.training.together import refuse_changed

        self._step.rows = []
        counted = _Counted(iterator, steps)
        self._loop(self._step, counted, steps)
        rows = self._step.rows
        if len(rows) != steps or counted.count != steps:
            raise TrainingError(
                f"train.loop: {steps} steps were asked for; it read {counted.count} batches "
                f"and called step {len(rows)} times: do both once for every step"
            )
        scalars = np.stack([values.numpy() for values, _ in rows])
        refuse_changed(self._step.unsaved())
        columns = dict(zip(self._trainer.columns, scalars.T, strict=True))
        further = {
            name: np.stack([targets[name].numpy() for _, targets in rows]) for name in rows[0][1]
        }
        return {**columns, **further}


class _Counted(Iterator[Batch]):
    """An iterator that counts, and refuses to go beyond `most`."""

    def __init__(self, iterator: Iterator[Batch], most: int):
        self._iterator, self._most = iterator, most
        self.count = 0

    def __next__(self) -> Batch:
        if self.count == self._most:
            raise TrainingError(
                f"train.loop: asked for more than the {self._most} batches of this call; read one "
                f"batch for every step"
            )
        self.count += 1
        return next(self._iterator)
