"""The database goes away while a run is trained: nothing is lost, and nothing waits for ever."""

import re
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pymongo
import pytest

from pipefit.execution import spool
from pipefit.records import RunOrder, RunState
from pipefit.store import open_store, server, this_process
from tests.execution.lab_runs import Worker, assert_same, builder, carry_out, changed, experiment
from tests.pipelines.conftest import _new_database
from tests.store.proxy import Proxy
from tests.store.replica_set import ReplicaSet

VALIDATION = {"test": {"data": builder("points", n=10, seed=1, batch_size=8)}}
SAVE = {"recent_every": 5, "metrics_every": 3, "validate_every": 5}
#: A step takes so long then, in seconds: training goes on while the database is away.
SLOWLY = {"LAB_SECONDS": "0.1"}


def run_of(name, steps=40):
    """An experiment with dropout and batch normalisation."""
    spec = experiment(
        name=name, save=SAVE, validation=VALIDATION, model=builder("net"), loss=builder("plain")
    )
    return changed(spec, train={"steps": steps, "metrics": {}})


def wait_for_step(store, name, step):
    deadline = time.monotonic() + 60
    while (store.statuses("lab", [name]).get(name, None) or no_run).step in (None, *range(step)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class no_run:
    step = None


@pytest.fixture(scope="module")
def whole(mongo_uri):
    """The run as it is when nothing happens to the database."""
    with _new_database(mongo_uri) as uri:
        carry_out(run_of("whole"), uri)
        yield open_store(uri).run("whole", "lab")


def test_gone_for_15_seconds_costs_a_warning(pipefit_home, whole):
    uri = server.ensure_running()
    worker = Worker(run_of("patient"), uri, SLOWLY)
    wait_for_step(open_store(uri), "patient", 10)
    server.stop()
    time.sleep(15)
    assert server.ensure_running() == uri
    code, outcome = worker.end()
    assert code == 0, outcome

    run = open_store(uri).run("patient", "lab")
    assert_same(run, whole)  # each step once
    [attempt] = run.attempts()
    assert attempt.state is RunState.FINISHED
    assert re.search(r"WARNING.* cannot be reached: .*; trying again", attempt.log_tail)
    assert spool.find() == []


def test_gone_for_good_the_run_ends_and_the_same_command_loses_nothing(
    database_uri, pipefit_home, whole
):
    store = open_store(database_uri)
    proxy = Proxy(f"{database_uri}&serverSelectionTimeoutMS=500")
    worker = Worker(run_of("cut"), proxy.uri, SLOWLY, lease_seconds=2.0)
    wait_for_step(store, "cut", 10)
    proxy.down()
    begin = time.monotonic()
    code, outcome = worker.end()

    assert time.monotonic() - begin < 2.0 + 30.0
    assert (code, outcome["error"]) == (1, "StoreUnavailable")
    folder = Path(re.search(r"pipefit replay (\S+)$", outcome["message"])[1])
    assert f"is kept in {folder}; the same command writes it" in outcome["message"]
    assert folder.is_relative_to(pipefit_home / "spool" / "lab")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert store.run("cut", "lab").status().state is RunState.INTERRUPTED

    proxy.up()
    lines = carry_out(run_of("cut"), database_uri)
    assert any(line == f"wrote what attempt 1 had left in {folder}" for line in lines)
    assert not (pipefit_home / "spool" / "lab").exists()
    first, second = store.run("cut", "lab").attempts()
    assert first.state is RunState.FAILED and "cannot be reached" in first.reason
    # Training had gone on; where it was then, it goes on now.
    assert second.start == first.step > 10
    assert_same(store.run("cut", "lab"), whole)


@pytest.fixture(scope="module")
def replica_set(tmp_path_factory):
    with ReplicaSet(tmp_path_factory.mktemp("replicas")) as servers:
        yield servers


def test_a_primary_that_is_killed_in_the_middle_of_a_run_costs_nothing(replica_set, whole):
    uri = replica_set.uri("training")
    worker = Worker(run_of("elected"), uri, SLOWLY)
    wait_for_step(open_store(uri), "elected", 10)
    replica_set.kill_primary()
    code, outcome = worker.end()
    assert code == 0, outcome

    run = open_store(uri).run("elected", "lab")
    assert_same(run, whole)
    assert [attempt.state for attempt in run.attempts()] == [RunState.FINISHED]


def test_a_primary_that_is_killed_in_the_middle_of_an_upload_costs_nothing(replica_set):
    replica_set.heal()
    uri = replica_set.uri("uploads")
    store = open_store(uri)
    writer = store.acquire(RunOrder("big", "a", "1", {}, "{}", 10), this_process(), 60.0)
    writer.begin(-1)
    state = {"w": np.random.default_rng(0).random(4_000_000)}
    committing = threading.Thread(target=writer.commit, args=(10, state, frozenset({"recent"})))
    with pymongo.MongoClient(uri) as client:
        bucket = client["uploads"]["big.checkpoints.chunks"]
        committing.start()
        while bucket.estimated_document_count() < 3:
            time.sleep(0.001)
        replica_set.kill_primary()
        committing.join(60)

        assert not committing.is_alive()
        weights = store.run("a", "big").weights()  # verified: length, sha256
        np.testing.assert_array_equal(weights["w"], state["w"])
        assert client["uploads"]["big.checkpoints.files"].count_documents({}) == 1
        assert [info.step for info in writer.checkpoints()] == [10]
