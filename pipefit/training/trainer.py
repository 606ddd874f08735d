"""The inner loop: a number of steps goes in, arrays of their metrics come out. See `Trainer`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.data import Source
from pipefit.errors import SpecError, StateMismatch, TrainingError
from pipefit.training.added import AddedLosses
from pipefit.training.devices import Batch, Replicas
from pipefit.training.objective import Objective
from pipefit.training.optimizers import Clip, averaged, summed
from pipefit.training.pipeline import Failures, training_batches, validation_batches
from pipefit.training.state import Arrays, State, refuse_unsaved_random

#: Where a snapshot says how far the training is.
STEP, POSITION = "run/step", "run/position"


class Trainer:
    """Runs optimizer updates on the devices; knows nothing of files, databases or intervals.

        build model, optimizer, iterator (at `position`)
        run(n):   repeat n times inside one tf.function:
                      batch = next(iterator)
                      every device: forward, loss, gradient of its slice of the batch
                      sum over devices -> clip -> apply
                  return every step's metrics

    Args:
        objective: model (built), loss and metrics.
        optimizer: prepared by `pipefit.training.optimizers.prepare`.
        source: the training data.
        replicas: the devices; the model and the optimizer were made in their scope.
        batch_size: examples per update, over all devices.
        seed: of the order of examples.
        accumulate: slices of the batch whose gradients are averaged before the update.
        clip: of the summed gradients.
        jit_compile: compile the step with XLA.

    Raises:
        SpecError: if the batch cannot be split as asked, or XLA is wanted on several devices.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        optimizer: Any,
        source: Source,
        replicas: Replicas,
        batch_size: int,
        seed: int,
        accumulate: int = 1,
        clip: Clip | None = None,
        jit_compile: bool = False,
    ):
        _check_slices(batch_size, accumulate, replicas.count)
        if jit_compile and replicas.count > 1:
            raise SpecError(
                f"train.jit_compile = true: works on one device, not on {replicas.count}; "
                f"leave it out or set model.devices = 1"
            )
        self.objective = objective
        self.optimizer = optimizer
        self.replicas = replicas
        self.batch_size = batch_size
        self.state = State(objective.model, optimizer)
        self.step = 0
        self.position = 0
        self._source, self._seed = source, seed
        self._accumulate, self._clip = accumulate, clip or Clip()
        self._added = AddedLosses(objective.model, replicas.count)
        self._failures = Failures()
        self._iterator: list[Any] = []  # at most one
        # Still reading when Python ends, it would wait for ever for its threads: by then they can
        # no longer run the source.
        weakref.finalize(self, self._iterator.clear)
        self._unsaved: list[tuple[Any, np.ndarray[Any, Any]]] = []
        self._names = ["loss", *objective.metrics, "learning_rate"]
        one_step = self._replica_step
        # No autograph, as in Keras: it would bury the message of an error in users' code.
        self._replica = (
            tf.function(one_step, jit_compile=True, autograph=False) if jit_compile else one_step
        )
        self._run = tf.function(self._steps, autograph=False)

    def run(self, steps: int) -> Arrays:
        """Do this many updates.

        Args:
            steps: at least 1.

        Returns:
            float32 arrays of shape [steps]: loss (mean over the batch, with regularisers), the
            metrics (means over the batch) and the learning rate that the step used.

        Raises:
            DataError: if the source failed, or gave something else than it declared.
            TrainingError: if an operation failed, the optimizer did not count as many updates,
                or the model has state that cannot be saved.
        """
        if not self._iterator:
            self._start()
        before = self._updates()
        with self._failures.surfacing():
            rows = self._run(self._iterator[0], tf.constant(steps)).numpy()
        done = self._updates() - before
        if done != steps:
            raise TrainingError(f"{steps} steps were asked for, the optimizer did {done}")
        self._refuse_unsaved()
        self.step += steps
        self.position += steps * self.batch_size
        return {name: rows[:, i] for i, name in enumerate(self._names)}

    def snapshot(self) -> dict[str, Any]:
        """All state at the current step (see `pipefit.training.state`); cheap, not yet copied."""
        return {
            **self.state.snapshot(),
            STEP: tf.constant(self.step, tf.int64),
            POSITION: tf.constant(self.position, tf.int64),
        }

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Continue from a snapshot. Raises StateMismatch, before anything is changed."""
        rest = {k: v for k, v in arrays.items() if k not in (STEP, POSITION)}
        if missing := [name for name in (STEP, POSITION) if name not in arrays]:
            raise StateMismatch(f"checkpoint: {', '.join(missing)} missing; it holds no training")
        self.state.restore(rest)
        self.step, self.position = int(arrays[STEP]), int(arrays[POSITION])
        self._iterator.clear()

    def _updates(self) -> int:
        return int(tf.convert_to_tensor(self.optimizer.iterations.value))

    def _start(self) -> None:
        dataset = training_batches(
            self._source,
            seed=self._seed,
            position=self.position,
            batch_size=self.batch_size,
            failures=self._failures,
        )
        self._iterator.append(iter(dataset))
        graph = self._run.get_concrete_function(self._iterator[0], tf.constant(1)).graph
        refuse_unsaved_random(graph.as_graph_def())
        self._unsaved = [(v, v.numpy()) for v in self.state.others(graph.variables)]

    def _refuse_unsaved(self) -> None:
        """After the first steps: variables that are not saved must not have changed."""
        unsaved, self._unsaved = self._unsaved, []
        for variable, before in unsaved:
            if not np.array_equal(before, variable.numpy()):
                raise TrainingError(
                    f"model: the variable {variable.name!r} changes in training, but no layer "
                    f"holds it as a weight, so it would not be saved and the run could not be "
                    f"continued exactly; make it with add_weight(), or hold a "
                    f"tf.random.Generator as an attribute of its layer"
                )

    def _steps(self, iterator: Iterator[Batch], steps: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[len(self._names)])

        def one(i: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            rate = tf.cast(self.optimizer.learning_rate, tf.float32)
            slices = self.replicas.split(next(iterator), self._accumulate)
            values = self.replicas.total(self.replicas.run(self._replica, slices))
            return i + 1, rows.write(i, tf.concat([values, [rate]], axis=0))

        _, rows = tf.while_loop(lambda i, _: i < steps, one, (tf.constant(0), rows))
        return rows.stack()

    def _replica_step(self, slices: list[Batch]) -> tf.Tensor:
        variables = self.objective.model.trainable_variables
        sums, gradients = [], []
        for fields in slices:
            self._added.begin()
            with tf.GradientTape() as tape:
                values, _ = self.objective(fields, training=True)
                totals = [tf.reduce_sum(v) / self.batch_size for v in values.values()]
                if added := self._added.losses():
                    # Weighted by examples like the rest: those of weights count once in all,
                    # and means over the slice become means over the batch.
                    share = next(iter(fields.values())).shape[0] / self.batch_size
                    totals[0] += tf.add_n(added) * share
            sums.append(tf.stack(totals))
            gradients.append(tape.gradient(totals[0], [v.value for v in variables]))
        self.optimizer.apply(self._clip(summed(averaged(gradients))), variables)
        return sums[0] if len(sums) == 1 else tf.add_n(sums)


class Validator:
    """Reads every example of a validation set once, with the model's variables as they are.

    Args:
        objective: the model (the one in training, or a restored one), loss and metrics.
        source: the examples.
        replicas: as of the model.
        batch_size: examples at once; the last batch may be smaller.
        outputs: names of model outputs to hand out per example.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        source: Source,
        replicas: Replicas,
        batch_size: int,
        outputs: tuple[str, ...] = (),
    ):
        self._objective, self._replicas, self._outputs = objective, replicas, outputs
        self._failures = Failures()
        self._dataset = validation_batches(source, batch_size, self._failures)
        self._batch = tf.function(self._batch_values, autograph=False)
        self._functions: dict[int, Any] = {}
        self.examples = len(source)

    def run(self, sink: Any = None) -> dict[str, float]:
        """Validate.

        Args:
            sink: called with each batch's wanted outputs, dicts of arrays [examples, ...].

        Returns:
            Means over all examples, summed in float64.

        Raises:
            DataError: if the source failed, or gave something else than it declared.
            TrainingError: if an operation failed.
            SpecError: if the model has no output of a wanted name.
        """
        sums: dict[str, float] = {}
        with self._failures.surfacing():
            for batch in self._dataset:
                values, outputs = self._traced(batch)(batch)
                for name, value in values.items():
                    total = float(np.sum(value.numpy(), dtype=np.float64))
                    sums[name] = sums.get(name, 0.0) + total
                if sink is not None and outputs:
                    sink({name: value.numpy() for name, value in outputs.items()})
        return {name: value / self.examples for name, value in sums.items()}

    def _traced(self, batch: Batch) -> Any:
        # There are two sizes, a full batch and the last one; TensorFlow would warn of "retracing".
        size = next(iter(batch.values())).shape[0]
        if size not in self._functions:
            self._functions[size] = self._batch.get_concrete_function(batch)
        return self._functions[size]

    def _batch_values(self, batch: Batch) -> tuple[Batch, Batch]:
        values, outputs = self._replicas.run(self._replica, self._replicas.split(batch))
        joined = self._replicas.joined
        return {k: joined(v) for k, v in values.items()}, {k: joined(v) for k, v in outputs.items()}

    def _replica(self, slices: list[Batch]) -> tuple[Batch, Batch]:
        values, outputs = self._objective(slices[0], training=False)
        missing = [name for name in self._outputs if name not in outputs]
        if missing:
            raise SpecError(
                f"outputs = {missing}: the model has no such outputs; it has {', '.join(outputs)}"
            )
        return values, {name: outputs[name] for name in self._outputs}


def _check_slices(batch_size: int, accumulate: int, devices: int) -> None:
    if batch_size % accumulate:
        raise SpecError(
            f"train.accumulate = {accumulate}: must divide the batch size, which is {batch_size}"
        )
    if batch_size // accumulate < devices:
        raise SpecError(
            f"model.devices: {devices} devices are too many for slices of "
            f"{batch_size // accumulate} examples (batch size {batch_size}, train.accumulate = "
            f"{accumulate}); each needs at least one: use fewer devices or a larger batch"
        )
