"""The worker process, ``python -m pipefit.execution.worker``: joins store and training.

Reads one `Order` as a line of JSON from its input and writes `Event`s, one per line, to its
output; the last one is the outcome. A further line "stop", the end of the input (whoever gave the
order is gone), SIGTERM and SIGINT all mean: checkpoint the current step and end with code 75.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pipefit.errors import CheckpointCorrupt, Diverged, Interrupted, LeaseLost, StoreError
from pipefit.execution.devices import gpus, place
from pipefit.execution.keeping import keep
from pipefit.execution.order import Event, Order, exit_code, outcome
from pipefit.execution.provenance import program
from pipefit.execution.writer import BackgroundWriter, joined
from pipefit.records import NOTHING, Best, MetricBlock, RunOrder, RunState, Validation
from pipefit.spec import Spec
from pipefit.store import RunWriter, Store, open_store, this_process

logger = logging.getLogger("pipefit.run")

Emit = Callable[[Event], None]
ShouldStop = Callable[[], bool]

#: Progress goes to whoever gave the order at most this often, and to the database with the lease.
_PROGRESS_SECONDS = 0.25
_RENEW_SECONDS = 5.0
_TAIL_LINES = 200


def perform(order: Order, emit: Emit, should_stop: ShouldStop) -> None:
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
    if order.kind == "validate":
        _validate(order, spec, store, placement.kind, placement.count)
    else:
        _Training(order, spec, store, emit, should_stop).run(placement.kind, placement.count)


class _Training:
    """One attempt at a run.

    check identity -> build -> acquire -> restore the newest good checkpoint -> begin
    loop, its results written by one background thread; the lease renewed by another
    drain -> end(FINISHED | FAILED | INTERRUPTED)
    """

    def __init__(self, order: Order, spec: Spec, store: Store, emit: Emit, should_stop: ShouldStop):
        self.order, self.spec, self.store, self.emit = order, spec, store, emit
        self._should_stop = should_stop
        self.log = _LogTail()
        self.step: int | None = None
        self.background = BackgroundWriter()
        self.blocks: deque[MetricBlock] = deque()
        self.progress_values: dict[str, Any] = {}
        self._last_progress = 0.0

    def run(self, kind: str, count: int) -> None:
        run_order = self._run_order(kind, count)
        self.store.check_identity(run_order)  # before TensorFlow is paid for
        from pipefit import training

        self.training = training
        experiment = training.Experiment(
            self.spec, self.order.folders, training.Replicas(kind=kind, count=count)
        )
        trainer = experiment.trainer()
        validators = {name: experiment.validator(name) for name in self.spec.validation}
        self.writer = self.store.acquire(run_order, this_process(), self.order.lease_seconds)
        with self.log, _Heartbeat(self):
            try:
                self._train(experiment, trainer, validators)
            except BaseException as error:
                self._end_after(error)
                raise
            self.writer.end(RunState.FINISHED, None, self.step, self.log.text())

    def _train(self, experiment: Any, trainer: Any, validators: Mapping[str, Any]) -> None:
        start = self._restore(trainer)
        steps = self.spec.train.steps
        if trainer.step > steps:
            raise StoreError(
                f"train.steps = {steps}: run {self.spec.name!r} is at step {trainer.step} and "
                f"keeps no checkpoint of step {steps}; set train.steps to {trainer.step} or more, "
                f"or choose another name"
            )
        self.writer.begin(start)
        self.step = trainer.step
        best = self.writer.best() if start != NOTHING else None
        self.loop = self.training.Loop(
            trainer=trainer,
            validators=validators,
            schedule=experiment.schedule(),
            actions=self,
            max_loss=self.spec.train.max_loss,
            best=_continued(best, experiment.worst()),
        )
        self.trainable = {f"model/{v.path}" for v in trainer.objective.model.trainable_variables}
        self.loop.run()
        self.background.close()

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
            self.background.close()
        except BaseException as late:
            if late is not error and isinstance(error, Interrupted):
                error = late
        if isinstance(error, LeaseLost):
            return
        state = RunState.INTERRUPTED if isinstance(error, Interrupted) else RunState.FAILED
        reason = str(error) or type(error).__name__
        try:
            self.writer.end(state, reason, self.step, self.log.text())
        except StoreError as late:
            logger.error("the end of the attempt could not be written: %s", late)

    # What the loop hands over (pipefit.training.Actions), on the training thread.

    def metrics(self, block: MetricBlock) -> None:
        # While the database is slower than the training, blocks join into larger ones.
        self.blocks.append(block)
        if len(self.blocks) == 1:
            self.background.put(self._write_metrics)

    def validation(self, validation: Validation) -> None:
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in validation.metrics.items())
        logger.info("step %d: %s: %s", validation.step, validation.name, numbers)
        self.background.put(lambda: self.writer.write_validation(validation))

    def save(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        self.background.put_heavy(lambda: self._commit(step, snapshot, kinds, best))

    def progress(self, step: int, loss: float, rate: float) -> None:
        self.step = step
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
            self.emit(Event("progress", self.progress_values))

    def stop_requested(self) -> bool:
        self.background.check()
        return self._should_stop()

    # On the background thread.

    def _write_metrics(self) -> None:
        blocks = []
        while self.blocks:
            blocks.append(self.blocks.popleft())
        if blocks:
            self.writer.write_metrics(joined(blocks))

    def _commit(
        self, step: int, snapshot: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        arrays = self.training.to_numpy(snapshot)
        bad = self.training.not_finite({k: v for k, v in arrays.items() if k in self.trainable})
        if bad:
            raise Diverged(
                f"step {step}: {bad[0]} holds NaN or infinity (and {len(bad) - 1} more variables); "
                f"the last checkpoint before it is kept: try a smaller learning rate or clip under "
                f"another name"
            )
        self.writer.commit(step, arrays, kinds, best)
        kept = keep(
            self.writer.checkpoints(),
            recent_keep=self.spec.save.recent_keep,
            best_step=best.step if best else None,
        )
        self.writer.retain(kept)

    def _run_order(self, kind: str, count: int) -> RunOrder:
        details = {**program(), **self.order.program, "devices": f"{count} x {kind}"}
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


class _Heartbeat:
    """Renews the lease from a thread of its own; a lost lease stops the run at its next step."""

    def __init__(self, training: _Training):
        self._training = training
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipefit-lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        writer: RunWriter = self._training.writer
        while not self._done.wait(min(writer.ttl / 3, _RENEW_SECONDS)):
            try:
                writer.renew(self._training.progress_values or None)
            except LeaseLost as error:
                self._training.background.fail(error)
                return
            except StoreError as error:
                logger.warning("the lease could not be renewed: %s", error)


def _validate(order: Order, spec: Spec, store: Store, kind: str, count: int) -> None:
    """Validate a committed checkpoint on one set, read only, and publish the numbers."""
    run = store.run(spec.name, spec.collection)
    checkpoint = run.checkpoint(order.step)
    from pipefit import training

    experiment = training.Experiment(spec, order.folders, training.Replicas(kind=kind, count=count))
    state = training.State(experiment.model)
    state.restore(run.weights(order.step, include="^(model|generator)/"))
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
    logger.info("step %d: %s: %s", order.step, order.validation, numbers)


class _LogTail(logging.Handler):
    """Keeps the last lines logged during an attempt, for its record."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname}: {record.getMessage()}")

    def text(self) -> str:
        return "\n".join(self._lines)

    def __enter__(self) -> _LogTail:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger().removeHandler(self)


class _EventHandler(logging.Handler):
    """Sends log records as events."""

    def __init__(self, send: Emit):
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Event("log", {"level": record.levelno, "message": self.format(record)}))


class _Printed(io.TextIOBase):
    """Takes what user code prints and logs it line by line."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                logger.info("%s", line)
        return len(text)


def main() -> None:
    """Carry out the order on standard input; ends the process."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not get between the events
    lock = threading.Lock()

    def send(event: Event) -> None:
        with lock:
            try:
                stream.write(event.to_json() + "\n")
                stream.flush()
            except BrokenPipeError:
                pass  # whoever gave the order is gone; the end of the input stops us

    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_EventHandler(send)])
    logging.getLogger("pipefit").setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.stdout = _Printed()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    order = Order.from_json(sys.stdin.readline())
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    error: BaseException | None = None
    try:
        perform(order, send, stop.is_set)
    except BaseException as caught:
        error = caught
    send(outcome(error, traceback.format_exc() if error else ""))
    sys.stderr.flush()
    # Threads of TensorFlow and of the driver can hold up a normal exit for up to a minute.
    os._exit(exit_code(error))


def _listen(stop: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            break
    stop.set()


if __name__ == "__main__":
    main()
