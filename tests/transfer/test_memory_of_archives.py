"""A checkpoint is in memory once while it is exported or imported, and only one is."""

import tracemalloc

import numpy as np
import pymongo
import pytest

from pipefit.records import RunOrder, RunState
from pipefit.store import open_store, this_process
from pipefit.transfer import export_runs, import_runs

MB = 40
CHECKPOINTS = 2
#: Messages to the database that are under way.
BESIDE = 32


def most_of(deed):
    """Megabytes that were in use at once while it was done."""
    tracemalloc.start()
    try:
        deed()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["database", "folder"])
def test_large_checkpoints_need_the_memory_of_one(kind, tmp_path, request):
    uri, path = (tmp_path / "first").as_uri(), tmp_path / "a.tar"
    if kind == "database":
        uri = request.getfixturevalue("database_uri")
    store = open_store(uri, cache=False)
    writer = store.acquire(RunOrder("digits", "large", "1", {}, "{}", 3), this_process(), 600)
    writer.begin(-1)
    weights = np.random.default_rng(0).integers(0, 256, MB * 2**20, np.uint8)
    for step in range(1, CHECKPOINTS + 1):
        weights[0] = step
        writer.commit(step, {"w": weights}, frozenset({"permanent"}))
    writer.end(RunState.FINISHED, None, CHECKPOINTS, "")

    del weights
    exported = most_of(lambda: export_runs(store, path, "digits", ["large"]))
    assert MB <= exported < MB + BESIDE
    other = uri.replace("/test-", "/test-b-") if kind == "database" else f"{uri}-b"
    again = tmp_path / "b.tar"
    try:
        place = open_store(other, cache=False)
        assert MB <= most_of(lambda: import_runs(place, path)) < MB + BESIDE
        export_runs(open_store(other), again, "digits", ["large"])
        with path.open("rb") as one, again.open("rb") as same:
            while piece := one.read(2**20):
                assert piece == same.read(2**20)
    finally:
        if kind == "database":
            with pymongo.MongoClient(uri) as client:
                client.drop_database(other.rpartition("/")[2].partition("?")[0])
