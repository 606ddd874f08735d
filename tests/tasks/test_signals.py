"""What a signal does to the `luigi` command wherever it arrives."""

import subprocess
import sys

DELETED = """
import os, signal, time
from tasks.signals import end_on_signals

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs in here, where what it raises is ignored
            pass

end_on_signals()
last = Last()
del last
time.sleep(30)
"""


def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-c", DELETED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (75, "")
