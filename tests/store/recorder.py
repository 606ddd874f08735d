"""Sees every command that this process sends to MongoDB."""

import os
import signal
from contextlib import contextmanager

from pymongo import monitoring


class Recorder(monitoring.CommandListener):
    """Records commands, or kills the process at one of them."""

    def __init__(self):
        self._seen = None
        self._sent = None
        self._kill_at = None

    @contextmanager
    def recording(self):
        """Within it the replies of all commands are appended to the list it gives."""
        self._seen = []
        try:
            yield self._seen
        finally:
            self._seen = None

    @contextmanager
    def asking(self):
        """Within it the commands, with their names, are appended to the list it gives."""
        self._sent = []
        try:
            yield self._sent
        finally:
            self._sent = None

    def kill_at(self, number):
        """Let this process die, as by kill -9, instead of sending its n-th command from now."""
        self._kill_at = number

    def started(self, event):
        if self._sent is not None:
            self._sent.append((event.command_name, dict(event.command)))
        if self._kill_at is None:
            return
        self._kill_at -= 1
        if self._kill_at == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event):
        if self._seen is not None:
            self._seen.append((event.command_name, event.reply))

    def failed(self, event):
        pass


RECORDER = Recorder()
