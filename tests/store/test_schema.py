"""Collections of other versions: older ones are read and brought up to date, newer ones refused."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, acquire, block, reader, started, state
from bson import Int64
from recorder import RECORDER

from pipefit.errors import StoreError
from pipefit.records import RunState
from pipefit.store import open_store, schema
from pipefit.store.codec import encode_tensors
from pipefit.store.documents import CHECKPOINT
from pipefit.store.files import Bucket

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OWNER = {"host": "elsewhere", "scope": "another boot", "pid": 1, "started": 0.0}


def write_version_1(database, store):
    """The run "a" as version 1 had it: 20 steps, checkpoints at 10 and 20."""
    records = database[f"{COLLECTION}.records"]
    records.create_index([("run", 1), ("kind", 1), ("name", 1), ("step", 1)], unique=True)
    records.create_index([("run", 1), ("kind", 1), ("step", 1)])
    bucket = Bucket(store.connection, f"{COLLECTION}.checkpoints")
    common = {"run": "a", "fence": 1, "created": THEN}
    for step in (10, 20):
        file = bucket.put(encode_tensors(state(step)), f"a/{step}.safetensors", {"run": "a"})
        content = {"size": file.size, "sha256": file.sha256, "kinds": ["permanent"], "best": None}
        key = {"kind": CHECKPOINT, "name": file.id, "step": step}
        records.insert_one({**common, **key, **content})
        loss = np.arange(step - 9, step + 1, dtype=np.float64).tobytes()
        column = {"name": "loss", "dtype": "<f8", "shape": [], "data": loss}
        key = {"kind": "metrics", "name": "", "step": step - 9}
        records.insert_one({**common, **key, "steps": 10, "written": 0, "columns": [column]})
    ended = {"ended": THEN, "state": "FINISHED", "reason": None, "reached": 20}
    attempt = {"fence": 1, "owner": OWNER, "started": THEN, "start": -1, **ended}
    key = {"kind": "attempt", "name": "", "step": 1, "log_tail": "", "program": "{}"}
    records.insert_one({**common, **key, **attempt})
    parts = {"optimizer.learning_rate": 0.05, "seed": 0}
    texts = {"parts": json.dumps(parts), "spec": "{}", "program": "{}"}
    states = {"state": "FINISHED", "reason": None, "best": None, "progress": None, "lease": None}
    database[f"{COLLECTION}.runs"].insert_one(
        {
            **{"_id": "a", "version": 1, "identity": "1", "steps": 20, "fence": 1},
            **{"created": THEN, "updated": THEN, "history": [], "line": [[1, -1]]},
            **texts,
            **states,
            **{"committed": {"step": Int64(20), "id": file.id}, "attempt": attempt},
        }
    )


def test_an_older_collection_is_read_as_it_is(store, database):
    write_version_1(database, store)
    before = sorted(database.list_collection_names())

    run = reader(store)
    assert (run.status().state, run.status().step) == (RunState.FINISHED, 20)
    assert list(run.metrics()["loss"]) == list(range(1, 21))
    assert run.weights(10)["step"] == 10
    assert run.lines() == []
    assert run.attempts()[0].step == 20
    assert sorted(database.list_collection_names()) == before


def test_an_older_collection_is_brought_up_to_date_by_the_next_owner(store, database):
    write_version_1(database, store)
    writer = started(store, start=20)
    writer.write_metrics(block(21, 30))
    writer.commit(30, state(30.0), PERMANENT)
    writer.end(RunState.FINISHED, None, 30, "")

    assert database[f"{COLLECTION}.schema"].find_one() == {"_id": "schema", "version": 2}
    assert "run_1_kind_1_name_1_step_1" not in database[f"{COLLECTION}.records"].index_information()
    store.rewind(COLLECTION, "a", 10)
    writer = started(store, start=10)
    writer.write_metrics(block(11, 20, value=-1.0))
    writer.write_metrics(block(21, 30, value=-1.0))
    assert list(reader(store).metrics()["loss"]) == [*range(1, 11), *[-1.0] * 20]
    assert list(reader(store).line(1).metrics()["loss"]) == list(range(1, 31))


def test_bringing_up_to_date_may_be_interrupted_and_repeated(store, database, monkeypatch):
    write_version_1(database, store)
    for _ in range(2):
        monkeypatch.setattr(schema, "_known", {})
        acquire(store).end(RunState.INTERRUPTED, None, None, "")
        database[f"{COLLECTION}.schema"].delete_many({})  # as if killed right before

    monkeypatch.setattr(schema, "_known", {})
    acquire(store)
    assert reader(store).weights(20)["step"] == 20


def test_a_newer_collection_is_refused_by_readers_and_owners(store, database):
    database[f"{COLLECTION}.schema"].insert_one({"_id": "schema", "version": 3})
    database[f"{COLLECTION}.runs"].insert_one({"_id": "a", "what": "only the newer one knows"})

    for ask in (
        lambda: store.run("a", COLLECTION),
        store.runs,
        lambda: store.statuses(COLLECTION, ["a"]),
        lambda: store.rewind(COLLECTION, "a", 10),
        lambda: acquire(store, "b"),
    ):
        message = r"'digits' of mongodb://.* has the layout 3, .* up to 2: install a newer Pipefit"
        with pytest.raises(StoreError, match=message):
            ask()
    assert database[f"{COLLECTION}.runs"].count_documents({}) == 1


def test_the_version_is_asked_for_once_per_process(store, database_uri):
    acquire(store)
    with RECORDER.recording() as seen:
        again = open_store(database_uri)
        again.statuses(COLLECTION, ["a"])
        acquire(again, "b")
    asked = [reply for name, reply in seen if name == "find" and "schema" in reply["cursor"]["ns"]]
    assert asked == []


def test_a_new_collection_has_its_version(store, database):
    acquire(store)
    told = database[f"{COLLECTION}.schema"].find_one()
    assert told == {"_id": "schema", "version": 2}
    assert store.run("a", COLLECTION).document()["version"] == 2
    assert database[f"{COLLECTION}.schema"].count_documents({}) == 1
