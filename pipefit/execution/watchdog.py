"""Nothing hangs for ever: see `Watchdog`."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from pipefit.errors import PipefitError, StepTimeout

logger = logging.getLogger("pipefit.run")

#: A piece of work that takes this long, and this many times as long as any before, is told.
_LONG_SECONDS, _LONG_TIMES = 60.0, 10.0
#: How often it looks, seconds.
_POLL = 0.5


class Watchdog:
    """Watches from a thread of its own, as long as the context lasts, that work goes on.

    `alive` is called after every piece of work: a model was built, some steps were trained, a batch
    of a validation was read. If one takes far longer than any before, a warning shows what all
    threads are doing; if none ends within the limit, `give_up` is called with an error that shows
    it.

    Args:
        limit: seconds; `train.step_timeout`.
        give_up: called once, from the watching thread. What hangs may be deep inside of TensorFlow
            or of a reader, where no exception reaches it.
        pulse: gives something else whenever work goes on that `alive` is not told of.
    """

    def __init__(
        self,
        limit: float,
        give_up: Callable[[PipefitError], None],
        pulse: Callable[[], object] = lambda: None,
    ):
        self._limit, self._give_up, self._pulse = limit, give_up, pulse
        self._since = time.monotonic()
        self._longest = 0.0
        self._told = False
        self._last_pulse: object = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pipefit-watchdog", daemon=True)

    def alive(self) -> None:
        """Work goes on."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._since)
        self._since, self._told = now, False

    def __enter__(self) -> Watchdog:
        self.alive()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()  # it only looks, or ends the process

    def _watch(self) -> None:
        while not self._done.wait(min(_POLL, self._limit / 4)):
            pulse = self._pulse()
            if pulse != self._last_pulse:
                self._last_pulse = pulse
                self.alive()
            seconds = time.monotonic() - self._since
            if seconds > self._limit:
                self._give_up(
                    StepTimeout(
                        f"no step was finished in the last {seconds:.0f} s, "
                        f"train.step_timeout = {self._limit:g}: something hangs, most likely the "
                        f"data source or a device; if steps take that long, raise it\n{stacks()}"
                    )
                )
                return
            if not self._told and seconds > max(_LONG_SECONDS, _LONG_TIMES * self._longest):
                self._told = True
                logger.warning(
                    "no step was finished in the last %.0f s, none took more than %.1f s before; "
                    "the run is ended after %g s (train.step_timeout)\n%s",
                    seconds,
                    self._longest,
                    self._limit,
                    stacks(),
                )


def stacks() -> str:
    """What every thread of this process that runs Python is doing, but the caller's.

    Threads of TensorFlow are among them while they call functions of Python.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            name = names.get(ident, f"{ident:#x} of TensorFlow or another library")
            parts.append(f"Thread {name}:\n{''.join(traceback.format_stack(frame)).rstrip()}")
    return "\n".join(parts)
