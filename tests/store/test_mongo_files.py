"""Files in GridFS: partial reads, damage, lost connections."""

import hashlib
import itertools
import json
import time
from dataclasses import replace
from datetime import timedelta

import gridfs
import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, block, reader, started, state, validation
from bson import ObjectId
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect
from recorder import RECORDER
from safetensors.numpy import load

from pipefit.errors import CheckpointCorrupt, LeaseLost, StoreError, StoreUnavailable
from pipefit.records import RunState
from pipefit.store import open_store
from pipefit.store.files import Bucket


def big(megabytes=8):
    """A state of one-megabyte tensors, and a small one."""
    tensors = {f"layer{i}/kernel": np.full(262_144, i, np.float32) for i in range(megabytes)}
    return {**tensors, "step": np.asarray(7)}


def chunks(seen):
    """The chunks of files among the replies of commands."""
    batches = [
        reply["cursor"].get("firstBatch", reply["cursor"].get("nextBatch"))
        for command, reply in seen
        if command in ("find", "getMore")
    ]
    return [document for batch in batches for document in batch if "data" in document]


def stored(database, bucket="checkpoints"):
    """Files and chunks in a bucket, and the chunks that belong to no file."""
    files = {file["_id"] for file in database[f"{COLLECTION}.{bucket}.files"].find({}, {"_id": 1})}
    owners = database[f"{COLLECTION}.{bucket}.chunks"].distinct("files_id")
    return len(files), [owner for owner in owners if owner not in files]


def test_only_the_chunks_of_the_wanted_tensors_are_read(store):
    started(store).commit(7, big(), PERMANENT)
    with RECORDER.recording() as seen:
        found = reader(store).weights(include="^layer3/")

    np.testing.assert_array_equal(found["layer3/kernel"], big()["layer3/kernel"])
    assert 5 <= len(chunks(seen)) <= 6  # of 33: 1 MiB in chunks of 255 KiB
    with RECORDER.recording() as seen:
        assert reader(store).weights(include="step|layer[05]")["step"] == 7
    assert len(chunks(seen)) <= 13
    with RECORDER.recording() as seen:
        reader(store).weights(include="no such tensor")
        reader(store).checkpoints()
        store.runs()
    assert chunks(seen) == []


def test_an_index_that_is_very_long_is_read_from_the_file(store, database):
    many = {f"{'x' * 200}/{i}": np.asarray(i) for i in range(3000)}
    started(store).commit(7, many, PERMANENT)

    file = database[f"{COLLECTION}.checkpoints.files"].find_one()
    assert "header" not in file["metadata"]
    assert reader(store).weights(include="/2999$").popitem()[1] == 2999
    assert len(reader(store).weights()) == 3000


def test_the_file_is_safetensors_in_gridfs(store, database):
    started(store).commit(7, state(1.0), PERMANENT)
    info = reader(store).checkpoint()
    bucket = gridfs.GridFSBucket(database, f"{COLLECTION}.checkpoints")
    data = bucket.open_download_stream(ObjectId(info.id)).read()

    assert (len(data), hashlib.sha256(data).hexdigest()) == (info.size, info.sha256)
    loaded = load(data)
    np.testing.assert_array_equal(loaded["dense/kernel"], state(1.0)["dense/kernel"])
    file = database[f"{COLLECTION}.checkpoints.files"].find_one()
    assert (file["length"], file["metadata"]["sha256"]) == (info.size, info.sha256)
    assert abs(file["uploadDate"] - info.created) < timedelta(seconds=10)
    assert json.loads(file["metadata"]["header"])["dense/kernel"]["shape"] == [4, 3]


def flipped(data):
    """One bit of the last byte is another."""
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("number", "damage"),
    [
        (2, flipped),
        (2, lambda data: data[:-1]),
        (2, None),
        (0, lambda data: b"\xff" * len(data)),
        (32, None),
    ],
    ids=["one bit", "one byte short", "chunk missing", "header", "last chunk missing"],
)
def test_damage_is_found(store, database, number, damage):
    writer = started(store)
    info = writer.commit(7, big(), PERMANENT)
    where = {"files_id": ObjectId(info.id), "n": number}
    held = database[f"{COLLECTION}.checkpoints.chunks"]
    if damage is None:
        assert held.delete_one(where).deleted_count == 1
    else:
        data = damage(held.find_one(where)["data"])
        held.update_one(where, {"$set": {"data": data}})

    with pytest.raises(CheckpointCorrupt, match=r"checkpoint of step 7 of run 'a'.*use an earlier"):
        writer.read_checkpoint(info)
    with pytest.raises(CheckpointCorrupt):
        reader(store).weights()


def test_missing_or_short_chunks_are_found_in_partial_reads(store, database):
    writer = started(store)
    info = writer.commit(7, big(), PERMANENT)
    held = database[f"{COLLECTION}.checkpoints.chunks"]
    held.update_one({"n": 2}, {"$set": {"data": b"short"}})
    held.delete_one({"n": 10})

    for include in ("layer0", "layer2"):
        with pytest.raises(CheckpointCorrupt, match="step 7 of run 'a' is damaged"):
            writer.read_checkpoint(info, include)
    assert writer.read_checkpoint(info, "layer7")["layer7/kernel"][0] == 7
    database[f"{COLLECTION}.checkpoints.files"].delete_many({})
    with pytest.raises(CheckpointCorrupt, match="is gone from"):
        writer.read_checkpoint(info, "layer7")


def test_damaged_outputs_and_artifacts_are_found(store, database):
    info = started(store).commit(10, state(1.0), PERMANENT)
    outputs = store.outputs_writer(COLLECTION, "a", "test")
    outputs.add({"x": np.ones((100, 1))})
    store.commit_validation(COLLECTION, "a", info, validation(10), outputs.close())
    store.put_artifact(COLLECTION, "a", "report", 10, b"report")
    for chunk in database[f"{COLLECTION}.artifacts.chunks"].find():
        database[f"{COLLECTION}.artifacts.chunks"].update_one(
            {"_id": chunk["_id"]}, {"$set": {"data": flipped(chunk["data"])}}
        )

    with pytest.raises(CheckpointCorrupt, match="shard 0 of the outputs of set 'test'"):
        reader(store).outputs("test")["x"]
    with pytest.raises(CheckpointCorrupt, match="artifact 'report' of run 'a'"):
        reader(store).artifact("report")


def test_what_is_replaced_or_removed_leaves_nothing_behind(store, database):
    writer = started(store)
    for _ in range(2):
        info = writer.commit(10, state(1.0), PERMANENT)
        outputs = store.outputs_writer(COLLECTION, "a", "test")
        outputs.add({"x": np.ones((100, 1))})
        store.commit_validation(COLLECTION, "a", info, validation(10), outputs.close())
        store.put_artifact(COLLECTION, "a", "report", 10, b"report")
    aborted = store.outputs_writer(COLLECTION, "a", "test")
    aborted.add({"x": np.ones((30, 100_000))})
    aborted.abort()
    writer.commit(20, state(1.0), PERMANENT)
    writer.retain({})

    assert stored(database) == (1, [])
    assert stored(database, "artifacts") == (2, [])
    kinds = [record["kind"] for record in database[f"{COLLECTION}.records"].find()]
    assert sorted(kinds) == ["artifact", "attempt", "checkpoint", "outputs", "validated"]


@pytest.mark.parametrize("megabytes", [1, 5, 20], ids=lambda m: f"after {m} MB")
def test_an_upload_that_loses_its_connection_is_repeated_whole(store, database, proxy, megabytes):
    far = open_store(proxy.uri)
    writer = started(far)
    writer.commit(6, state(6.0), PERMANENT)
    proxy.cut_after = megabytes * 2**20
    writer.commit(7, big(40), PERMANENT)

    assert proxy.cuts == 1
    assert stored(database) == (2, [])
    np.testing.assert_array_equal(
        reader(store).weights()["layer39/kernel"], big(40)["layer39/kernel"]
    )


def test_every_write_may_be_repeated_after_an_outage(store, database, proxy):
    separator = "&" if "?" in proxy.uri else "?"
    far = open_store(f"{proxy.uri}{separator}serverSelectionTimeoutMS=1000")
    writer = started(far)
    writer.commit(10, state(10.0), PERMANENT)
    proxy.down()
    with pytest.raises(StoreUnavailable):
        writer.renew()
    with pytest.raises(StoreUnavailable):
        writer.commit(20, state(20.0), PERMANENT)
    with pytest.raises(StoreUnavailable):
        far.statuses(COLLECTION, ["a"])
    proxy.up()
    writer.commit(20, state(20.0), PERMANENT)

    assert reader(store).weights()["step"] == 20
    assert stored(database) == (2, [])


def test_answers_that_are_lost_do_not_matter(store, proxy):
    """Every command of a whole life is cut off once, before or after the server did it."""
    far = open_store(proxy.uri)
    for at in range(1, 6000, 700):
        name = f"run-{at}"
        proxy.cut_after = at
        writer = started(far, name)
        writer.write_metrics(block(1, 10))
        writer.write_validation(validation(10))
        writer.commit(10, state(10.0), PERMANENT)
        writer.retain({})
        writer.end(RunState.FINISHED, None, 10, "")
        proxy.cut_after = None

        status = reader(store, name).status()
        assert (status.state, status.step) == (RunState.FINISHED, 10)
        assert len(reader(store, name).attempts()) == 1
        assert len(reader(store, name).metrics()) == 10
    assert proxy.cuts > 5


def test_a_failed_upload_leaves_no_chunks(store, database, monkeypatch):
    writer = started(store)
    writer.commit(6, state(6.0), PERMANENT)
    insert, inserted = Collection.insert_many, []

    def interrupted(self, documents, **others):
        inserted.append(insert(self, documents, **others))
        if len(inserted) == 2:
            raise KeyboardInterrupt
        return inserted[-1]

    monkeypatch.setattr(Collection, "insert_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.commit(7, big(40), PERMANENT)

    assert 2 <= len(inserted) <= 4  # of 11: those that were under way
    assert stored(database) == (1, [])


def failing(method, at):
    """The method, which at its n-th call finds the connection closed."""
    calls = itertools.count(1)

    def call(*arguments, **others):
        if next(calls) == at:
            raise AutoReconnect("connection closed")
        return method(*arguments, **others)

    return call


def test_what_an_outage_left_of_an_upload_is_removed_after_it(store, database, monkeypatch):
    writer = started(store)
    writer.commit(6, state(6.0), PERMANENT)
    monkeypatch.setattr(Collection, "insert_many", failing(Collection.insert_many, at=2))
    monkeypatch.setattr(Bucket, "_remove", failing(Bucket._remove, at=1))
    writer.commit(7, big(), PERMANENT)

    assert stored(database) == (2, [])


def test_an_upload_that_arrives_otherwise_is_not_published(store, database, monkeypatch):
    writer = started(store)
    writer.commit(6, state(6.0), PERMANENT)
    insert = Collection.insert_many

    def falsified(self, documents, **others):
        documents[0]["data"] = flipped(documents[0]["data"])
        return insert(self, documents, **others)

    monkeypatch.setattr(Collection, "insert_many", falsified)
    with pytest.raises(CheckpointCorrupt):
        writer.commit(7, big(), PERMANENT)

    assert reader(store).status().step == 6
    assert stored(database) == (1, [])


def test_an_owner_succeeded_during_its_upload_publishes_nothing(store, database, monkeypatch):
    writer = started(store, ttl=0.05)
    writer.commit(10, state(10.0), PERMANENT)
    put = writer._layout.checkpoints.put_tensors

    def slow(*arguments):
        file = put(*arguments)
        time.sleep(0.1)
        started(store, start=10)
        return file

    monkeypatch.setattr(writer._layout.checkpoints, "put_tensors", slow)
    with pytest.raises(LeaseLost):
        writer.commit(20, state(20.0), PERMANENT)

    assert reader(store).status().step == 10
    assert stored(database) == (1, [])


def test_a_checkpoint_removed_while_it_is_read_is_no_damage(store, monkeypatch):
    writer = started(store)
    writer.commit(10, state(10.0), PERMANENT)
    run = reader(store)
    newest = run.checkpoint()
    writer.commit(20, state(20.0), PERMANENT)
    writer.retain({})
    asked = iter([newest])
    actual = run.checkpoint
    monkeypatch.setattr(run, "checkpoint", lambda step=None: next(asked, None) or actual(step))

    assert run.weights()["step"] == 20


def test_ids_of_files_are_checked(store):
    writer = started(store)
    info = writer.commit(10, state(10.0), PERMANENT)
    with pytest.raises(StoreError, match="'xyz' is not the id of a file"):
        writer.read_checkpoint(replace(info, id="xyz"))
