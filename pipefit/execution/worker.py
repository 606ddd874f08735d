"""The worker process: joins store and training. ``python -m pipefit.execution.worker``.

Reads one `Order` as a line of JSON from its input and writes `Event`s, one per line, to its
output; the last one is the outcome. A further line "stop REASON", the end of the input (whoever
gave the order is gone), SIGTERM and SIGINT all mean: checkpoint the current step and end with code
75. A validation has nothing to checkpoint and is broken off.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

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
    NotFound,
    PipefitError,
    StoreError,
    StoreUnavailable,
)
from pipefit.execution.channel import Channel
from pipefit.execution.checks import reached
from pipefit.execution.devices import Placement, gpus, place
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.keeping import keep
from pipefit.execution.order import Order, exit_code, outcome
from pipefit.execution.provenance import program
from pipefit.execution.reporter import Reporter
from pipefit.execution.writer import BackgroundWriter, joined
from pipefit.records import NOTHING, Best, MetricBlock, RunOrder, RunState, Validation
from pipefit.spec import Spec
from pipefit.store import Store, open_store, this_process

logger = logging.getLogger("pipefit.run")

#: Says why to stop; None: go on.
ShouldStop = Callable[[], str | None]

#: Progress goes to whoever gave the order at most this often, and to the database with the lease.
_PROGRESS_SECONDS = 0.25
#: Blocks of metrics that come faster than this are written together.
_METRICS_SECONDS = 0.5
#: Between tries to reach a database that is away.
_RETRY_SECONDS = 1.0


def perform(order: Order, reporter: Reporter, should_stop: ShouldStop) -> None:
    """Carry out an order in this process (TensorFlow is loaded here).

    Raises:
        Interrupted: it was asked to stop and has checkpointed.
        PipefitError: anything else that was refused or failed.
    """
    sys.path[:0] = [path for path in order.import_paths if path not in sys.path]
    spec = Spec.from_json(order.spec)
    placement = place(spec.model.devices, gpus())
    placement.apply(os.environ)
    store = open_store(order.uri)
    threads = _threads(store, spec)
    if order.kind == "validate":
        _validate(order, spec, store, placement, threads)
    else:
        _Training(order, spec, store, reporter, should_stop).run(placement, threads)


def _threads(store: Store, spec: Spec) -> int:
    """Threads of one operation: as many as when the run began, because sums depend on them."""
    try:
        stored = store.run(spec.name, spec.collection).document()["program"].get("threads")
    except NotFound:
        stored = None
    return int(stored or _cores())


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _replicas(placement: Placement, threads: int) -> Any:
    from pipefit import training

    return training.Replicas(kind=placement.kind, count=placement.count, threads=threads)


class _Training:
    """One attempt at a run.

    check identity -> build -> acquire -> restore the newest good checkpoint -> begin
    loop, its results written by one background thread; the lease renewed by another
    drain -> end(FINISHED | FAILED | INTERRUPTED)
    """

    def __init__(
        self,
        order: Order,
        spec: Spec,
        store: Store,
        reporter: Reporter,
        should_stop: ShouldStop,
    ):
        self.order, self.spec, self.store, self.reporter = order, spec, store, reporter
        self._should_stop = should_stop
        self._stop_reason: str | None = None
        self.background = BackgroundWriter()
        self.blocks: deque[MetricBlock] = deque()
        self.progress_values: dict[str, Any] = {}
        self._last_progress = self._last_metrics = 0.0

    def run(self, placement: Placement, threads: int) -> None:
        run_order = self._run_order(placement, threads)
        if reached(self.store, run_order):  # also refuses, before TensorFlow is paid for
            return
        from pipefit import training

        self.training = training
        replicas = _replicas(placement, threads)
        experiment = training.Experiment(self.spec, self.order.folders, replicas)
        trainer = experiment.trainer()
        validators = {name: experiment.validator(name) for name in self.spec.validation}
        self.writer = self.store.acquire(run_order, this_process(), self.order.lease_seconds)
        with Heartbeat(self.writer, lambda: self.progress_values or None, self.background.fail):
            try:
                self._train(experiment, trainer, validators)
            except BaseException as error:
                self._end_after(error)
                raise
            ended = (RunState.FINISHED, None, self.reporter.step, self.reporter.tail())
            self._patiently(lambda: self.writer.end(*ended))

    def _train(self, experiment: Any, trainer: Any, validators: Mapping[str, Any]) -> None:
        start = self._restore(trainer)
        self.writer.begin(start)
        self.reporter.step = trainer.step
        best = self.writer.best() if start != NOTHING else None
        loop = self.training.Loop(
            trainer=trainer,
            validators=validators,
            schedule=experiment.schedule(),
            actions=self,
            max_loss=self.spec.train.max_loss,
            best=_continued(best, experiment.worst()),
        )
        self.trainable = {f"model/{v.path}" for v in trainer.objective.model.trainable_variables}
        stopped = None
        try:
            loop.run()
        except Interrupted as error:
            stopped = Interrupted(f"{error}: {self._stop_reason}")
        self.background.close()  # interrupted is what has written its last checkpoint
        if stopped:
            raise stopped

    def _restore(self, trainer: Any) -> int:
        """Continue from the newest checkpoint that is whole; -1 if there is none at all."""
        checkpoints = self.writer.checkpoints()
        for checkpoint in checkpoints:
            try:
                arrays = self.writer.read_checkpoint(checkpoint)
            except CheckpointCorrupt as error:
                logger.warning("%s; falling back to the one before", error)
                continue
            trainer.restore(arrays)
            logger.info("continuing after step %d of %d", checkpoint.step, self.spec.train.steps)
            return checkpoint.step
        if checkpoints:
            raise CheckpointCorrupt(
                f"run {self.spec.name!r}: none of its {len(checkpoints)} checkpoints can be read, "
                f"so it cannot continue; restore the database, or choose another name"
            )
        return NOTHING

    def _end_after(self, error: BaseException) -> None:
        """Write what is still queued, then say how the attempt ended."""
        if isinstance(error, LeaseLost):
            return
        try:
            self._send_metrics()
            self.background.close()
        except BaseException as late:
            if late is not error:
                logger.error("not all could be written: %s", late)
        state = RunState.INTERRUPTED if isinstance(error, Interrupted) else RunState.FAILED
        reason = (
            str(error) if isinstance(error, PipefitError) else f"{type(error).__name__}: {error}"
        )
        try:
            self.writer.end(state, reason, self.reporter.step, self.reporter.tail())
        except StoreError as late:
            logger.error("the end of the attempt could not be written: %s", late)

    def _patiently(self, write: Callable[[], object]) -> None:
        """Do a write, again while the database is away, for as long as a lease lasts."""
        long_enough = stop_after_delay(self.order.lease_seconds)
        Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            # Who asks to stop has no time to wait for a database.
            stop=lambda state: bool(self._should_stop()) or long_enough(state),
            wait=wait_fixed(_RETRY_SECONDS),
            before_sleep=_warn_of_retry,
            reraise=True,
        )(write)

    # What the loop hands over (pipefit.training.Actions), on the training thread.

    def metrics(self, block: MetricBlock) -> None:
        self.blocks.append(block)
        if time.monotonic() - self._last_metrics >= _METRICS_SECONDS:
            self._send_metrics()

    def validation(self, validation: Validation) -> None:
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in validation.metrics.items())
        self.reporter.step = validation.step
        logger.info("%s: %s", validation.name, numbers)
        write = functools.partial(self.writer.write_validation, validation)
        self.background.put(lambda: self._patiently(write))

    def save(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        self._send_metrics()  # once a checkpoint is committed, its steps are never run again
        self.background.put_heavy(lambda: self._commit(step, snapshot, kinds, best))

    def progress(self, step: int, loss: float, rate: float) -> None:
        self.reporter.step = step
        examples_left = (self.spec.train.steps - step) * self.spec.train_data.batch_size
        self.progress_values = {
            "step": step,
            "steps": self.spec.train.steps,
            "loss": loss,
            "rate": rate,
            "seconds_left": examples_left / rate if rate else None,
        }
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_SECONDS or step == self.spec.train.steps:
            self._last_progress = now
            self.reporter.progress(self.progress_values)

    def stop_requested(self) -> bool:
        self.background.check()
        self._stop_reason = self._should_stop()
        return bool(self._stop_reason)

    def _send_metrics(self) -> None:
        self._last_metrics = time.monotonic()
        self.background.put(self._write_metrics)

    # On the background thread.

    def _write_metrics(self) -> None:
        blocks = []
        while self.blocks:
            blocks.append(self.blocks.popleft())
        if blocks:
            block = joined(blocks)
            self._patiently(lambda: self.writer.write_metrics(block))

    def _commit(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        arrays = self.training.to_numpy(snapshot)
        bad = self.training.not_finite({k: v for k, v in arrays.items() if k in self.trainable})
        if bad:
            raise Diverged(
                f"step {step}: {bad[0]} holds NaN or infinity (and {len(bad) - 1} more variables); "
                f"checkpoints before it are kept: try a smaller learning rate or clip under "
                f"another name"
            )
        self._patiently(lambda: self.writer.commit(step, arrays, kinds, best))
        self._patiently(lambda: self._tidy(best))

    def _tidy(self, best: Best | None) -> None:
        kept = keep(
            self.writer.checkpoints(),
            recent_keep=self.spec.save.recent_keep,
            best_step=best.step if best else None,
        )
        self.writer.retain(kept)

    def _run_order(self, placement: Placement, threads: int) -> RunOrder:
        devices = f"{placement.count} x {placement.kind}"
        details = {**program(), **self.order.program, "devices": devices, "threads": threads}
        return RunOrder(
            collection=self.spec.collection,
            name=self.spec.name,
            identity=self.spec.identity,
            parts=self.spec.parts(),
            spec=self.order.spec,
            steps=self.spec.train.steps,
            allow_change=self.order.allow_change,
            program=details,
        )


def _continued(stored: Best | None, worst: Best | None) -> Best | None:
    """The stored best, unless the experiment now asks for another metric."""
    if stored is None or worst is None:
        return worst
    return stored if (stored.metric, stored.mode) == (worst.metric, worst.mode) else worst


def _warn_of_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; trying again; training waits once its next checkpoints do", error)


def _validate(order: Order, spec: Spec, store: Store, placement: Placement, threads: int) -> None:
    """Validate a committed checkpoint on one set, read only, and publish the numbers."""
    run = store.run(spec.name, spec.collection)
    checkpoint = run.checkpoint(order.step)
    from pipefit import training

    experiment = training.Experiment(spec, order.folders, _replicas(placement, threads))
    state = training.State(experiment.model)
    # Read whole, because only then is it verified.
    arrays = run.weights(order.step)
    state.restore({k: v for k, v in arrays.items() if k.startswith(("model/", "generator/"))})
    validator = experiment.validator(order.validation)
    wanted = bool(spec.validation[order.validation].outputs)
    outputs = store.outputs_writer(spec.collection, spec.name, order.validation) if wanted else None
    begin = time.perf_counter()
    try:
        metrics = validator.run(outputs.add if outputs else None)
        manifest = outputs.close() if outputs else None
    except BaseException:
        if outputs:
            outputs.abort()
        raise
    seconds = time.perf_counter() - begin
    validation = Validation(
        order.validation, order.step, metrics, validator.examples, checkpoint.id, seconds
    )
    store.commit_validation(spec.collection, spec.name, checkpoint, validation, manifest)
    numbers = ", ".join(f"{k} {v:.4f}" for k, v in metrics.items())
    logger.info("%s", numbers)


def _carry_out(channel: Channel) -> None:
    with Reporter(channel.send) as reporter:
        order = channel.order()
        channel.take_requests(interrupt=order.kind == "validate")
        try:
            perform(order, reporter, lambda: channel.stop_reason)
        except KeyboardInterrupt:
            reason = channel.stop_reason
            raise Interrupted(f"broken off, nothing of it is stored: {reason}") from None
        finally:
            channel.printed.finish()


def main() -> None:
    """Carry out the order on standard input; ends the process."""
    faulthandler.enable()
    logging.captureWarnings(True)
    channel = Channel()
    error: BaseException | None = None
    try:
        _carry_out(channel)
    except BaseException as caught:
        error = caught
    channel.take_no_more_requests()
    channel.send(outcome(error))
    for child in multiprocessing.active_children():  # of a data source, say
        child.kill()
    sys.stderr.flush()
    # Threads of TensorFlow and of the driver can hold up a normal exit for up to a minute.
    os._exit(exit_code(error))


if __name__ == "__main__":
    main()
