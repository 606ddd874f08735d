"""What SIGTERM and SIGINT do to the `luigi` command: it ends with code 75, and so do its tasks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

from pipefit.errors import EXIT_INTERRUPTED

_AGAIN_SECONDS = 0.05


class Preempted(SystemExit, KeyboardInterrupt):
    """Ends Luigi with code 75 after SIGTERM or SIGINT.

    Luigi turns every exception of a task into a failure and goes on, except KeyboardInterrupt;
    Python's own exit code of that would be 130.
    """

    def __init__(self) -> None:
        super().__init__(EXIT_INTERRUPTED)


def is_luigi_command() -> bool:
    """Whether this process, or the one it was forked from, is the `luigi` command."""
    return "luigi.cmdline" in sys.modules


def end_on_signals() -> None:
    """From now on raise `Preempted` for SIGTERM and SIGINT; where a worker runs see `Executor`.

    On its way out Luigi sends SIGTERM to its forked tasks one after the other and waits for each.
    A further signal hurries them all, or, where there are none, ends this process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    leaving = False

    def handle(number: int, frame: object) -> None:
        nonlocal leaving
        if not leaving:
            leaving = True
            raise Preempted
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        if not children:
            os._exit(EXIT_INTERRUPTED)

    others = sys.unraisablehook

    def not_raised(told: sys.UnraisableHookArgs) -> None:
        nonlocal leaving
        if not isinstance(told.exc_value, Preempted):
            others(told)
            return
        # Python ignores what is raised while an object is deleted: again, a little later.
        leaving = False
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    sys.unraisablehook = not_raised
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, handle)
