"""Garbage of real kills in MongoDB: found whatever the moment, and held while it must be."""

import os
import signal
import time
import traceback
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, dead_process, images, reader, started, state, validation
from bson import ObjectId
from contract_garbage import crashed, crashed_upload, found
from recorder import RECORDER

from pipefit.errors import StoreAccessDenied
from pipefit.records import RunState
from pipefit.store import open_store, this_process


def killed_at(command, action):
    """Whether a forked child that does this died at its n-th command."""
    pid = os.fork()
    if pid == 0:
        try:
            RECORDER.kill_at(command)
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def loose(database):
    """Files that nothing names, and owners of chunks without a file."""
    named = set()
    for record in database[f"{COLLECTION}.records"].find():
        named |= {c["file"] for c in record.get("columns", []) if "file" in c}
        named |= {c["file"] for c in record.get("values", []) if "file" in c}
        named |= {s["id"] for s in record.get("shards", [])}
        named |= {record["name"]} if record["kind"] == "checkpoint" else set()
        named |= {record["file"]} if record["kind"] == "artifact" else set()
    for run in database[f"{COLLECTION}.runs"].find():
        named |= {file["file"] for file in (run.get("described") or {"artifacts": []})["artifacts"]}
    there = set()
    for bucket in ("checkpoints", "artifacts"):
        there |= {str(f["_id"]) for f in database[f"{COLLECTION}.{bucket}.files"].find({}, {})}
        there |= {str(k) for k in database[f"{COLLECTION}.{bucket}.chunks"].distinct("files_id")}
    return there - named


def life(store, name):
    """All that is ever written of a run, by its owner and without a lease."""
    writer = started(store, name)
    writer.describe({"parameters": 7}, {"model.txt": b"text" * 100_000})
    for step in (10, 20):
        writer.write_metrics(images(step - 9, step))
        writer.write_validation(validation(step, values={"roc": np.ones(1000)}))
        info = writer.commit(step, {"x": np.full(500_000, step, np.float32)}, PERMANENT)
        writer.retain({})
    outputs = store.outputs_writer(COLLECTION, name, "test")
    outputs.add({"x": np.ones((10, 300_000))})
    outputs.add({"x": np.ones((10, 300_000))})
    given = validation(20, examples=20, values={"roc": np.ones(1000)})
    store.commit_validation(COLLECTION, name, info, given, outputs.close())
    store.put_artifact(COLLECTION, name, "report", 20, b"report" * 100_000)
    writer.end(RunState.FINISHED, None, 20, "")


def test_whenever_a_process_is_killed_all_that_it_left_is_removed_at_once(store, database):
    life(store, "warm-up")
    left, at = 0, 1
    while killed_at(at, lambda: life(store, f"killed-at-{at}")):  # noqa: B023
        before = loose(database)
        left += bool(before)
        held = [item for item in store.garbage(COLLECTION, remove=True) if item.held]
        assert held == [], at
        assert loose(database) == set(), at
        at += 3
    assert at > 60 and left > 7
    assert len(reader(store, f"killed-at-{at}").outputs("test")) == 20
    for name in store.runs()["name"]:
        run = reader(store, name)
        for step in run.checkpoints()["step"]:
            assert run.weights(step)["x"][0] == step
        assert len(run.metrics()) in (0, 10, 20)


def test_drafts_of_steps_that_were_made_again_are_held_for_readers(store):
    crashed(store)
    assert found(store) == []
    again = started(store, start=10)
    assert found(store) == [("draft", False)] * 3
    assert found(store, grace=3600.0) == [("draft", True)] * 3
    assert "reader" in store.garbage(COLLECTION)[0].held
    again.write_metrics(images(11, 20, value=-1.0))
    first, second = store.garbage(COLLECTION, grace=0.0)
    assert {first.size, second.size} == {24_000, 8000}  # images, a curve
    assert len(store.garbage(COLLECTION, grace=0.0, remove=True)) == 2
    assert found(store) == []


def test_what_an_earlier_owner_left_does_not_wait_for_the_next_one(store):
    crashed_upload(store, started(store, owner=dead_process()))
    time.sleep(0.2)
    started(store)

    assert found(store, grace=3600.0) == [("checkpoint", True)]
    assert found(store, grace=0.1) == [("checkpoint", False)]


def test_a_draft_that_is_replaced_meanwhile_is_left_alone(store, monkeypatch):
    crashed(store)
    again = started(store, start=10)
    backend = store._backend(COLLECTION)
    listed = list(backend.all_records("a", values=False))
    again.write_metrics(images(11, 20, value=-1.0))
    again.write_metrics(images(21, 30, value=-1.0))
    again.write_validation(validation(20, values={"roc": np.zeros(1000)}))
    monkeypatch.setattr(
        type(backend), "all_records", lambda self, run, values: iter(listed if run else ())
    )

    removed = [i for i in store.garbage(COLLECTION, grace=0.0, remove=True) if not i.held]
    assert removed == []
    monkeypatch.undo()
    assert [image[0, 0] for _, image in reader(store).values("image")][10:] == [-1.0] * 20
    assert reader(store).values("test/roc")[20].sum() == 0


def test_a_run_that_changes_its_owner_meanwhile_is_left_alone(store, monkeypatch):
    writer = started(store, owner=dead_process())
    origin = {"run": "a", "step": 100, "fence": 1}
    store._backend(COLLECTION).checkpoints.put_tensors(state(1.0), "a/100", origin)
    backend = type(store._backend(COLLECTION))
    actual = backend.all_records

    def slow(self, run, values):
        found = list(actual(self, run, values=values))
        if run == "a":
            started(store)
        return iter(found)

    monkeypatch.setattr(backend, "all_records", slow)
    (item,) = store.garbage(COLLECTION, remove=True, grace=0.0)
    assert item.held == "its run changed its owner just now"
    assert writer.fence == 1


def test_chunks_without_a_file_are_removed_unless_they_are_young(store, database):
    started(store).commit(10, state(10.0), PERMANENT)
    chunks = database[f"{COLLECTION}.checkpoints.chunks"]
    old, young = (
        ObjectId.from_datetime(datetime.now(UTC) - timedelta(seconds=age))
        for age in (100_000, 7200)
    )
    chunks.insert_one({"_id": old, "files_id": old, "n": 0, "data": b"x" * 1000})
    for n in range(3):
        chunks.insert_one({"files_id": young, "n": n, "data": b"x" * 1000})

    garbage = {item.id: item for item in store.garbage(COLLECTION)}
    assert sorted(item.kind for item in garbage.values()) == ["bytes", "bytes"]
    assert sorted(item.size for item in garbage.values()) == [1000, 3000]
    assert garbage[str(old)].held is None and garbage[str(old)].age > 99_000
    store.garbage(COLLECTION, remove=True)
    assert found(store) == [("bytes", False)] and found(store, 3600.0) == [("bytes", True)]
    assert reader(store).weights()["step"] == 10


def test_a_checkpoint_that_lost_its_file_document_is_no_garbage(store, database):
    started(store).commit(10, state(10.0), PERMANENT)
    database[f"{COLLECTION}.checkpoints.files"].delete_many({})

    assert store.garbage(grace=0.0, remove=True) == []
    assert reader(store).weights()["step"] == 10


def test_records_of_a_run_that_somebody_deleted_are_found(store, database):
    writer = started(store)
    writer.write_metrics(images(1, 10))
    writer.commit(10, state(10.0), PERMANENT)
    started(store, "b").commit(10, state(10.0), PERMANENT)
    database[f"{COLLECTION}.runs"].delete_one({"_id": "a"})

    store.garbage(grace=0.0, remove=True)
    assert found(store) == []
    assert database[f"{COLLECTION}.records"].distinct("run") == ["b"]
    assert reader(store, "b").weights()["step"] == 10


def test_who_may_only_read_may_look_and_not_remove(store, database, database_uri):
    crashed(store)
    started(store, start=10)
    admin = database.client.admin
    role = {"role": "read", "db": database.name}
    admin.command("createUser", "looker", pwd="secret", roles=[role])
    try:
        guest = open_store(f"mongodb://looker:secret@{database_uri.rpartition('@')[2]}")
        assert len(guest.garbage(grace=0.0)) == 3
        with pytest.raises(StoreAccessDenied):
            guest.garbage(grace=0.0, remove=True)
    finally:
        admin.command("dropUser", "looker")
    assert len(store.garbage(grace=0.0)) == 3


def test_a_trainer_that_is_stopped_in_its_commit_goes_on_after_it(store):
    """It is asleep between upload and publication while all others are cleaned up around it."""
    started(store).end(RunState.INTERRUPTED, None, None, "")
    pid = os.fork()
    if pid == 0:
        writer = started(store)
        put = writer._layout.checkpoints.put_tensors

        def sleepy(*arguments):
            stored = put(*arguments)
            os.kill(os.getpid(), signal.SIGSTOP)
            return stored

        writer._layout.checkpoints.put_tensors = sleepy
        writer.commit(10, state(10.0), PERMANENT)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    for _ in range(3):
        store.garbage(remove=True, grace=0.0)
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reader(store).weights()["step"] == 10
    assert this_process().pid != pid
