"""Sees every call by which this process changes files; for forked children."""

import os
import signal
from pathlib import Path

CHANGES = ("open", "write", "pwrite", "fsync", "link", "replace", "unlink", "mkdir", "close")


class Calls:
    """Does something instead of, or before, the n-th call from now that changes a file.

    Args:
        at: n; None: only records.
        action: "kill" or an errno to fail with (of what is written the first half arrives), or
            "stop".
    """

    def __init__(self, at=None, action="kill"):
        self.seen = []
        self.failed = False
        self._left = at
        self._action = action
        self._paths = {}
        self._real = {}

    def __enter__(self):
        for name in CHANGES:
            self._real[name] = getattr(os, name)
            setattr(os, name, self._wrapped(name, self._real[name]))
        return self

    def __exit__(self, *exception):
        for name, real in self._real.items():
            setattr(os, name, real)

    def _wrapped(self, name, real):
        def call(first, *others, **named):
            told = self._told(name, first, others)
            if told is not None:
                self.seen.append((name, *told))
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        self._act(name, real, first, others)
            result = real(first, *others, **named)
            if name == "open":
                self._paths[result] = Path(first)
            return result

        return call

    def _told(self, name, first, others):
        """The paths that a call changes; None if it changes nothing."""
        if name == "close":
            self._paths.pop(first, None)
            return None
        if name == "open":
            return (Path(first),) if others and others[0] & os.O_CREAT else None
        if name in ("write", "pwrite", "fsync"):
            return (self._paths[first],) if first in self._paths else None
        return tuple(Path(p) for p in (first, *others) if isinstance(p, str | os.PathLike))

    def _act(self, name, real, first, others):
        self.failed = True
        if self._action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if name in ("write", "pwrite"):
            data, *at = others
            real(first, memoryview(data)[: len(data) // 2], *at)
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self._action, os.strerror(self._action))
