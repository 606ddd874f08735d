"""The worker's end of the pipes to whoever gave the order; see `Channel`."""

from __future__ import annotations

import _thread
import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
from typing import TextIO

from pipefit.errors import EXIT_INTERRUPTED, without_passwords
from pipefit.execution.order import Event, Order

#: How long a worker whose giver is gone may take to checkpoint and end, seconds; nobody else is
#: there to end one that hangs.
GRACE = 120.0

STOP = "stop"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("pipefit.run")


class Channel:
    """Takes over standard input and output: one order in, then requests to stop; events out.

    Both are moved out of the way of all other code: what Python code prints becomes log lines,
    what native code prints goes where its errors go, and nobody reads the requests as input. What
    Python code writes to standard error goes there without the passwords that are known.

    Attributes:
        printed: what replaced standard output.
        stop_reason: of the first request to stop; None: there was none.
    """

    def __init__(self) -> None:
        self._input = os.fdopen(os.dup(0), encoding="utf-8")
        self._output = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        self.stop_reason: str | None = None
        self._is_over = False
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self.printed = sys.stdout = Printed(logger)
        sys.stderr = WithoutPasswords(sys.stderr)

    def order(self) -> Order:
        """Wait for the order, which whoever has started this process writes at once, or ends."""
        return Order.from_json(self._input.readline())

    def send(self, event: Event) -> None:
        """Write an event; waits as long as whoever gave the order is alive but does not read."""
        # Whoever gave the order may be gone; the end of the input then stops us.
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._output.write(event.to_json() + "\n")
            self._output.flush()

    def take_requests(self, *, interrupt: bool) -> None:
        """From now on note requests to stop: lines, the end of the input, SIGTERM and SIGINT.

        Args:
            interrupt: also raise KeyboardInterrupt in the main thread, once: no code of others
                takes it for a failure of its own.
        """
        to_interrupt = interrupt

        def handle(number: int, frame: object) -> None:
            nonlocal to_interrupt
            if self._is_over:
                return
            self._ask(signal.Signals(number).name)
            if to_interrupt:
                to_interrupt = False
                raise KeyboardInterrupt

        for number in _SIGNALS:
            signal.signal(number, handle)
        threading.Thread(target=self._listen, daemon=True).start()

    def take_no_more_requests(self) -> None:
        """What comes now comes too late. May be called from any thread."""
        self._is_over = True
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def _listen(self) -> None:
        for line in self._input:
            word, _, reason = line.strip().partition(" ")
            if word == STOP:
                self._ask(reason)
                _thread.interrupt_main(signal.SIGTERM)
        self._ask("the process that gave the order is gone")
        _thread.interrupt_main(signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(EXIT_INTERRUPTED)

    def _ask(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason


class Printed(io.TextIOBase):
    """Takes what is printed and logs it line by line.

    Args:
        logger: receives the lines.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As of a usual standard output."""
        return "utf-8"

    def fileno(self) -> int:
        """Where native code and other processes print."""
        return 1

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Log the lines that are complete."""
        # Every thread has its own unfinished line, so lines are not mixed up.
        *lines, rest = (getattr(self._begun, "line", "") + text).split("\n")
        self._begun.line = rest
        for line in lines:
            self._log(line)
        return len(text)

    def finish(self) -> None:
        """Log a line that was begun by this thread and never ended."""
        self._log(getattr(self._begun, "line", ""))
        self._begun.line = ""

    def _log(self, line: str) -> None:
        # A carriage return writes a line anew, as progress bars do: the last state counts.
        shown = line.rstrip().rpartition("\r")[2]
        if shown:
            self._logger.info("%s", shown)


class WithoutPasswords(io.TextIOBase):
    """Takes what is written to a text file and hands it on line by line, without passwords.

    Args:
        file: receives the lines.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._begun = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the file."""
        return self._file.encoding

    def fileno(self) -> int:
        """Of the file: native code and other processes write there by themselves."""
        return self._file.fileno()

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Hand on the lines that are complete: a password may come in several pieces."""
        whole, end, rest = (getattr(self._begun, "line", "") + text).rpartition("\n")
        self._begun.line = rest
        if end:
            self._file.write(without_passwords(whole + end))
        return len(text)

    def flush(self) -> None:
        """Hand on also what this thread has begun."""
        self._file.write(without_passwords(getattr(self._begun, "line", "")))
        self._begun.line = ""
        self._file.flush()
