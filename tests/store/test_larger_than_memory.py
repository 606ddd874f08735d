"""What may be larger than memory is written and read in a bounded part of it."""

import subprocess
import sys

import pytest
from actors import COLLECTION, PERMANENT, started, state

from pipefit.store import open_store

_OUTPUTS = f"""
import resource, sys
import numpy as np
from pipefit.records import Validation
from pipefit.store import open_store

uri, action = sys.stdin.read().split()
store = open_store(uri, cache=False)
run = store.run("a", {COLLECTION!r})
unit = 2**20 if sys.platform == "darwin" else 2**10
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
checkpoint = run.checkpoint()
writer = store.outputs_writer({COLLECTION!r}, "a", "test")
writer.add({{"x": np.ones((1, 25_000), np.float32)}})
before = peak()
if action == "write":
    for number in range(1, 31):
        writer.add({{"x": np.full((100, 25_000), number, np.float32)}})
    validation = Validation("test", 10, {{"loss": 0.0}}, 3001)
    store.commit_validation({COLLECTION!r}, "a", checkpoint, validation, writer.close())
else:
    found = np.concatenate([part["x"][:, 0].copy() for part in run.outputs("test")])
    assert np.array_equal(found, np.repeat(np.arange(31), [1] + [100] * 30).clip(1))
print(peak() - before)
"""


@pytest.fixture(params=["mongodb", "folder"])
def address(request, tmp_path):
    """An empty store of each kind."""
    if request.param == "mongodb":
        return request.getfixturevalue("database_uri")
    return (tmp_path / "results").as_uri()


def test_outputs_of_300_megabytes_take_some_shards_of_memory(address):
    started(open_store(address)).commit(10, state(1.0), PERMANENT)

    for action in ("write", "read"):
        # In a fresh process, which has not had more memory before.
        done = subprocess.run(
            [sys.executable, "-c", _OUTPUTS],
            input=f"{address} {action}",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 100, action  # MB; a shard has 16
