"""The outer loop: what happens between calls of the inner one. See `Loop`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pipefit.errors import Diverged, Interrupted, SpecError
from pipefit.records import Best, MetricBlock, Validation
from pipefit.training.schedule import BEST, RECENT, Pace, Schedule
from pipefit.training.trainer import Trainer, Validator

#: Weight of the newest call in the running mean of the speed.
_SMOOTHING = 0.2


class Actions(Protocol):
    """What the loop hands its results to. Each call may raise: the training then stops there.

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

    def stop_requested(self) -> bool:
        """Whether to checkpoint now and stop."""


class Loop:
    """Trains up to `schedule.steps`, validating, recording and saving on the way.

        while step < steps:
            rows = trainer.run(steps until something is due)
            hand over metrics; stop at a loss that is not finite or too large
            if due: validate; is it the best?
            if due, best or asked to stop: save
            if asked to stop: raise Interrupted

    Args:
        trainer: restored to where to continue.
        validators: by name of the validation set.
        schedule: the intervals.
        actions: receives everything.
        max_loss: a larger training loss ends the run; None: any finite loss is fine.
        best: metric ("SET/METRIC"), mode and best value so far; None: no best is kept.
    """

    def __init__(
        self,
        *,
        trainer: Trainer,
        validators: Mapping[str, Validator],
        schedule: Schedule,
        actions: Actions,
        max_loss: float | None = None,
        best: Best | None = None,
    ):
        self.trainer = trainer
        self.best = best
        self._validators, self._schedule, self._actions = validators, schedule, actions
        self._max_loss = math.inf if max_loss is None else max_loss
        self._pending: list[Mapping[str, np.ndarray[Any, Any]]] = []
        self._saved = trainer.step
        self._pace = Pace()
        self._rate = 0.0
        self._calls = 0

    def run(self) -> None:
        """Train to the end.

        Raises:
            Interrupted: it was asked to stop; the current step is saved.
            Diverged: naming step, loss and limit; the state is not saved.
        """
        while self.trainer.step < self._schedule.steps:
            if self._actions.stop_requested():
                self._interrupt()
            loss = self._advance()
            step = self.trainer.step
            improved = self._schedule.validates(step) and self._validate(step)
            kinds = self._schedule.checkpoint_kinds(step)
            if improved:
                kinds |= {BEST}
            if kinds:
                self._save(step, kinds)
            self._actions.progress(step, loss, self._rate)

    def _advance(self) -> float:
        first = self.trainer.step + 1
        boundary = self._schedule.next_boundary(self.trainer.step)
        begin = time.perf_counter()
        rows = self.trainer.run(min(boundary - first + 1, self._pace.limit))
        seconds = time.perf_counter() - begin
        steps = len(rows["loss"])
        self._pace.measured(steps, seconds)
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
            f"smaller learning rate or clip under another name"
        )

    def _validate(self, step: int) -> bool:
        values = {}
        for name, validator in self._validators.items():
            begin = time.perf_counter()
            metrics = validator.run()
            seconds = time.perf_counter() - begin
            self._actions.validation(
                Validation(name, step, metrics, validator.examples, seconds=seconds)
            )
            values.update({f"{name}/{metric}": value for metric, value in metrics.items()})
        return self._improves(step, values)

    def _improves(self, step: int, values: Mapping[str, float]) -> bool:
        if self.best is None:
            return False
        if self.best.metric not in values:
            raise SpecError(
                f"save.best.metric = {self.best.metric!r}: no such number; "
                f"there are {', '.join(values)}"
            )
        value = values[self.best.metric]
        if not self.best.improved_by(value):
            return False
        self.best = Best(self.best.metric, self.best.mode, value, step)
        return True

    def _save(self, step: int, kinds: frozenset[str]) -> None:
        # Metrics first: once a checkpoint is committed its steps are never run again.
        self._flush(step)
        known = self.best if self.best is not None and math.isfinite(self.best.value) else None
        self._actions.save(step, self.trainer.snapshot(), kinds, known)
        self._saved = step

    def _interrupt(self) -> None:
        step = self.trainer.step
        if step != self._saved:
            self._save(step, frozenset({RECENT}))
        raise Interrupted(f"stopped at step {step} of {self._schedule.steps} as asked")
