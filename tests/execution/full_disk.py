"""A database and a home on one disk that is full; to be run in a process of its own.

    full_disk.py HOME [BYTES]

Without BYTES the disk of HOME is small, and is filled; with it the server, and then the process
itself, is let write no file beyond so many bytes.
"""

import os
import resource
import sys
from pathlib import Path

import numpy as np

from pipefit.errors import StoreError
from pipefit.execution import spool
from pipefit.execution.replay import replay
from pipefit.execution.spool import Checkpoint, End
from pipefit.records import RunOrder, RunState
from pipefit.store import AttemptKey, open_store, server, this_process

KINDS = frozenset({"recent"})
MEGABYTES = 16


def state(step):
    return {"w": np.random.default_rng(step).random(MEGABYTES * 2**17)}


def opened():
    return open_store(f"{server.ensure_running()}&serverSelectionTimeoutMS=500", cache=False)


def fill(folder, leave):
    """Take all but so many bytes of a disk."""
    filler = folder / "filler"
    filesystem = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, filesystem.f_bavail * filesystem.f_frsize - leave)
    return filler


def main(home, most=None):
    os.environ["PIPEFIT_HOME"] = str(home)
    store = opened()
    try:
        story(store, home, most)
    finally:
        server.stop()


def story(store, home, most):
    writer = store.acquire(RunOrder("c", "a", "1", {}, "{}", 100), this_process(), 60.0)
    writer.begin(-1)
    writer.commit(1, state(1), KINDS)
    if most is None:
        filler = fill(home, leave=2 * MEGABYTES * 2**20)
    else:
        pid = server.status().pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    done = 1
    try:
        while True:
            writer.commit(done + 1, state(done + 1), KINDS)
            done += 1
    except StoreError as error:
        print("database:", error)

    key = AttemptKey("c", "a", "1", writer.fence, this_process())
    rest = [
        Checkpoint(done + 1, state(done + 1), KINDS, None),
        End(RunState.FAILED, "full", done + 1, ""),
    ]
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
    try:
        spool.write(store.describe(), key, 60.0, rest)
    except StoreError as error:
        print("home:", error)
    assert spool.find() == [] and not list((home / "spool").glob("*/*/*"))
    if most is None:
        filler.unlink()
    else:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    left = spool.read(spool.write(store.describe(), key, 60.0, rest))

    store = opened()  # which starts the server again
    run = store.run("a", "c")
    assert run.status().step == done  # all of what was committed, and nothing of what was not
    np.testing.assert_array_equal(run.weights()["w"], state(done)["w"])
    replay(store, left)
    np.testing.assert_array_equal(run.weights(done + 1)["w"], state(done + 1)["w"])
    assert list(run.checkpoints()["step"]) == list(range(1, done + 2))
    print("continued")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
