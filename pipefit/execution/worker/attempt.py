"""One process's ownership of one run: see `Attempt`."""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from pipefit.errors import (
    CheckpointCorrupt,
    Diverged,
    Interrupted,
    LeaseLost,
    PipefitError,
    StoreError,
    StoreUnavailable,
)
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.keeping import keep
from pipefit.execution.reporter import Reporter, RunLog
from pipefit.execution.writer import BackgroundWriter, joined
from pipefit.records import NOTHING, Best, Ended, MetricBlock, RunOrder, RunState, Validation
from pipefit.spec import Spec
from pipefit.store import RunWriter

if TYPE_CHECKING:
    from pipefit.training import Course, EndedEarly

logger = logging.getLogger("pipefit.run")

#: Says why to stop; None: go on.
ShouldStop = Callable[[], str | None]

#: Progress goes to whoever gave the order at most this often, and to the database with the lease.
_PROGRESS_SECONDS = 0.25
#: Blocks of metrics that come faster than this are written together.
_METRICS_SECONDS = 0.5
#: Whenever so many bytes of values have come, training waits until they are written: a database
#: that is slow or away must not fill the memory.
_METRICS_BYTES = 256 * 2**20
#: Between tries to reach a database that is away.
_RETRY_SECONDS = 1.0


class Attempt:
    """What a course hands over (`pipefit.training.Actions`), written by one background thread.

        acquired -> restore the newest good checkpoint -> begin
        the lease is renewed by a thread of its own meanwhile
        drain -> end(FINISHED | FAILED | INTERRUPTED)

    Args:
        spec: of the run, with one model.
        order: with which it was acquired.
        writer: the owner's handle.
        reporter: is told how far it is.
        should_stop: says why to stop.
        alone: whether no other run is trained in this process.
        rollbacks: how often the run was rolled back before.

    Attributes:
        has_failed: it has ended otherwise than by being complete.
        to_repeat: it ended by a rollback: the run is to be continued by another attempt.
    """

    def __init__(
        self,
        spec: Spec,
        order: RunOrder,
        writer: RunWriter,
        reporter: Reporter,
        should_stop: ShouldStop,
        alone: bool = True,
        rollbacks: int = 0,
    ):
        self.spec, self.writer = spec, writer
        self.to_repeat = False
        self.trainable: frozenset[str] = frozenset()
        self._order, self._reporter, self._should_stop = order, reporter, should_stop
        self._alone = alone
        self._log = RunLog(logger, "" if alone else spec.name)
        self._rollbacks = rollbacks
        self.background = BackgroundWriter()
        self._blocks: deque[MetricBlock] = deque()
        self._bytes = 0
        self._progress: dict[str, Any] = {}
        self._step: int | None = None
        self._last_progress = self._last_metrics = 0.0
        self._open = True
        self.has_failed = False
        self._heartbeat = Heartbeat(
            writer, lambda: self._progress or None, self.background.fail
        ).__enter__()

    def restore(self, course: Course) -> int:
        """Continue from the newest checkpoint that is whole; -1 if there is none at all.

        Raises:
            CheckpointCorrupt: there are some, but none is whole.
            StateMismatch: it is not one of this model.
        """
        checkpoints = self.writer.checkpoints()
        for checkpoint in checkpoints:
            try:
                arrays = self.writer.read_checkpoint(checkpoint)
            except CheckpointCorrupt as error:
                self._log.warning("%s; falling back to the one before", error)
                continue
            course.restore(arrays)
            steps = self.spec.train.steps
            self._log.info("continuing after step %d of %d", checkpoint.step, steps)
            return checkpoint.step
        if checkpoints:
            raise CheckpointCorrupt(
                f"run {self.spec.name!r}: none of its {len(checkpoints)} checkpoints can be read, "
                f"so it cannot continue; restore the database, or choose another name"
            )
        return NOTHING

    def begin(self, start: int) -> Best | None:
        """Continue after this step; the best so far."""
        self.writer.begin(start)
        self._note_step(max(start, 0))
        return self.writer.best() if start != NOTHING else None

    # What the course hands over, on the training thread.

    def metrics(self, block: MetricBlock) -> None:
        """See `pipefit.training.Actions`."""
        self._blocks.append(block)
        self._bytes += sum(values.nbytes for values in block.columns.values())
        if self._bytes >= _METRICS_BYTES:
            self._bytes = 0
            self._send_metrics()
            self.background.drain()
        elif time.monotonic() - self._last_metrics >= _METRICS_SECONDS:
            self._send_metrics()

    def validation(self, validation: Validation) -> None:
        """See `pipefit.training.Actions`."""
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in validation.metrics.items())
        self._note_step(validation.step)
        self._log.info("%s: %s", validation.name, numbers)
        write = functools.partial(self.writer.write_validation, validation)
        self.background.put(lambda: self.patiently(write))

    def save(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        """See `pipefit.training.Actions`."""
        self._send_metrics()  # once a checkpoint is committed, its steps are never run again
        self.background.put_heavy(lambda: self._commit(step, snapshot, kinds, best))

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
        self.background.check()
        return self._should_stop()

    def finished(self, early: EndedEarly | None) -> None:
        """See `pipefit.training.Actions`."""
        self._send_metrics()
        self.background.close()
        ended = None
        if early:
            self._log.info("complete at step %d: %s", early.step, early.reason)
            rule = self._order.stop_rules[early.kind]
            ended = Ended(early.kind, rule, early.step, early.reason)
        tail = self._reporter.tail()
        self.patiently(
            lambda: self.writer.end(RunState.FINISHED, None, self._step, tail, ended=ended)
        )
        self._close()

    def failed(self, error: BaseException) -> None:
        """Write what is still queued, then say how the attempt ended; again does nothing."""
        if not self._open:
            return
        self.has_failed = True
        if not self._alone and not isinstance(error, Interrupted):
            self._log.error("%s", error)
        if not isinstance(error, LeaseLost):
            self._write_rest(error)
            self._write_end(error)
        self._close()

    def give_up(self, error: PipefitError) -> None:
        """Say that the attempt failed, while its thread hangs; nothing that is queued is written."""
        try:
            self.writer.end(RunState.FAILED, str(error), self._step, self._reporter.tail())
        except StoreError as late:
            self._log.error("the end of the attempt could not be written: %s", late)

    def patiently(self, write: Callable[[], object]) -> None:
        """Do a write, again while the database is away, for as long as a lease lasts."""
        long_enough = stop_after_delay(self.writer.ttl)
        Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            # Who asks to stop has no time to wait for a database.
            stop=lambda state: bool(self._should_stop()) or long_enough(state),
            wait=wait_fixed(_RETRY_SECONDS),
            before_sleep=_warn_of_retry,
            reraise=True,
        )(write)

    def _close(self) -> None:
        self._open = False
        self._heartbeat.__exit__()
        if not self._alone and self._progress:
            self._reporter.progress({**self._progress, "run": self.spec.name, "over": True})

    def _note_step(self, step: int) -> None:
        self._step = self._log.step = step
        if self._alone:
            self._reporter.step = step

    def _write_rest(self, error: BaseException) -> None:
        try:
            self._send_metrics()
            self.background.close()
        except BaseException as late:
            if late is not error:
                self._log.error("not all could be written: %s", late)

    def _write_end(self, error: BaseException) -> None:
        state = RunState.INTERRUPTED if isinstance(error, Interrupted) else RunState.FAILED
        reason = (
            str(error) if isinstance(error, PipefitError) else f"{type(error).__name__}: {error}"
        )
        try:
            if isinstance(error, Diverged):
                self.to_repeat = self._roll_back(error)
            self.writer.end(state, reason, self._step, self._reporter.tail())
        except StoreError as late:
            self._log.error("the end of the attempt could not be written: %s", late)

    def _roll_back(self, error: Diverged) -> bool:
        """Write to the history that the run goes back to its last checkpoint, if it is to."""
        rule = self.spec.train.rollback
        if rule is None:
            return False
        # In the history, because it must be known before the next checkpoint is there.
        done = self._rollbacks
        if done >= rule.times:
            self._log.error("diverged again after %d rollbacks", done)
            return False
        checkpoints = self.writer.checkpoints()
        back = checkpoints[0].step if checkpoints else 0
        self.writer.note(
            {
                "event": "rollback",
                "from": self._step,
                "to": back,
                "scale": rule.scale,
                "reason": str(error),
            }
        )
        self._log.warning(
            "%s; going back to step %d with %g times the learning rates (rollback %d of %d)",
            error,
            back,
            rule.scale ** (done + 1),
            done + 1,
            rule.times,
        )
        return True

    def _send_metrics(self) -> None:
        self._last_metrics = time.monotonic()
        self.background.put(self._write_metrics)

    # On the background thread.

    def _write_metrics(self) -> None:
        blocks = []
        while self._blocks:
            blocks.append(self._blocks.popleft())
        for block in joined(blocks):
            self.patiently(functools.partial(self.writer.write_metrics, block))

    def _commit(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        from pipefit.training import not_finite, to_numpy

        arrays = to_numpy(snapshot)
        bad = not_finite({k: v for k, v in arrays.items() if k in self.trainable})
        if bad:
            raise Diverged(
                f"step {step}: {bad[0]} holds NaN or infinity (and {len(bad) - 1} more variables); "
                f"checkpoints before it are kept: try a smaller learning rate or clip under "
                f"another name"
            )
        self.patiently(lambda: self.writer.commit(step, arrays, kinds, best))
        self.patiently(lambda: self._tidy(best))

    def _tidy(self, best: Best | None) -> None:
        kept = keep(
            self.writer.checkpoints(),
            recent_keep=self.spec.save.recent_keep,
            best_step=best.step if best else None,
        )
        self.writer.retain(kept)


def _warn_of_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; trying again; training waits once its next checkpoints do", error)
