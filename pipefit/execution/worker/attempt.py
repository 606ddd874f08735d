"""One process's ownership of one run: see `Attempt`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipefit.errors import (
    Diverged,
    Interrupted,
    LeaseLost,
    PipefitError,
    StoreError,
    without_passwords,
)
from pipefit.execution import spool
from pipefit.execution.keeping import planned
from pipefit.execution.reporter import Reporter, RunLog
from pipefit.execution.spool import End
from pipefit.execution.worker.results import Results, ShouldStop, is_away
from pipefit.records import (
    NOTHING,
    Best,
    CheckpointInfo,
    Ended,
    MetricBlock,
    RunOrder,
    RunState,
    Validation,
)
from pipefit.spec import Spec
from pipefit.store import AttemptKey, RunWriter, this_process
from pipefit.store.newest import newest_whole

if TYPE_CHECKING:
    from pipefit.training import Course, EndedEarly

logger = logging.getLogger("pipefit.run")

#: Progress goes to whoever gave the order at most this often, and to the database with the lease.
_PROGRESS_SECONDS = 0.25


class Attempt:
    """What a course hands over (`pipefit.training.Actions`), written by one background thread.

        acquired -> restore the newest good checkpoint -> begin
        the lease is renewed by a thread of its own meanwhile
        drain -> end(FINISHED | FAILED | INTERRUPTED)
        or, if the database stays away: all that was not written -> spool

    Args:
        spec: of the run, with one model.
        order: with which it was acquired.
        writer: the owner's handle.
        reporter: is told how far it is.
        should_stop: says why to stop.
        store: the address of the database, for people.
        alone: whether no other run is trained in this process.
        rollbacks: what the run's history says about how it was rolled back before.

    Attributes:
        to_repeat: it has ended, but the run is to be continued by another attempt.
        spooled: says that the database is away and where the rest of it is, if that is why it has
            ended; what else has ended it is told as it is.
    """

    def __init__(
        self,
        spec: Spec,
        order: RunOrder,
        writer: RunWriter,
        reporter: Reporter,
        should_stop: ShouldStop,
        *,
        store: str = "the database",
        alone: bool = True,
        rollbacks: Sequence[Mapping[str, Any]] = (),
    ):
        self.spec, self.writer = spec, writer
        self.to_repeat = False
        self.spooled: StoreError | None = None
        self._order, self._reporter, self._should_stop = order, reporter, should_stop
        self._store, self._alone = store, alone
        self._log = RunLog(logger, "" if alone else spec.name)
        self._rollbacks = rollbacks
        self._progress: dict[str, Any] = {}
        self._step: int | None = None
        self._last_progress = 0.0
        self._open, self._begun = True, False
        self._end: End | None = None
        self._course: Course | None = None
        recent = spec.save.recent_keep
        self.results = Results(
            writer, should_stop, lambda: self._progress or None, recent, self._log
        )

    @property
    def rate_scale(self) -> float:
        """What the rollbacks have made of the learning rates; part of the run from then on."""
        return math.prod(float(event["scale"]) for event in self._rollbacks)

    def restore(self, course: Course) -> int:
        """Continue from the newest checkpoint that is whole; -1 if there is none at all.

        Raises:
            CheckpointCorrupt: there are some, but none is whole, or, with `save.strict`, the newest
                is not.
            StateMismatch: it is not one of this model.
        """
        self._course = course
        patiently = self.results.patience
        checkpoints = self._not_rolled_back(patiently(self.writer.checkpoints))
        if not checkpoints:
            return NOTHING
        checkpoint, arrays = newest_whole(
            self.spec.name,
            checkpoints,
            lambda chosen: patiently(lambda: self.writer.read_checkpoint(chosen)),
            strict=self.spec.save.strict,
            log=self._log,
        )
        course.restore(arrays)
        self._log.info("continuing after step %d of %d", checkpoint.step, self.spec.train.steps)
        return checkpoint.step

    def begin(self, start: int) -> Best | None:
        """Continue after this step; the best so far."""
        patiently = self.results.patience
        patiently(lambda: self.writer.begin(start))
        self._begun = True
        self._note_step(max(start, 0))
        return patiently(self.writer.best) if start != NOTHING else None

    def describe(self, model: Mapping[str, Any], artifacts: Mapping[str, bytes]) -> None:
        """Store what the model and the program are."""
        self.results.patience(lambda: self.writer.describe(model, artifacts))

    # What the course hands over, on the training thread.

    def metrics(self, block: MetricBlock) -> None:
        """See `pipefit.training.Actions`."""
        self.results.metrics(block)

    def validation(self, validation: Validation) -> None:
        """See `pipefit.training.Actions`."""
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in validation.metrics.items())
        self._note_step(validation.step)
        self._log.info("%s: %s", validation.name, numbers)
        self.results.validation(validation)

    def save(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        """See `pipefit.training.Actions`."""
        self.results.save(step, snapshot, kinds, best)

    def progress(self, step: int, loss: float, rate: float) -> None:
        """See `pipefit.training.Actions`."""
        self._note_step(step)
        steps = self.spec.train.steps
        examples_left = (steps - step) * self.spec.train_data.batch_size
        self._progress = {
            "step": step,
            "steps": steps,
            "loss": loss,
            "rate": rate,
            "seconds_left": examples_left / rate if rate else None,
        }
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_SECONDS or step == steps:
            self._last_progress = now
            self._reporter.progress({**self._progress, "run": self.spec.name})

    def stop_requested(self) -> str | None:
        """See `pipefit.training.Actions`."""
        try:
            self.results.check()
        except StoreError as error:
            if is_away(error) and self._course is not None and self._begun:
                # Here nothing of this step is left to be done, so it can be continued from.
                self._course.save_to_stop()
            raise
        return self._should_stop()

    def finished(self, early: EndedEarly | None) -> None:
        """See `pipefit.training.Actions`."""
        ended = None
        if early:
            self._log.info("complete at step %d: %s", early.step, early.reason)
            rule = self._order.stop_rules[early.kind]
            ended = Ended(early.kind, rule, early.step, early.reason)
        tail = self._reporter.tail()
        self._end = End(RunState.FINISHED, None, self._step, tail, ended)
        self.results.finish(self._end)
        self._close()

    def failed(self, error: BaseException) -> bool:
        """Write what is still queued, then say how the attempt ended; again does nothing.

        What a database that is away does not take goes to the spool.

        Returns:
            Whether another attempt is to continue the run.
        """
        if not self._open:
            return self.to_repeat
        if isinstance(error, Diverged) and error.step is not None:
            self._note_step(error.step)
        if not isinstance(error, LeaseLost):
            self._write_rest(error)
        self._close()
        if not (self._alone or self.to_repeat or isinstance(error, Interrupted)):
            ours = isinstance(error, PipefitError)
            self._log.error("%s", self.spooled or error, exc_info=None if ours else error)
        return self.to_repeat

    def give_up(self, error: PipefitError) -> None:
        """Say that the attempt failed, while its thread hangs; nothing that is queued is written.

        It may have ended before: then nothing is changed.
        """
        reason, _, details = str(error).partition("\n")
        try:
            self.writer.end(
                RunState.FAILED, reason, self._step, f"{self._reporter.tail()}\n{details}"
            )
        except StoreError as late:
            self._log.error("the end of the attempt could not be written: %s", late)

    def _close(self) -> None:
        self._open, self._course = False, None
        self.results.close()
        if not self._alone and self._progress:
            self._reporter.progress({**self._progress, "run": self.spec.name, "over": True})

    def _note_step(self, step: int) -> None:
        self._step = self._log.step = step
        if self._alone:
            self._reporter.step = step

    def _write_rest(self, error: BaseException) -> None:
        away = error if is_away(error) else None
        try:
            self.results.finish(None)
        except BaseException as late:
            if is_away(late):
                away = away or late
            elif late is not error:
                self._log.error("not all could be written: %s", late)
        if away is None:
            away = self._write_end(error)
        if isinstance(away, StoreError) and self._begun:
            self._spool(error, away)

    def _write_end(self, error: BaseException) -> BaseException | None:
        """The error, if the database is away."""
        self._end = None
        try:
            self.results.soon(lambda: self._end_with(error))
        except StoreError as late:
            self._log.error("the end of the attempt could not be written: %s", late)
            return late if is_away(late) else None
        return None

    def _end_with(self, error: BaseException) -> None:
        self.to_repeat = self._is_to_repeat(error)
        self._end = self._ended_by(error, going_on=self.to_repeat)
        spool.write_entry(self.writer, self._end)

    def _ended_by(self, error: BaseException, *, going_on: bool) -> End:
        ours = isinstance(error, PipefitError)
        reason = str(error) if ours else f"{type(error).__name__}: {error}"
        going_on = going_on or isinstance(error, Interrupted)
        state = RunState.INTERRUPTED if going_on else RunState.FAILED
        return End(state, without_passwords(reason), self._step, self._reporter.tail())

    def _spool(self, error: BaseException, away: StoreError) -> None:
        """Keep what was not written, so that it can be written when the database is there again."""
        self.results.close()
        self.to_repeat = False
        stopped = is_away(error) and bool(self._should_stop())
        end = self._end or self._ended_by(error, going_on=stopped)
        run = self._order
        key = AttemptKey(run.collection, run.name, run.identity, self.writer.fence, this_process())
        rest = (entry for entry in self.results.rest() if not isinstance(entry, End))
        try:
            folder = spool.write(self._store, key, self.writer.ttl, [*rest, end])
            told = f"what was not written is kept in {folder}; the same command writes it and "
            told += f"continues, or write it with: pipefit replay {folder}"
        except StoreError as lost:
            told = f"and what was not written is lost: {lost}; make room, and type the same "
            told += "command again: it continues from the newest checkpoint in the database"
        if is_away(error) or isinstance(error, Interrupted):
            self.spooled = type(away)(f"{away}; {told}")
            self.spooled.__cause__ = error
        else:
            self._log.error("%s; %s", away, told)

    def _is_to_repeat(self, error: BaseException) -> bool:
        from pipefit.training import CallFailed

        return isinstance(error, CallFailed) or (
            isinstance(error, Diverged) and self._rolls_back(error)
        )

    def _rolls_back(self, error: Diverged) -> bool:
        """Write to the history that the run goes back to its last checkpoint, if it is to.

        From then on it is so, whenever this process is killed: the run's next attempt reads it.
        """
        rule = self.spec.train.rollback
        if rule is None:
            return False
        done = len(self._rollbacks)
        if done >= rule.times:
            self._log.error("diverged again after %d rollbacks (train.rollback.times)", done)
            return False
        checkpoints = planned(self.writer.checkpoints())
        back = checkpoints[0].step if checkpoints else 0
        event = {"event": "rollback", "from": self._step, "to": back, "scale": rule.scale}
        self.writer.note({**event, "reason": str(error)})
        self._log.warning(
            "%s; going back to step %d with %g times the learning rates (rollback %d of %d)",
            error,
            back,
            self.rate_scale * rule.scale,
            done + 1,
            rule.times,
        )
        return True

    def _not_rolled_back(self, checkpoints: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
        """Without those that came after the step to which the run was rolled back since."""
        if not self._rollbacks:
            return list(checkpoints)
        last = self._rollbacks[-1]
        return [c for c in checkpoints if c.fence > last["fence"] or c.step <= last["to"]]
