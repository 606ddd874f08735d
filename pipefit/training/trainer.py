"""The inner loop: a number of steps goes in, arrays of what they gave come out. See `Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.errors import SpecError, StateMismatch
from pipefit.records import TIMING
from pipefit.training.added import AddedLosses
from pipefit.training.feeding.pipeline import Feed
from pipefit.training.objective import Forward, Objective
from pipefit.training.replicas.devices import Batch, Replicas, Slice
from pipefit.training.replicas.meeting import refuse_different, refuse_unweighted, without_meeting
from pipefit.training.replicas.normalisation import synchronise, training_statistics
from pipefit.training.replicas.randomness import settle, spread
from pipefit.training.state import Arrays, State
from pipefit.training.targets import Targets, refuse_taken
from pipefit.training.updating.gradients import averaged, summed
from pipefit.training.updating.updates import Updates

if TYPE_CHECKING:
    from pipefit.training.loops.own_loops import TrainLoop

#: Where a snapshot says how far the training is.
STEP, POSITION = "run/step", "run/position"
#: What may be recorded on request: the L2 norms of every variable's gradient and update.
RECORDS = frozenset({"gradient_norms", "update_norms"})


class Trainer:
    """Optimizer updates of one model on its devices; knows nothing of files, databases, intervals.

        build model, updates, feed
        run(n):   repeat n times inside one tf.function:
                      batch = next(iterator)                   # continuing at `position`
                      every device: forward, loss, gradient of its slice of the batch
                      sum over devices -> clip -> apply
                  return every step's numbers

    `pipefit.training.loops.together.Together` repeats it, for one trainer or several at once.

    Args:
        objective: model (built), loss and metrics.
        updates: how gradients become updates; the model and it were made in the replicas' scope.
        feed: the training data, the seed of its order, and the examples per update.
        replicas: the devices.
        accumulate: slices of the batch whose gradients are averaged before the update.
        jit_compile: compile forward and backward pass, and the update, with XLA.
        record: which of `RECORDS` are recorded.
        targets: further values of each step.
        loop: replaces the repeating; see `pipefit.training.loops.own_loops`.
        deterministic: all ops are, so what an own loop does can be compared with doing it again.

    Raises:
        SpecError: if the batch cannot be split as asked, or a layer cannot be compiled.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        updates: Updates,
        feed: Feed,
        replicas: Replicas,
        accumulate: int = 1,
        jit_compile: bool = False,
        record: frozenset[str] = frozenset(),
        targets: Targets | None = None,
        loop: TrainLoop | None = None,
        deterministic: bool = True,
    ):
        if feed.batch_size % accumulate:
            below = feed.batch_size // accumulate * accumulate
            sizes = [str(size) for size in (below, below + accumulate) if size]
            raise SpecError(
                f"train.accumulate = {accumulate}: must divide the batch size, which is "
                f"{feed.batch_size}; nearest that work: {' and '.join(sizes)}"
            )
        self.objective, self.updates = objective, updates
        self.feed, self.replicas = feed, replicas
        self.batch_size = feed.batch_size
        self.targets = targets or Targets({}, "train")
        self.loop, self.deterministic = loop, deterministic
        self.state = State(objective.model, updates)
        self.step = 0
        self.position = 0
        self._accumulate, self._record = accumulate, record
        self._added = AddedLosses(objective.model, replicas.count)
        self.columns = ("loss", *objective.metrics, *updates.rate_columns, *self._norm_columns())
        compiled = _compiled if jit_compile else _as_it_is
        apart = jit_compile and replicas.count > 1
        self._gradients = compiled(
            without_meeting(self._slice_gradients) if apart else self._slice_gradients
        )
        # Over several devices an update calls all of them, which XLA cannot.
        self._apply = compiled(self._update) if replicas.count == 1 else self._update
        self._alone: Any = None
        self._checked = False
        _share(objective.model, replicas.sizes(feed.batch_size // accumulate), jit_compile)

    def run(self, steps: int) -> Arrays:
        """Do this many updates of this model alone.

        Args:
            steps: at least 1.

        Returns:
            Arrays of shape [steps, ...]: loss (mean over the batch, with regularisers), the
            metrics (means over the batch), the learning rates that the step used, norms if they
            were asked for, targets, and what was measured (`pipefit.records.TIMING`).

        Raises:
            DataError: if the source failed, ended, or gave something else than it declared.
            TrainingError: if an operation failed, the updates done are not as many, or the model
                has state that cannot be saved.
        """
        from pipefit.training.loops.together import Together

        self._alone = self._alone or Together()
        rows: list[Arrays] = self._alone.run([self], steps)
        return rows[0]

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

    def update(
        self, batch: Batch, forward: Forward | None = None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """One update, inside of a tf.function.

        Args:
            batch: tensors of shape [batch_size, ...].
            forward: what gives the outputs in place of calling the model.

        Returns:
            The values of `columns`, float32 [columns], and of the targets.
        """
        rates = self.updates.rates()
        slices = self.replicas.split(batch, self._accumulate)
        sums, gradients, outputs = self.replicas.run(
            lambda slices: self._gradients(slices, forward), slices
        )
        norms = self._updated(self.replicas.call(_sum_over_devices, gradients))
        if self.replicas.count > 1:
            settle(self.objective.model)
        scalars = tf.concat([self.replicas.total(sums), tf.stack(rates), norms], axis=0)
        further = self.targets(batch, self._whole(outputs, slices))
        refuse_taken((*self.columns, *TIMING), further)
        return scalars, further

    def check_copies(self) -> None:
        """Once after the first steps: raises TrainingError for statistics of single devices."""
        if not self._checked:
            refuse_different(self.objective.model)
            self._checked = True

    def _norm_columns(self) -> list[str]:
        paths = [variable.path for variable in self.updates.trainable]
        kinds = [k for k in ("gradient_norm", "update_norm") if f"{k}s" in self._record]
        return [f"{kind}/{path}" for kind in kinds for path in paths]

    def _slice_gradients(
        self, slices: list[Slice], forward: Forward | None
    ) -> tuple[tf.Tensor, list[Any], list[Batch]]:
        """On one device: sums of loss and metrics, gradients, and outputs if they are wanted."""
        variables = [v.value for v in self.updates.trainable]
        sums, gradients, kept = [], [], []
        for part in slices:
            self._added.begin()
            with tf.GradientTape() as tape:
                values, outputs = self.objective(*part, training=True, forward=forward)
                totals = [tf.reduce_sum(v) / self.batch_size for v in values.values()]
                if added := self._added.losses():
                    # Weighted by examples like the rest: those of weights count once in all,
                    # and means over the slice become means over the batch.
                    share = part.examples / self.batch_size
                    totals[0] += tf.add_n([tf.cast(loss, tf.float32) for loss in added]) * share
                goal = self.updates.scaled(totals[0])
            sums.append(tf.stack(totals))
            gradients.append(tape.gradient(goal, variables))
            kept.append(outputs if self.targets else {})
        return sums[0] if len(sums) == 1 else tf.add_n(sums), averaged(gradients), kept

    def _updated(self, gradients: Any) -> tf.Tensor:
        """Apply summed gradients; float32 norms, none if they were not asked for."""
        gradients = self.replicas.call(self.updates.unscaled, gradients)
        if not self.updates.loss_scaling:
            return self.replicas.first(self.replicas.call(self._apply, gradients))
        # The condition stands around the devices: inside of one, they could not meet to update.
        finite = self.updates.finite(self.replicas.firsts(gradients))
        norms = tf.cond(
            finite,
            lambda: self.replicas.first(self.replicas.call(self._apply, gradients)),
            lambda: tf.fill([len(self._norm_columns())], float("nan")),
        )
        self.updates.rescale(finite)
        return norms

    def _update(self, gradients: list[Any]) -> tf.Tensor:
        variables = [v.value for v in self.updates.trainable]
        norms = []
        if "gradient_norms" in self._record:
            norms += [_norm(0.0 if g is None else g) for g in gradients]
        before = [tf.identity(v) for v in variables] if "update_norms" in self._record else []
        self.updates.apply(gradients)
        norms += [_norm(v - old) for v, old in zip(variables, before, strict=False)]
        return tf.stack(norms) if norms else tf.zeros([0])

    def _whole(self, outputs: Any, slices: list[list[Slice]]) -> Batch:
        """The outputs of the whole batch, in its order, from those of all slices."""
        if not self.targets:
            return {}
        if self.replicas.count == 1 and self._accumulate == 1:
            return dict(outputs[0])
        # All slices of the first device are of this size.
        examples = slices[0][0].examples
        parts = [
            self.replicas.joined_rows(part, examples, "train.targets: output") for part in outputs
        ]
        return {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}


def _share(model: keras.Model, sizes: Sequence[int], jit_compile: bool) -> None:
    """Make a model's layers work on slices of the batch as they would on the whole."""
    synchronise(model)
    if len(sizes) == 1:
        return
    spread(model)
    refuse_unweighted(model, sizes)
    if jit_compile and (layers := training_statistics(model)):
        raise SpecError(
            f"train.jit_compile = true: works on one device only with batch normalisation, whose "
            f"statistics the {len(sizes)} devices exchange amid the pass (layer {layers[0]!r}); "
            f"leave it out, set model.devices = 1, or normalise otherwise"
        )


def _sum_over_devices(gradients: list[Any]) -> list[Any]:
    return summed(gradients)


def _norm(value: Any) -> tf.Tensor:
    return tf.norm(tf.cast(tf.convert_to_tensor(value), tf.float32))


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # No autograph, as in Keras: it would bury the message of an error in users' code.
    compiled: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return compiled
