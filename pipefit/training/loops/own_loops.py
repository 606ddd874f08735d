"""Training loops of a user's own, in place of the one that is compiled as a whole.

A builder named by `train.loop` returns ``loop(step, iterator, steps)``. It reads the `steps`
batches of the iterator and calls `step` once with each: a step is one optimizer update, and the
position in the data follows from the number of steps. In between it may call other functions of
the model, compiled by `step.call`, as often as it likes. It is called again and again, for some
steps at a time; validating, saving, recording and stopping happen between the calls.

    def loop(step, iterator, steps):
        for batch in iterator:
            drawn = step.call(draw, batch)              # draw(model, fields) -> tensors by name
            step({**batch, **drawn}, forward)           # forward(model, fields) -> outputs

Nothing but the variables of the model and the optimizer is saved, so nothing else may have an
influence: the first step is done twice, from the same state, to see whether it gives the same.
What depends on the step, such as a seed of random numbers, follows from `step.number`.

It costs calls into Python for every step (see docs/own-model-and-data.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.errors import TrainingError
from pipefit.training.loops.turns import Traced, Turns, on_devices
from pipefit.training.objective import Forward
from pipefit.training.replicas.devices import Batch
from pipefit.training.state import Arrays, refuse_changed, refuse_unsaved_random, to_numpy

if TYPE_CHECKING:
    from pipefit.training.trainer import Trainer

WHERE = "train.loop"


class TrainStep:
    """One update, called by an own loop once with every batch.

    Attributes:
        model: the model in training.
    """

    def __init__(self, trainer: Trainer):
        self.model: keras.Model = trainer.objective.model
        self._number = trainer.step + 1
        self._trainer = trainer
        self._turns = Turns(WHERE, iter(()))
        self._rows: list[tuple[Any, dict[str, Any]]] = []
        self._unsaved: list[tuple[Any, np.ndarray[Any, Any]]] = []
        self._updates = Traced(
            WHERE, lambda forward, fields: trainer.update(fields, forward), self._check
        )
        self._calls = Traced(
            WHERE,
            lambda function, fields: on_devices(trainer.replicas, self.model, function, fields),
            self._check,
        )

    @property
    def number(self) -> int:
        """Of the update that comes next, counted from 1 over the whole run.

        Raises:
            TrainingError: if it is asked for while a function is being compiled.
        """
        if not tf.executing_eagerly():
            raise TrainingError(
                f"{WHERE}: step.number was read in a function that is compiled, where it would "
                f"stay what it is now; read it in the loop, and give the function a field"
            )
        return self._number

    def __call__(
        self, batch: Mapping[str, Any], forward: Forward | None = None
    ) -> dict[str, tf.Tensor]:
        """Do one update.

        Args:
            batch: what the iterator gave; fields may be added or changed, with one row for each
                example.
            forward: f(model, fields) -> outputs, called in place of the model, on every device
                with its slice of the batch. The gradient goes through it. It is compiled when it
                is met for the first time, so make it once, outside of the loop.

        Returns:
            What is recorded of this step, scalars and targets by name.
        """
        scalars, targets = self._updates(forward, self._turns.take(batch))
        self._rows.append((scalars, targets))
        self._number += 1
        return {**dict(zip(self._trainer.columns, tf.unstack(scalars), strict=True)), **targets}

    def call(self, function: Forward, fields: Mapping[str, Any]) -> Batch:
        """Compute something with the model, without gradient or update.

        Args:
            function: f(model, fields) -> tensors by name, compiled when it is met for the first
                time, and called on every device with its slice of the fields.
            fields: tensors with the same number of rows.

        Returns:
            Its results; those of several devices joined.
        """
        return self._calls(function, {k: tf.convert_to_tensor(v) for k, v in fields.items()})  # type: ignore[no-any-return]

    def begin(self, turns: Turns, number: int) -> None:
        """Before a call of the loop: whose turn it is, and the number of its first update."""
        self._turns, self._number = turns, number
        self._rows = []

    def end(self) -> Arrays:
        """After a call of the loop: the numbers of its steps, [steps, ...].

        Raises:
            TrainingError: if variables have changed that no state holds.
        """
        scalars = np.stack([values.numpy() for values, _ in self._rows])  # waits for all
        unsaved, self._unsaved = self._unsaved, []
        refuse_changed(unsaved)
        columns = dict(zip(self._trainer.columns, scalars.T, strict=True))
        further = {
            name: tf.stack([targets[name] for _, targets in self._rows]).numpy()
            for name in self._rows[0][1]
        }
        return {**columns, **further}

    def _check(self, graph: Any) -> None:
        refuse_unsaved_random(graph.as_graph_def())
        others = self._trainer.state.others(graph.variables)
        self._unsaved += [(variable, variable.numpy()) for variable in others]


TrainLoop = Callable[[TrainStep, Iterator[Batch], int], object]


def one_by_one(step: TrainStep, iterator: Iterator[Batch], steps: int) -> None:
    """The loop that does nothing of its own."""
    for batch in iterator:
        step(batch)


class HandLoop:
    """Runs an own loop for one trainer and checks that it does its part.

    Args:
        trainer: the training; without a loop of its own it does one step after the other.
    """

    def __init__(self, trainer: Trainer):
        self._loop = trainer.loop or one_by_one
        self._trainer = trainer
        self._step = TrainStep(trainer)
        self._to_rehearse = trainer.loop is not None and trainer.deterministic

    def run(self, iterator: Iterator[Batch], steps: int, done: int = 0) -> Arrays:
        """Do this many steps.

        Args:
            iterator: gives at least so many batches.
            steps: at least 1.
            done: updates since the trainer counted its steps.

        Returns:
            Every step's numbers [steps, ...].

        Raises:
            TrainingError: if the loop left out a batch, called `step` in another order than it
                read them, or depends on something that is not saved.
        """
        number = self._trainer.step + done + 1
        parts = []
        if self._to_rehearse:
            self._to_rehearse = False
            parts.append(self._rehearsed(next(iterator), number))
        if steps > len(parts):
            parts.append(self._do(iterator, steps - len(parts), number + len(parts)))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _do(self, iterator: Iterator[Batch], steps: int, number: int) -> Arrays:
        turns = Turns(WHERE, iterator, steps)
        self._step.begin(turns, number)
        turns.call(self._loop, self._step, turns, steps)
        return self._step.end()

    def _rehearsed(self, batch: Batch, number: int) -> Arrays:
        """One step, done twice from the same state."""
        state = self._trainer.state
        before = to_numpy(state.snapshot())
        rows = self._do(iter([batch]), 1, number)
        after = to_numpy(state.snapshot())
        state.restore(before)
        again = self._do(iter([batch]), 1, number)
        refuse_different_again(
            f"{WHERE}: step {number}", {**rows, **after}, {**again, **to_numpy(state.snapshot())}
        )
        return again


def refuse_different_again(what: str, first: Arrays, second: Arrays) -> None:
    """Check that what was done twice from the same state gave the same.

    Raises:
        TrainingError: naming what differs.
    """
    if differ := different(first, second):
        raise TrainingError(
            f"{what}, done twice from the same state, gave two different results "
            f"({', '.join(differ[:3])}): the loop depends on something that is not saved, such as "
            f"random numbers or a counter, so nothing could be repeated or continued exactly; use "
            f"step.number, tf.random.stateless_uniform(..., seed=[seed, step.number]), or weights "
            f"of the model"
        )


def different(first: Arrays, second: Arrays) -> list[str]:
    """Names of the arrays that are not the same bits in both."""
    found = [k for k in first if k not in second or not _same(first[k], second[k])]
    return found + [k for k in second if k not in first]


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype == object:  # texts
        return np.array_equal(one, other)
    return one.tobytes() == other.tobytes()  # NaN is equal to itself
