"""Where an order is carried out: in a fresh process (`LocalExecutor`) or here (`InlineExecutor`).

run_by = executor("local")
run_by.run(order, on_event, should_stop=lambda: None)
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from pipefit import settings
from pipefit.errors import Interrupted, PipefitError, WorkerFailed
from pipefit.execution.channel import STOP
from pipefit.execution.lines import kept_lines
from pipefit.execution.order import Event, Order, outcome, raise_outcome

logger = logging.getLogger("pipefit.run")

OnEvent = Callable[[Event], None]

#: Says why to stop; None: go on.
ShouldStop = Callable[[], str | None]

#: How often a stop request or a dead parent is looked for, seconds.
_POLL = 0.2
#: So long a thread that hangs may take to be freed by other means than a signal.
_INTERRUPT_SECONDS = 2.0
#: How long a worker that has told its outcome, or was told to stop by our failure, may go on.
_PATIENCE = 10.0
_TAIL_LINES = 30
#: What TensorFlow prints whenever it starts says nothing about how it ended, nor do the frames of
#: Python's own imports, which fill the trace of a crash.
_START_UP = re.compile(
    r"frozen importlib|absl::InitializeLog|oneDNN custom operations|cuda drivers|cuInit"
    r"|cpu_feature_guard|rebuild TensorFlow with the appropriate compiler flags"
)


class Signalled(Interrupted):
    """Interrupted by SIGTERM or SIGINT, as opposed to a message from the scheduler's page."""


class Executor(Protocol):
    """Carries out orders.

    `run` returns when the order is done, and raises what the worker raised: `PipefitError` of the
    same class, `Interrupted` after a requested stop, `WorkerFailed` for everything else.

    In the main thread it answers SIGTERM and SIGINT by a stop and `Signalled`. The second signal of
    a kind does not wait for the worker: the run then continues from its last checkpoint.
    """

    def run(self, order: Order, on_event: OnEvent, should_stop: ShouldStop) -> None:
        """Carry out an order; `should_stop` is asked several times a second."""


def executor(name: str) -> Executor:
    """The executor of a name: "local" or "inline".

    Raises:
        PipefitError: for another name.
    """
    kinds: dict[str, type[Executor]] = {"local": LocalExecutor, "inline": InlineExecutor}
    if name not in kinds:
        raise PipefitError(
            f"[execution] executor = {name}: no such executor; there are {', '.join(kinds)}"
        )
    return kinds[name]()


#: Where the log lines are appended, beside the worker's raw output.
LINES = "run.log"


def log_path(order: Order) -> Path:
    """Where the worker's raw output is appended."""
    spec: dict[str, str] = json.loads(order.spec)
    return settings.home() / "logs" / spec["collection"] / spec["name"] / "worker.log"


class LocalExecutor:
    """A fresh Python process per order: memory and GPUs come back whatever happens.

    The worker lives in a session of its own, so a Ctrl-C reaches it only through us: it is asked
    to stop, checkpoints and ends. If we die it sees the end of its input and does the same.
    """

    def run(self, order: Order, on_event: OnEvent, should_stop: ShouldStop) -> None:
        """See `Executor`."""
        path = log_path(order)
        with _log(path) as log, _stop_signals(_collect) as signals:
            begin = log.tell()
            with kept_lines(path.with_name(LINES), on_event) as tell, _Worker(log) as worker:
                why_stop = _why_stop(signals, should_stop)
                last = _converse(worker, order, tell, why_stop, signals)
            if last is None:
                raise WorkerFailed(_death(worker.exit_code, path, begin))
            with _signalled(signals):
                raise_outcome(last)


class InlineExecutor:
    """Carries out the order in this process, for debugging with a debugger or a profiler.

    TensorFlow is then loaded here for good, so use it with one worker and one run only.
    """

    def run(self, order: Order, on_event: OnEvent, should_stop: ShouldStop) -> None:
        """See `Executor`."""
        from pipefit.execution import worker
        from pipefit.execution.reporter import Reporter

        hung = _Hung()

        def collect_or_raise(received: list[str], name: str) -> None:
            hung.check()
            # Nobody looks at what was received while this process trains.
            received.append(name)
            _heed_repeated(received)

        with (
            _stop_signals(collect_or_raise) as signals,
            _signalled(signals),
            Reporter(on_event) as reporter,
        ):
            try:
                with hung:
                    worker.perform(order, reporter, _why_stop(signals, should_stop), hung.give_up)
            except Interrupted:
                raise
            except Exception as error:
                try:
                    raise_outcome(outcome(error))
                except PipefitError as told:
                    raise told from error


class _Hung:
    """What can be done about work that hangs in a process that is not ours to end.

    Who waits for a data source is freed by whoever calls `give_up`. What waits in Python in the
    main thread is interrupted, a little later. What hangs elsewhere, such as in an operation of
    TensorFlow, can only be told.
    """

    def __init__(self) -> None:
        self._error: PipefitError | None = None
        self._over = threading.Event()
        self._thread = threading.current_thread()

    def check(self) -> None:
        """Raise that work hangs, if it does."""
        if self._error is not None:
            raise self._error

    def give_up(self, error: PipefitError) -> None:
        """Work hangs: tell it, and let the work end with this error. Called by another thread."""
        logger.error("%s", error)
        self._error = error
        if self._thread is threading.main_thread():
            threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        ident = self._thread.ident
        if not self._over.wait(_INTERRUPT_SECONDS) and ident is not None:
            signal.pthread_kill(ident, signal.SIGINT)  # whose handler asks `check`

    def __enter__(self) -> _Hung:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._over.set()
        if self._error is not None and error is not self._error:
            raise self._error from error


class _Worker:
    """A worker process and both ends of its pipes; it does not outlive the context."""

    def __init__(self, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipefit.execution.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def exit_code(self) -> int:
        """Known after the context."""
        return int(self._process.returncode)

    def tell(self, line: str) -> None:
        """Write a line to it; it reads them all the time, from its beginning to its end."""
        # A worker that is gone already says so by closing its output.
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[Event | None]:
        """Its events until it ends; None every now and then if there is none.

        It ends by itself if its work hangs (`Watchdog`), and with the context if we are stopped.
        """
        while True:
            # Processes it started may keep its output open, so that alone does not tell its end.
            ended = self._process.poll() is not None
            try:
                line = self._lines.get(timeout=_POLL)
            except queue.Empty:
                if ended:
                    return
                yield None
                continue
            if line is None:
                return
            yield Event.from_json(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                if line.endswith("\n"):  # else it was killed while it wrote
                    self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is not None and not issubclass(kind, Signalled):
                self.tell(f"{STOP} {kind.__name__} where its events are shown")
            self._process.wait(0 if kind and issubclass(kind, Signalled) else _PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # The whole group: what the user's code has started and left ends as well.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with contextlib.suppress(BrokenPipeError):
                assert self._process.stdin is not None
                self._process.stdin.close()


def _converse(
    worker: _Worker,
    order: Order,
    on_event: OnEvent,
    stop: ShouldStop,
    signals: Sequence[str],
) -> Event | None:
    """Give the order, hand on events until the outcome; None if the worker ends without one."""
    worker.tell(order.to_json())
    asked = False
    for event in worker.events():
        if event is not None and event.kind == "outcome":
            return event
        if event is not None:
            on_event(event)
        _heed_repeated(signals)
        reason = None if asked else stop()
        if reason:
            asked = True
            message = f"{reason}: asked to checkpoint and stop"
            on_event(Event("log", {"level": logging.WARNING, "message": message, "step": None}))
            worker.tell(f"{STOP} {reason}")
    return None


def _why_stop(signals: Sequence[str], should_stop: ShouldStop) -> ShouldStop:
    def why() -> str | None:
        if signals:
            return signals[0]
        return "the scheduling process is gone" if _orphaned() else should_stop()

    return why


def _orphaned() -> bool:
    """Whether we are one of Luigi's forked processes and the scheduling one is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


@contextlib.contextmanager
def _stop_signals(take: Callable[[list[str], str], None]) -> Iterator[list[str]]:
    """Collect the names of SIGTERM and SIGINT that arrive."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: object) -> None:
        take(received, signal.Signals(number).name)

    previous = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _collect(received: list[str], name: str) -> None:
    # What a handler raises is lost when it interrupts the writing of a log line.
    received.append(name)


def _heed_repeated(signals: Sequence[str]) -> None:
    """The second signal of a kind ends all at once."""
    for name in set(signals):
        if signals.count(name) > 1:
            raise Signalled(f"{name} again: ended at once, the last checkpoint stays")


@contextlib.contextmanager
def _signalled(signals: Sequence[str]) -> Iterator[None]:
    """A signal ends all, also if it came when the order was as good as done."""
    try:
        yield
    except Interrupted as error:
        raise (Signalled(str(error)) if signals else error) from None
    if signals:
        raise Signalled(f"done, and stopped before what comes next: {signals[0]}")


@contextlib.contextmanager
def _log(path: Path) -> Iterator[IO[bytes]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.open("ab")
    except OSError as error:
        raise WorkerFailed(
            f"{path}: the worker's log cannot be written ({error.strerror}); free some space, or "
            f"set PIPEFIT_HOME to another folder"
        ) from error
    with log:
        yield log


def _environment() -> dict[str, str]:
    # TensorFlow's start-up messages are no news; what it warns of still goes to the log.
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONUNBUFFERED": "1"}


def _death(code: int, path: Path, begin: int) -> str:
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += " (by hand, or because the machine ran out of memory)"
    else:
        how = f"ended with exit code {code}"
    with path.open("rb") as log:
        log.seek(begin)
        lines = log.read().decode("utf-8", "replace").splitlines()
        tail = [line for line in lines if not _START_UP.search(line)][-_TAIL_LINES:]
    first = f"the worker {how} without saying why; type the same command to continue; log: {path}"
    return "\n".join([first, *tail])
