"""The store on MongoDB: the contract, and what only a database shared by many processes shows."""

import multiprocessing
import os
import signal
import time
import traceback
import warnings
from functools import partial

import numpy as np
import pytest
from actors import (
    COLLECTION,
    ELSEWHERE,
    PERMANENT,
    TTL,
    acquire,
    block,
    dead_process,
    images,
    order,
    reader,
    started,
    state,
    validation,
)
from bson import ObjectId
from contract import StoreContract
from recorder import RECORDER

from pipefit.errors import LeaseLost, PipefitError, StoreAccessDenied, StoreUnavailable
from pipefit.records import MetricBlock, RunState
from pipefit.store import client, open_store, this_process
from pipefit.store.documents import CHECKPOINT
from pipefit.store.layout import Layout
from pipefit.store.leases import Claim, Leases


class TestMongoStore(StoreContract):
    pass


def forked(action):
    """The exit status of a forked child that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("exists", [False, True], ids=["new run", "run of a dead owner"])
def test_of_sixteen_processes_that_want_a_run_one_gets_it(store, exists):
    if exists:
        acquire(store, owner=dead_process(), ttl=3600.0)
    processes = multiprocessing.get_context("fork")
    barrier, answers = processes.Barrier(16), processes.SimpleQueue()

    def race():
        store.collections()  # connected
        barrier.wait()
        try:
            answers.put(acquire(store).fence)
        except PipefitError as error:
            answers.put(type(error).__name__)
        barrier.wait()  # the owner lives until all have asked

    racers = [processes.Process(target=race) for _ in range(16)]
    for racer in racers:
        racer.start()
    got = [answers.get() for _ in racers]
    for racer in racers:
        racer.join()

    assert sorted(map(str, got)) == [str(1 + exists)] + ["RunOwned"] * 15
    assert len(reader(store).attempts()) == 1 + exists


@pytest.mark.parametrize("step", [10, 20], ids=["committed again", "new step"])
def test_a_process_killed_anywhere_in_a_commit_leaves_a_whole_checkpoint(store, step):
    def commit(name, command):
        writer = started(store, name)
        writer.commit(10, state(1.0), PERMANENT)
        RECORDER.kill_at(command)
        writer.commit(step, state(2.0), PERMANENT)

    seen = []
    for command in range(1, 100):
        name = f"killed-at-{command}"
        died = forked(partial(commit, name, command))
        run = reader(store, name)
        value = int(run.weights()["step"])
        seen.append(value)
        assert run.status().step == (10 if value == 1 else step)
        assert len(run.checkpoints()) == 1 + (value == 2 and step == 20)
        if died == 0:
            break
        assert died == -signal.SIGKILL
        assert run.status().state is RunState.INTERRUPTED

        successor = started(store, name, start=run.status().step)
        successor.commit(30, state(3.0), PERMANENT)
        successor.retain({})
        assert list(run.checkpoints()["step"]) == [30]
        left = Layout(store.connection, COLLECTION).find_records(name, CHECKPOINT)
        assert len(left) == 1

    # Up to the publishing update the old one is seen, from then on the new one.
    assert seen == sorted(seen)
    assert seen.count(1) >= 6
    assert seen.count(2) >= 2


def test_what_was_seen_before_the_owner_changed_gives_nobody_the_run(store):
    writer = acquire(store, owner=ELSEWHERE, ttl=0.05)
    time.sleep(0.1)
    leases = Leases(Layout(store.connection, COLLECTION))
    seen = leases.layout.find_run("a", light=False)
    claim = Claim(order(), this_process(), TTL, ObjectId())
    writer.renew()
    assert leases._succeed(seen, claim) is None  # it had run out, but was renewed since

    seen = leases.layout.find_run("a", light=False)
    seen["lease"]["expires"] = seen["now"]
    writer.end(RunState.INTERRUPTED, None, None, "")
    assert acquire(store).fence == 2
    assert leases._succeed(seen, claim) is None  # another one took it since
    assert store.lease(COLLECTION, "a").fence == 2


def test_a_run_taken_before_the_connection_broke_is_taken(store):
    leases = Leases(Layout(store.connection, COLLECTION))
    claim = Claim(order(), this_process(), TTL, ObjectId())

    assert [leases.acquire(claim), leases.acquire(claim)] == [1, 1]
    assert len(reader(store).attempts()) == 1


def test_an_owner_that_died_right_after_it_took_the_run_is_an_attempt_for_good(store, proxy):
    acquire(store, "b")  # so there is all that a collection needs

    def fail_at_the_record_of_the_attempt(piece, sent):
        if f"{COLLECTION}.records".encode() in piece:
            proxy.down()

    far = open_store(f"{proxy.uri}&serverSelectionTimeoutMS=100")
    proxy.watch = fail_at_the_record_of_the_attempt
    dead = dead_process()
    with pytest.raises(StoreUnavailable):
        acquire(far, owner=dead, program={"git": "first"})
    assert acquire(store, program={"git": "second"}).fence == 2

    first, second = reader(store).attempts()
    assert (first.fence, first.owner, first.program) == (1, dead, {"git": "first"})
    assert (first.state, first.ended is None) == (RunState.INTERRUPTED, False)
    assert first.reason.startswith("ended without a word, succeeded by")
    assert (second.fence, second.owner, second.program) == (2, this_process(), {"git": "second"})


def test_an_owner_that_slept_through_its_succession_spoils_nothing(store, monkeypatch):
    sleeper = started(store, owner=ELSEWHERE, ttl=0.05)
    sleeper.commit(10, state(10.0), PERMANENT)
    time.sleep(0.1)
    successor = started(store, start=10)
    successor.write_metrics(block(11, 20))
    successor.write_validation(validation(20, accuracy=0.9))
    # As if it had asked for its lease before all that, and been stopped right after.
    monkeypatch.setattr(sleeper, "_update", lambda changes=None: None)

    with pytest.raises(LeaseLost, match="a newer attempt than 1 of run 'a' wrote metrics"):
        sleeper.write_metrics(block(11, 20, value=-1.0))
    with pytest.raises(LeaseLost):
        sleeper.write_validation(validation(20, accuracy=-1.0))
    sleeper.write_metrics(block(15, 30, value=-1.0))
    sleeper.write_validation(validation(25, accuracy=-1.0))
    assert list(reader(store).metrics()["loss"]) == list(range(11, 21))
    assert list(reader(store).validations()["accuracy"]) == [0.9]


def test_a_store_can_be_carried_over_a_fork(store):
    writer = started(store)
    writer.commit(10, state(10.0), PERMANENT)

    def use():
        warnings.simplefilter("error")
        assert reader(store).weights()["step"] in (10, 20)
        writer.commit(20, state(20.0), PERMANENT)
        started(store, "b").write_metrics(block(1, 10))

    for _ in range(3):
        assert forked(use) == 0
        assert reader(store).weights()["step"] == 20
        writer.renew()


def test_a_fork_while_another_thread_connects_does_not_block_the_child(store):
    def use():
        signal.alarm(30)
        assert store.collections() == []

    with client._lock:
        assert forked(use) == 0


def test_documents_stay_small_however_long_the_run(store, database):
    columns = ("loss", "accuracy", "rate", "norm", "time")
    start = -1
    for attempt in range(25):
        writer = started(store, start=start)
        first = start + 1
        steps = np.arange(first, first + 50_000, dtype=np.float64)
        writer.write_metrics(MetricBlock(first, dict.fromkeys(columns, steps)))
        writer.renew({"step": first, "loss": 0.5})
        start = first + 40_000
        writer.commit(start, state(attempt), PERMANENT)
        writer.end(RunState.INTERRUPTED, "asked to stop", start, "log " * 100_000)

    sizes = [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    largest = {
        name: next(database[name].aggregate(sizes))["largest"]
        for name in database.list_collection_names()
    }
    assert max(largest.values()) < 1_000_000
    assert largest[f"{COLLECTION}.runs"] < 10_000
    table = reader(store).metrics()
    assert len(table) > 1_000_000
    np.testing.assert_array_equal(table.index, np.arange(len(table)))
    np.testing.assert_array_equal(table["time"], table.index)


def test_questions_of_a_scheduler_use_an_index(store, database):
    writer = started(store)
    info = writer.commit(10, state(1.0), PERMANENT)
    store.commit_validation(COLLECTION, "a", info, validation(10))
    database.command("profile", 2)
    store.statuses(COLLECTION, ["a", "b"])
    store.committed(COLLECTION, [("a", 10), ("b", 10)])
    store.validated(COLLECTION, [("a", "test", 10)])
    store.summary(COLLECTION, "a", 10)
    reader(store).metrics()
    writer.renew()
    database.command("profile", 0)

    plans = [entry.get("planSummary", "") for entry in database["system.profile"].find({})]
    asked = [plan for plan in plans if plan]
    assert len(asked) >= 8
    assert not [plan for plan in asked if "COLLSCAN" in plan]


def test_one_query_answers_for_many_runs(store):
    started(store).commit(10, state(1.0), PERMANENT)
    names = [f"run-{i}" for i in range(500)] + ["a"]
    with RECORDER.recording() as seen:
        assert set(store.statuses(COLLECTION, names)) == {"a"}
        assert len(seen) == 1
        assert len(store.committed(COLLECTION, [(name, 10) for name in names])) == 1
        assert len(seen) == 3
        assert store.validated(COLLECTION, [(name, "test", 10) for name in names]) == {}
        assert len(seen) == 5


@pytest.fixture
def read_only(store, database, database_uri):
    """The same store for a user who may only read."""
    admin = database.client.admin
    admin.command(
        "createUser", "guest", pwd="p@ss/w0rd", roles=[{"role": "read", "db": database.name}]
    )
    host = database_uri.rpartition("@")[2]
    yield open_store(f"mongodb://guest:p%40ss%2Fw0rd@{host}")
    admin.command("dropUser", "guest")


def test_a_guest_may_read_everything_and_write_nothing(store, read_only):
    writer = started(store)
    writer.write_metrics(images(1, 10))
    writer.describe({"parameters": 7}, {"model.txt": b"model"})
    info = writer.commit(10, state(10.0), PERMANENT)
    outputs = store.outputs_writer(COLLECTION, "a", "test")
    outputs.add({"x": np.ones((100, 1))})
    store.commit_validation(COLLECTION, "a", info, validation(10), outputs.close())
    store.put_artifact(COLLECTION, "a", "report", 10, b"report")

    run = reader(read_only)
    assert len(list(run.values("image"))) == 10
    assert run.artifact("model.txt") == b"model"
    assert len(run.metrics()) == 10
    assert len(run.validations()) == len(run.checkpoints()) == len(run.attempts()) == 1
    assert run.weights(include="kernel").keys() == {"dense/kernel"}
    assert run.outputs("test")["x"].sum() == 100
    assert run.artifact("report") == b"report"
    assert read_only.collections() == [COLLECTION]
    assert len(read_only.runs()) == 1
    for write in (
        lambda: acquire(read_only, "b"),
        lambda: read_only.put_artifact(COLLECTION, "a", "report", 10, b"mine"),
    ):
        with pytest.raises(StoreAccessDenied, match="refuses access: not authorized") as error:
            write()
        assert "w0rd" not in str(error.value)


def test_the_database_is_readable_by_plain_mongodb_tools(store, database):
    writer = started(store)
    writer.write_validation(validation(10, accuracy=0.5))
    writer.commit(10, state(1.0), PERMANENT)

    run = database[f"{COLLECTION}.runs"].find_one({"_id": "a"})
    assert (run["state"], run["committed"]["step"], run["fence"]) == ("RUNNING", 10, 1)
    query = {"run": "a", "kind": "validation", "metrics.accuracy": {"$gte": 0.5}}
    assert database[f"{COLLECTION}.records"].count_documents(query) == 1
    assert database[f"{COLLECTION}.checkpoints.files"].find_one()["metadata"]["run"] == "a"
