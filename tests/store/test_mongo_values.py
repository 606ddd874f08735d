"""Values in files, descriptions and notes: crashes, lost answers, stale owners, garbage, speed."""

import os
import signal
import time
import traceback
from functools import partial

import numpy as np
import pytest
from actors import (
    COLLECTION,
    ELSEWHERE,
    PERMANENT,
    images,
    reader,
    started,
    state,
    validation,
)
from recorder import RECORDER

from pipefit.errors import CheckpointCorrupt, LeaseLost, StoreUnavailable
from pipefit.records import MetricBlock, RunState
from pipefit.store import open_store


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


def first_numbers(values):
    return {step: float(array.flat[0]) for step, array in values}


def unnamed(database):
    """Files of the artifacts that nothing names, as `pipefit.store.documents` tells."""
    named = set()
    for run in database[f"{COLLECTION}.runs"].find({}, {"described.artifacts.file": 1}):
        named |= {file["file"] for file in run.get("described", {}).get("artifacts", ())}
    for record in database[f"{COLLECTION}.records"].find({}):
        named |= {entry.get("file") for entry in record.get("columns", ())}
        named |= {entry.get("file") for entry in record.get("values", ())}
        named |= {shard["id"] for shard in record.get("shards", ())} | {record.get("file")}
    files = list(database[f"{COLLECTION}.artifacts.files"].find())
    assert all(file["metadata"]["run"] and file["uploadDate"] for file in files)
    return [file for file in files if str(file["_id"]) not in named]


def chunks_without_file(database):
    files = database[f"{COLLECTION}.artifacts.files"].distinct("_id")
    owners = database[f"{COLLECTION}.artifacts.chunks"].distinct("files_id")
    return [owner for owner in owners if owner not in files]


WRITES = {
    "metrics": (
        lambda writer, value: writer.write_metrics(images(1, 3, value=value)),
        lambda run: set(first_numbers(run.values("image")).values()),
    ),
    "validation": (
        lambda writer, value: writer.write_validation(
            validation(3, accuracy=value, values={"roc": np.full(1000, value)})
        ),
        lambda run: {
            *first_numbers(run.values("test/roc")).values(),
            *run.validations()["accuracy"],
        },
    ),
    "description": (
        lambda writer, value: writer.describe(
            {"number": value}, {"text": str(value).encode(), "other": str(value).encode()}
        ),
        lambda run: {
            run.document()["model"]["number"],
            float(run.artifact("text")),
            float(run.artifact("other")),
        },
    ),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_process_killed_anywhere_in_a_write_leaves_the_old_or_the_new_whole(
    store, database, kind
):
    write, read = WRITES[kind]

    def killed(name, command):
        writer = started(store, name)
        write(writer, 1.0)
        RECORDER.kill_at(command)
        write(writer, 2.0)

    seen = []
    for command in range(1, 100):
        name = f"killed-at-{command}"
        died = forked(partial(killed, name, command))
        (value,) = read(reader(store, name))
        seen.append(value)
        if died == 0:
            break
        assert died == -signal.SIGKILL
        # What the attempt left is repeated by the next one, which begins from nothing, too.
        write(started(store, name), 3.0)
        assert read(reader(store, name)) == {3.0}

    assert seen == sorted(seen)
    assert seen.count(1.0) >= 4
    assert seen.count(2.0) >= 2
    # Between an upload and its record, and between a record and the removal of the old file.
    garbage = unnamed(database)
    assert 2 <= len(garbage) <= 2 * len(seen)
    assert {file["metadata"]["run"] for file in garbage} <= {f"killed-at-{i}" for i in range(100)}


def test_what_is_replaced_leaves_nothing_behind(store, database):
    writer = started(store)
    checkpoint = writer.commit(3, state(3.0), PERMANENT)
    for value in (1.0, 2.0):
        for write, _ in WRITES.values():
            write(writer, value)
        store.commit_validation(
            COLLECTION, "a", checkpoint, validation(3, values={"roc": np.full(1000, value)})
        )
    assert (unnamed(database), chunks_without_file(database)) == ([], [])
    assert database[f"{COLLECTION}.artifacts.files"].count_documents({}) == 5

    writer.write_metrics(MetricBlock(1, {"loss": np.ones(3)}))
    writer.write_validation(validation(3))
    writer.describe({}, {})
    store.commit_validation(COLLECTION, "a", checkpoint, validation(3))
    assert database[f"{COLLECTION}.artifacts.files"].count_documents({}) == 0
    assert chunks_without_file(database) == []


def test_a_column_that_cannot_be_kept_leaves_nothing_behind(store, database):
    writer = started(store)
    image = np.ones((3, 1000))
    with pytest.raises(Exception, match="value 'bad' is"):
        writer.write_metrics(MetricBlock(1, {"image": image, "bad": np.array([{}, {}, {}])}))
    with pytest.raises(Exception, match="value 'bad' is"):
        writer.write_validation(validation(3, values={"image": image, "bad": 1j}))

    assert database[f"{COLLECTION}.artifacts.files"].count_documents({}) == 0


def test_an_owner_that_slept_through_its_succession_spoils_no_values(store, database, monkeypatch):
    sleeper = started(store, owner=ELSEWHERE, ttl=0.05)
    sleeper.commit(10, state(10.0), PERMANENT)
    time.sleep(0.1)
    successor = started(store, start=10)
    successor.write_metrics(images(11, 20))
    successor.write_validation(validation(20, values={"roc": np.ones(1000)}))
    # As if it had asked for its lease before all that, and been stopped right after.
    monkeypatch.setattr(sleeper, "_update", lambda changes=None: None)

    with pytest.raises(LeaseLost, match="a newer attempt than 1 of run 'a' wrote metrics"):
        sleeper.write_metrics(images(11, 20, value=-1.0))
    with pytest.raises(LeaseLost, match="wrote validation of step 20"):
        sleeper.write_validation(validation(20, values={"roc": np.zeros(1000)}))
    assert unnamed(database) == []
    sleeper.write_metrics(images(15, 30, value=-1.0))
    assert first_numbers(reader(store).values("image")) == {s: float(s) for s in range(11, 21)}
    assert first_numbers(reader(store).values("test/roc")) == {20: 1.0}


def test_an_owner_succeeded_during_its_upload_describes_nothing(store, database, monkeypatch):
    writer = started(store, ttl=0.05)
    writer.describe({"parameters": 1}, {"text": b"old"})
    put = writer._layout.artifacts.put

    def slow(*arguments):
        file = put(*arguments)
        time.sleep(0.1)
        started(store)
        return file

    monkeypatch.setattr(writer._layout.artifacts, "put", slow)
    with pytest.raises(LeaseLost):
        writer.describe({"parameters": 2}, {"text": b"new"})

    assert reader(store).document()["model"] == {"parameters": 1}
    assert reader(store).artifact("text") == b"old"
    assert unnamed(database) == []


def test_a_note_repeated_after_an_outage_is_one_note(store, proxy):
    separator = "&" if "?" in proxy.uri else "?"
    far = open_store(f"{proxy.uri}{separator}serverSelectionTimeoutMS=1000")
    writer = started(far)
    writer.note({"event": "before"})
    proxy.down()
    with pytest.raises(StoreUnavailable):
        writer.note({"event": "during"})
    proxy.up()
    writer.note({"event": "during"})
    writer.note({"event": "during"})

    history = reader(store).document()["history"]
    assert [entry["event"] for entry in history] == ["before", "during", "during"]


def test_answers_that_are_lost_do_not_matter(store, database, proxy):
    """Every command of a whole life is cut off once, before or after the server did it."""
    far = open_store(proxy.uri)
    for at in range(1, 30_000, 2500):
        name = f"run-{at}"
        proxy.cut_after = at
        writer = started(far, name)
        for write, _ in WRITES.values():
            write(writer, 1.0)
            write(writer, 2.0)
        writer.note({"event": "rollback"})
        writer.end(RunState.FINISHED, None, 3, "")
        proxy.cut_after = None

        for _, read in WRITES.values():
            assert read(reader(store, name)) == {2.0}
        assert len(reader(store, name).document()["history"]) == 1
    assert proxy.cuts > 5
    assert chunks_without_file(database) == []


def test_damaged_values_are_found(store, database):
    started(store).write_metrics(images(1, 3))
    values = reader(store).values("image")
    database[f"{COLLECTION}.artifacts.chunks"].update_one({"n": 0}, {"$set": {"data": b"short"}})

    with pytest.raises(CheckpointCorrupt, match="value 'image' of step 1 of run 'a' is damaged"):
        values[2]


def test_only_the_piece_of_the_wanted_step_is_read(store):
    writer = started(store)
    for first in range(1, 100, 10):
        writer.write_metrics(images(first, first + 9))
    values = reader(store).values("image")
    with RECORDER.recording() as seen:
        values[55]
        values[56]
    assert len(seen) == 1

    run = reader(store)
    with RECORDER.recording() as seen:
        assert run.values("loss")[7] == 7.0
    sent = [document for _, reply in seen for document in reply["cursor"]["firstBatch"]]
    assert len(sent) == 10 + 1 + 1  # all records, the run, one record again
    assert [c["name"] for record in sent for c in record.get("columns", ()) if "data" in c] == [
        "loss"
    ]


def test_documents_stay_small_whatever_the_values_are(store, database):
    writer = started(store)
    rng = np.random.default_rng(0)
    columns = {
        "histogram": rng.random((3000, 64)),  # 512 bytes per step
        "image": rng.random((3000, 65)),
        "caption": np.array(["words " * 80] * 3000, object),
        **{f"norm/{i}": rng.random(3000) for i in range(200)},
    }
    writer.write_metrics(MetricBlock(1, columns))
    writer.write_validation(validation(10, values={str(i): rng.random(50) for i in range(200)}))
    writer.describe({"layers": ["dense"] * 5000}, {"model.json": b"x" * 3_000_000})
    for number in range(200):
        writer.note({"event": "rollback", "from": number, "to": number - 10, "scale": 0.5})

    sizes = [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    for name in database.list_collection_names():
        (found,) = database[name].aggregate(sizes)
        assert found["largest"] < 1_000_000, name
    for name in ("histogram", "image"):
        for step, value in reader(store).values(name):
            np.testing.assert_array_equal(value, columns[name][step - 1])


def test_a_million_steps_of_ten_metrics_are_a_table_in_seconds(store):
    writer = started(store)
    steps = np.arange(1, 1_000_001)
    block = {
        f"metric {i}": (steps * i).astype(np.float32 if i % 2 else np.int64) for i in range(10)
    }
    for first in range(0, 1_000_000, 5000):
        part = {name: values[first : first + 5000] for name, values in block.items()}
        writer.write_metrics(MetricBlock(first + 1, part))
    reader(store).status()

    begin = time.perf_counter()
    table = reader(store).metrics()
    seconds = time.perf_counter() - begin

    assert seconds < 5.0  # about a second on a machine that does nothing else
    np.testing.assert_array_equal(table.index, steps)
    for name, values in block.items():
        np.testing.assert_array_equal(table[name], values)
