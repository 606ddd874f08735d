"""One run on its way through the loop: see `Course`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from pipefit.errors import Diverged, SpecError
from pipefit.records import Best, MetricBlock, Validation
from pipefit.training.loops.schedule import BEST, FINAL, STOPPED, Schedule
from pipefit.training.loops.stopping import EARLY_STOP, SECONDS, EarlyStop
from pipefit.training.state import Arrays
from pipefit.training.trainer import Trainer
from pipefit.training.validator import Validator

#: Weight of the newest call in the running mean of the speed.
_SMOOTHING = 0.2


class EndedEarly(NamedTuple):
    """Why a run is complete before its last step: "early_stop" or "max_time"."""

    kind: str
    step: int
    reason: str


class Actions(Protocol):
    """What a course hands its results to. Each call may raise: the course then fails.

    Everything is handed over in the order of the steps; a `save` comes after the metrics and
    validations of its step.
    """

    def metrics(self, block: MetricBlock) -> None:
        """Metrics of consecutive steps, each step exactly once."""

    def validation(self, validation: Validation) -> None:
        """One validation set's numbers."""

    def save(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        """All state at this step (tensors that will not change) and why it is kept."""

    def progress(self, step: int, loss: float, rate: float) -> None:
        """After every call: the step, the last loss, examples/s (0 as long as it is not known)."""

    def stop_requested(self) -> str | None:
        """Why to checkpoint now and stop; None: go on."""

    def finished(self, early: EndedEarly | None) -> None:
        """The run is complete; called last, unless `failed` is."""

    def failed(self, error: BaseException) -> bool:
        """The run ends with this error; called last, and must not raise.

        Returns:
            Whether the run is to be continued, so that this is not its failure.
        """


class Course:
    """What happens to one run between calls of the inner loop: recorded, validated, saved, ended.

    Args:
        trainer: its training.
        validators: by name of the validation set.
        schedule: the intervals.
        actions: receives everything.
        name: of the run, for messages.
        max_loss: a larger training loss ends the run; None: any finite loss is fine.
        best: metric ("SET/METRIC"), mode and best value so far; None: no best is kept.
        early_stop: ends the run early.
        max_seconds: of training and validating, over all attempts, after which the run is complete;
            only what led to a checkpoint counts, and no waiting for other runs.
        alive: is called after every piece of work, so that a watchdog sees that it goes on.

    Attributes:
        error: why it failed, if it did.
        early: how it ended early, if it did.
    """

    def __init__(
        self,
        *,
        trainer: Trainer,
        validators: Mapping[str, Validator],
        schedule: Schedule,
        actions: Actions,
        name: str = "",
        max_loss: float | None = None,
        best: Best | None = None,
        early_stop: EarlyStop | None = None,
        max_seconds: float | None = None,
        alive: Callable[[], None] = lambda: None,
    ):
        self.trainer, self.name, self.best = trainer, name, best
        self.error: BaseException | None = None
        self.early: EndedEarly | None = None
        self.steps = schedule.steps
        self._validators, self._schedule, self._actions = validators, schedule, actions
        self._max_loss = math.inf if max_loss is None else max_loss
        self._early_stop, self._max_seconds = early_stop, max_seconds
        self._alive = alive
        self._spent = 0.0
        self._pending: list[Arrays] = []
        self._saved = trainer.step
        self._rate, self._calls = 0.0, 0
        self._closed = False

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Continue from what `save` was given. Raises StateMismatch."""
        own = {k: v for k, v in arrays.items() if k == SECONDS or k.startswith(EARLY_STOP)}
        self.trainer.restore({k: v for k, v in arrays.items() if k not in own})
        self._saved = self.trainer.step
        if self._early_stop is not None and self._early_stop.key in own:
            self._early_stop.restore(own[self._early_stop.key])
        self._spent = float(own.get(SECONDS, 0.0))

    def goes_on(self) -> bool:
        """Whether there is more to do; a run that is complete is closed here."""
        if self._closed:
            return False
        if self.trainer.step >= self.steps or self._ends_early():
            self.close(None)
        return not self._closed

    def next_boundary(self) -> int:
        """The first step after the current one at which something may be due."""
        return self._schedule.next_boundary(self.trainer.step)

    def asked_to_stop(self) -> str | None:
        """Why to checkpoint now and stop; None: go on."""
        return self._actions.stop_requested()

    def take(self, rows: Arrays, seconds: float) -> None:
        """Take in what a call of the inner loop gave, and do what is due at its last step.

        Raises:
            Diverged: naming step, loss and limit, or that float16 cannot hold the gradients; the
                state is not saved.
        """
        begin = time.monotonic()
        loss = self._record(rows, seconds)
        self.trainer.updates.check()
        step = self.trainer.step
        kinds = self._schedule.checkpoint_kinds(step)
        if self._schedule.validates(step) and self._validate(step):
            kinds |= {BEST}
        # Changes here only, so that a run never ends early at a step that is not saved.
        self._spent += seconds + time.monotonic() - begin
        if self._ends_early():
            kinds |= {FINAL}
        if kinds:
            self._save(step, kinds)
        self._actions.progress(step, loss, self._rate)

    def save_to_stop(self) -> None:
        """Save the current step, if it is not saved."""
        if self.trainer.step > self._saved:
            self._save(self.trainer.step, frozenset({STOPPED}))

    def close(self, error: BaseException | None) -> None:
        """Tell how the run ended, once."""
        if self._closed:
            return
        self._closed = True
        if error is None:
            try:
                self._actions.finished(self.early)
            except Exception as late:
                error = late
        if error is not None and not self._actions.failed(error):
            self.error = error

    def _ends_early(self) -> bool:
        if self.early is None and self.trainer.step > 0:
            reason = self._early_stop.exhausted if self._early_stop else None
            if reason:
                self.early = EndedEarly("early_stop", self.trainer.step, reason)
            elif self._max_seconds is not None and self._spent >= self._max_seconds:
                reason = f"trained for {self._spent:.0f} s, max_time is {self._max_seconds:g} s"
                self.early = EndedEarly("max_time", self.trainer.step, reason)
        return self.early is not None

    def _record(self, rows: Arrays, seconds: float) -> float:
        """Hand on the numbers; the last loss."""
        steps = len(rows["loss"])
        first = self.trainer.step - steps + 1
        self._note_rate(steps * self.trainer.batch_size / max(seconds, 1e-9))
        bad = np.flatnonzero(~(rows["loss"] <= self._max_loss) | ~np.isfinite(rows["loss"]))
        if bad.size:
            count = int(bad[0]) + 1
            self._pending.append({name: values[:count] for name, values in rows.items()})
            self._flush(first + count - 1)
            raise self._diverged(first + count - 1, float(rows["loss"][bad[0]]))
        self._pending.append(rows)
        if self._schedule.stores_metrics(self.trainer.step):
            self._flush(self.trainer.step)
        return float(rows["loss"][-1])

    def _note_rate(self, rate: float) -> None:
        if self._calls == 1:
            self._rate = rate
        elif self._calls > 1:  # the first call is the one that compiles
            self._rate += _SMOOTHING * (rate - self._rate)
        self._calls += 1

    def _flush(self, last: int) -> None:
        if self._pending:
            names = list(self._pending[0])
            columns = {n: np.concatenate([rows[n] for rows in self._pending]) for n in names}
            self._pending = []
            self._actions.metrics(MetricBlock(last - len(columns["loss"]) + 1, columns))

    def _diverged(self, step: int, loss: float) -> Diverged:
        rule = f"above max_loss = {self._max_loss}" if math.isfinite(loss) else "not finite"
        return Diverged(
            f"step {step}: loss = {loss} is {rule}; checkpoints before it are kept: try a "
            f"smaller learning rate or clip under another name",
            step,
        )

    def _validate(self, step: int) -> bool:
        """Validate all sets; whether this is the best so far."""
        numbers = {}
        for name, validator in self._validators.items():
            begin = time.perf_counter()
            found = validator.run(alive=self._alive)
            seconds = time.perf_counter() - begin
            self._actions.validation(
                Validation(
                    name, step, found.metrics, found.examples, seconds=seconds, values=found.values
                )
            )
            numbers.update({f"{name}/{metric}": v for metric, v in found.metrics.items()})
        if self._early_stop is not None:
            self._early_stop.observe(numbers)
        return self._improves(step, numbers)

    def _improves(self, step: int, numbers: Mapping[str, float]) -> bool:
        if self.best is None:
            return False
        if self.best.metric not in numbers:
            raise SpecError(
                f"save.best.metric = {self.best.metric!r}: no such number; "
                f"there are {', '.join(numbers)}"
            )
        value = numbers[self.best.metric]
        if not self.best.improved_by(value):
            return False
        self.best = Best(self.best.metric, self.best.mode, value, step)
        return True

    def _save(self, step: int, kinds: frozenset[str]) -> None:
        # Metrics first: once a checkpoint is committed its steps are never run again.
        self._flush(step)
        known = self.best if self.best is not None and math.isfinite(self.best.value) else None
        snapshot = self.trainer.snapshot()
        if self._early_stop is not None:
            snapshot[self._early_stop.key] = tf.constant(self._early_stop.state())
        if self._max_seconds is not None:
            snapshot[SECONDS] = tf.constant(self._spent, tf.float64)
        self._actions.save(step, snapshot, kinds, known)
        self._saved = step
