"""What users' own training loops and validation loops have in common: see `Turns`, `Traced`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipefit.errors import PipefitError, SpecError, TrainingError
from pipefit.training.callables import checked
from pipefit.training.objective import Forward, named_outputs
from pipefit.training.replicas.devices import Batch, Replicas, Slice
from pipefit.training.replicas.meeting import stand_in

#: So many functions, or shapes of their arguments, are compiled for one loop at most.
_MOST_TRACED = 64


class Turns(Iterator[Batch]):
    """The batches of one call of an own loop: each goes to `step` once, before the next is read.

    How many steps a call has depends on how long they take. So a loop that used its batches in
    another order would give other numbers the next time.

    Args:
        where: dotted key of the loop, for messages.
        batches: what to hand out.
        most: so many batches; None: all.

    Attributes:
        done: so many were given to `step`.
    """

    def __init__(self, where: str, batches: Iterator[Batch], most: int | None = None):
        self._where, self._batches, self._most = where, batches, most
        self._read = self.done = 0
        self._examples = 0

    def __next__(self) -> Batch:
        if self._read > self.done:
            raise TrainingError(
                f"{self._where}: asked for batch {self._read + 1} of this call before step was "
                f"called with batch {self._read}; call step once with every batch, then read on"
            )
        if self._read == self._most:
            raise StopIteration
        batch = next(self._batches)
        self._read += 1
        self._examples = next(iter(batch.values())).shape[0]
        return dict(batch)

    def take(self, batch: Mapping[str, Any]) -> Batch:
        """What `step` was called with, as tensors; counts.

        Raises:
            TrainingError: if it is not this batch's turn.
            SpecError: if a field has not one row for each of the batch's examples.
        """
        if self._read == self.done:
            raise TrainingError(
                f"{self._where}: step was called {self.done + 1} times with {self._read} batches "
                f"read; call it once with every batch"
            )
        fields = self.rows(batch, "field")
        self.done += 1
        return fields

    def rows(self, values: Mapping[str, Any], kind: str) -> Batch:
        """Values as tensors, which have one row for each example of the batch.

        Raises:
            SpecError: naming one that has not.
        """
        tensors = {name: tf.convert_to_tensor(value) for name, value in values.items()}
        for name, value in tensors.items():
            if value.shape.rank == 0 or value.shape[0] != self._examples:
                raise SpecError(
                    f"{self._where}: {kind} {name!r} given to step has shape {value.shape}, but "
                    f"the batch has {self._examples} examples: devices get slices of everything, "
                    f"so it needs one row for each (tf.fill([{self._examples}], value), say)"
                )
        return tensors

    def call(self, loop: Callable[..., object], *arguments: object) -> None:
        """Call the loop, and check that it has done its part.

        Raises:
            TrainingError: if it left out a batch, or asked for more than there are.
        """
        try:
            loop(*arguments)
        except StopIteration as error:
            raise TrainingError(
                f"{self._where}: asked for more than the {self._read} batches of this call; end "
                f"with them, as `for batch in iterator` does"
            ) from error
        except PipefitError:
            raise
        except Exception as error:
            error.add_note(f"(in {self._where}, after {self.done} steps of this call)")
            raise
        if self._is_left():
            asked = "every batch" if self._most is None else f"each of {self._most} batches"
            raise TrainingError(
                f"{self._where}: was to call step with {asked}, but read {self._read} and called "
                f"it {self.done} times; go on until the iterator ends"
            )

    def _is_left(self) -> bool:
        if self._most is not None:
            return self.done < self._most
        return self.done < self._read or next(self._batches, None) is not None


class Traced:
    """Compiles users' functions, each once for every shape of the fields that it is given.

    Args:
        where: dotted key of the loop, for messages.
        compute: f(function, fields): what is compiled.
        check: is called with the graph of each, before it runs for the first time.
    """

    def __init__(
        self,
        where: str,
        compute: Callable[[Any, Batch], Any],
        check: Callable[[Any], None],
    ):
        self._where, self._compute, self._check = where, compute, check
        self._known: dict[Hashable, Any] = {}

    def __call__(self, function: Forward | None, fields: Batch) -> Any:
        """Compute with this function; None: with none."""
        shapes = tuple(sorted((k, tuple(v.shape), v.dtype.name) for k, v in fields.items()))
        key = (_identity(function), shapes)
        if key not in self._known:
            if len(self._known) == _MOST_TRACED:
                raise TrainingError(
                    f"{self._where}: gave step more than {_MOST_TRACED} different functions, or "
                    f"shapes of fields, and each is compiled; make functions once, outside of the "
                    f"loop, and give them what changes as a field"
                )
            self._known[key] = self._traced(function, fields)
        return self._known[key](fields)

    def _traced(self, function: Forward | None, fields: Batch) -> Any:
        if function is not None:
            checked(function, f"{self._where}: what step is given", ["model", "fields"])
        # No autograph, as in Keras: it would bury the message of an error in users' code.
        compiled = tf.function(lambda given: self._compute(function, given), autograph=False)
        concrete = compiled.get_concrete_function(fields)
        self._check(concrete.graph)
        return concrete


def _identity(function: Any) -> Hashable:
    """What tells functions apart; bound methods are made anew whenever they are asked for."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function  # type: ignore[no-any-return]


def on_devices(replicas: Replicas, model: keras.Model, function: Forward, fields: Batch) -> Batch:
    """``function(model, fields)`` on every device with its slice; the results of all, joined.

    Raises:
        SpecError: on several devices, for a result that has not one row per example.
    """

    def on_device(slices: list[Slice]) -> Batch:
        part = slices[0]
        if part.examples or not part.spare:
            return named_outputs(function(model, part.fields))
        with stand_in():
            return {k: v[:0] for k, v in named_outputs(function(model, part.spare)).items()}

    results = replicas.run(on_device, replicas.split(fields))
    return joined_rows(replicas, results, fields, "step.call: result")


def joined_rows(replicas: Replicas, results: Batch, fields: Batch, what: str) -> Batch:
    """What the devices have computed of a batch; on one device it may have any shape."""
    if replicas.count == 1:
        return dict(results)
    examples = replicas.sizes(next(iter(fields.values())).shape[0])[0]
    return replicas.joined_rows(results, examples, what)
