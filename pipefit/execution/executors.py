"""Where an order is carried out: in a fresh process (`LocalExecutor`) or here (`InlineExecutor`)."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from pipefit import settings
from pipefit.errors import Interrupted, PipefitError, WorkerFailed
from pipefit.execution.order import Event, Order, raise_outcome

logger = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
ShouldStop = Callable[[], bool]

#: How often a stop request or a dead parent is looked for, seconds.
_POLL = 0.2
_TAIL_LINES = 30


class Signalled(Interrupted):
    """Interrupted by SIGTERM or SIGINT, as opposed to a message from the scheduler's page."""


class Executor(Protocol):
    """Carries out orders.

    `run` returns when the order is done, and raises what the worker raised: `PipefitError` of the
    same class, `Interrupted` after a requested stop, `WorkerFailed` for everything else.
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


def log_path(order: Order) -> Path:
    """Where the worker's raw output is appended."""
    spec = json.loads(order.spec)
    return settings.home() / "logs" / spec["collection"] / spec["name"] / "worker.log"


class LocalExecutor:
    """A fresh Python process per order: memory and GPUs come back whatever happens.

    The worker lives in a session of its own, so a Ctrl-C reaches it only through us: it is asked
    to stop, checkpoints and ends. If we die it sees the end of its input and does the same.
    """

    def run(self, order: Order, on_event: OnEvent, should_stop: ShouldStop) -> None:
        """See `Executor`."""
        path = log_path(order)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log, _stop_signals() as signalled:
            begin = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "pipefit.execution.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
            try:
                last = _converse(process, order, on_event, lambda: should_stop() or bool(signalled))
            finally:
                _end(process)
        if last is None:
            raise WorkerFailed(_death(process.returncode, path, begin))
        try:
            raise_outcome(last)
        except Interrupted as error:
            raise (Signalled(str(error)) if signalled else error) from None


class InlineExecutor:
    """Carries out the order in this process, for debugging with a debugger or a profiler.

    TensorFlow is then loaded here for good, so use it with one worker and one run only.
    """

    def run(self, order: Order, on_event: OnEvent, should_stop: ShouldStop) -> None:
        """See `Executor`."""
        from pipefit.execution import worker

        with _stop_signals() as signalled:
            try:
                worker.perform(order, on_event, lambda: should_stop() or bool(signalled))
            except Interrupted as error:
                raise (Signalled(str(error)) if signalled else error) from None


def _converse(
    process: subprocess.Popen[str], order: Order, on_event: OnEvent, stop: ShouldStop
) -> Event | None:
    """Give the order, hand on events until the worker closes its output; the outcome, if any."""
    assert process.stdin is not None and process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    _tell(process.stdin, order.to_json())
    last, asked = None, False
    while True:
        if not asked and (stop() or _orphaned()):
            _tell(process.stdin, "stop")
            asked = True
        try:
            line = lines.get(timeout=_POLL)
        except queue.Empty:
            continue
        if line is None:
            return last
        event = Event.from_json(line)
        if event.kind == "outcome":
            last = event
        else:
            on_event(event)


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _tell(stream: IO[str], line: str) -> None:
    # A worker that is gone already says so by closing its output.
    with contextlib.suppress(BrokenPipeError):
        stream.write(line + "\n")
        stream.flush()


def _end(process: subprocess.Popen[str]) -> None:
    """Wait for the worker; if we are leaving by an exception, make it end."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _orphaned() -> bool:
    """Whether we are one of Luigi's forked processes and the scheduling one is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of dying of them; the second one has its usual effect."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: object) -> None:
        received.append(number)
        logger.warning("%s: asking the run to checkpoint and stop", signal.Signals(number).name)
        signal.signal(number, previous[number])

    previous = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
        tail = log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(
        [f"the worker {how} without saying why; type the same command to continue; log: {path}"]
        + tail
    )
