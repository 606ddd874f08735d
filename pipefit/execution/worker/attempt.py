"""One process's ownership of one run: see `Attempt`."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from pipefit.errors import (
    Diverged,
    Interrupted,
    LeaseLost,
    PipefitError,
    StoreError,
    StoreUnavailable,
    without_passwords,
)
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.keeping import keep, planned
from pipefit.execution.reporter import Reporter, RunLog
from pipefit.execution.writer import BackgroundWriter, joined
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
from pipefit.store import RunWriter
from pipefit.store.newest import newest_whole

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
#: Checkpoints that are no longer kept are removed at most this often, and at the end: that takes
#: the database longer than a new small one does.
_TIDY_SECONDS = 2.0
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
        rollbacks: what the run's history says about how it was rolled back before.

    Attributes:
        to_repeat: it has ended, but the run is to be continued by another attempt.
    """

    def __init__(
        self,
        spec: Spec,
        order: RunOrder,
        writer: RunWriter,
        reporter: Reporter,
        should_stop: ShouldStop,
        *,
        alone: bool = True,
        rollbacks: Sequence[Mapping[str, Any]] = (),
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
        self._untidy, self._last_tidy = False, time.monotonic()
        self._best: Best | None = None
        self._open = True
        self._heartbeat = Heartbeat(
            writer, lambda: self._progress or None, self.background.fail
        ).__enter__()

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
        checkpoints = self._not_rolled_back(self.writer.checkpoints())
        if not checkpoints:
            return NOTHING
        read, strict = self.writer.read_checkpoint, self.spec.save.strict
        checkpoint, arrays = newest_whole(
            self.spec.name, checkpoints, read, strict=strict, log=self._log
        )
        course.restore(arrays)
        self._log.info("continuing after step %d of %d", checkpoint.step, self.spec.train.steps)
        return checkpoint.step

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
        self.background.put(self._tidy)
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

    def failed(self, error: BaseException) -> bool:
        """Write what is still queued, then say how the attempt ended; again does nothing.

        Returns:
            Whether another attempt is to continue the run.
        """
        if not self._open:
            return self.to_repeat
        if isinstance(error, Diverged) and error.step is not None:
            self._note_step(error.step)
        if not isinstance(error, LeaseLost):
            self._write_rest(error)
            self._write_end(error)
        self._close()
        if not (self._alone or self.to_repeat or isinstance(error, Interrupted)):
            ours = isinstance(error, PipefitError)
            self._log.error("%s", error, exc_info=None if ours else error)
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

    def patiently(self, write: Callable[[], object]) -> None:
        """Do a write, again while the database is away, for as long as a lease lasts.

        A single try ends by the driver's own limits (see `pipefit.store.client`).
        """
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
        told: list[BaseException] = [error]
        tidy = functools.partial(self.background.put, self._tidy)
        for write in (self._send_metrics, tidy, self.background.close):
            try:
                write()
            except BaseException as late:
                if late not in told:
                    told.append(late)
                    self._log.error("not all could be written: %s", late)

    def _write_end(self, error: BaseException) -> None:
        reason = (
            str(error) if isinstance(error, PipefitError) else f"{type(error).__name__}: {error}"
        )
        try:
            self.to_repeat = self._is_to_repeat(error)
            going_on = self.to_repeat or isinstance(error, Interrupted)
            state = RunState.INTERRUPTED if going_on else RunState.FAILED
            self.writer.end(state, without_passwords(reason), self._step, self._reporter.tail())
        except StoreError as late:
            self._log.error("the end of the attempt could not be written: %s", late)

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
                f"another name",
                step,
            )
        self.patiently(lambda: self.writer.commit(step, arrays, kinds, best))
        self._untidy, self._best = True, best
        if time.monotonic() - self._last_tidy >= _TIDY_SECONDS:
            self._tidy()

    def _tidy(self) -> None:
        """Remove the checkpoints that are no longer to be kept."""
        if self._untidy:
            self.patiently(self._retain)
            self._untidy, self._last_tidy = False, time.monotonic()

    def _retain(self) -> None:
        kept = keep(
            self.writer.checkpoints(),
            recent_keep=self.spec.save.recent_keep,
            best_step=self._best.step if self._best else None,
        )
        self.writer.retain(kept)


def _warn_of_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; trying again; training waits once its next checkpoints do", error)
