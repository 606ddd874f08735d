"""What a commit sends to MongoDB and gets back, and what goes on meanwhile."""

import threading

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, reader, started, state
from recorder import RECORDER

from pipefit.errors import CheckpointCorrupt
from pipefit.execution.writer import BackgroundWriter
from pipefit.store import open_store
from pipefit.store.chunks import SIZE, cut, in_order

DURABLE = {"w": "majority", "j": True}


def big(megabytes):
    """A state of one-megabyte tensors, all different."""
    draw = np.random.default_rng(0)
    return {f"layer{i}/kernel": draw.random(262_144, np.float32) for i in range(megabytes)}


def test_what_publishes_a_checkpoint_is_durable_and_comes_last(store):
    writer = started(store)
    with RECORDER.asking() as sent:
        writer.commit(7, big(9), PERMANENT)

    chunks = f"{COLLECTION}.checkpoints.chunks"
    of_chunks = {
        name: [i for i, (asked, c) in enumerate(sent) if asked == name and c[name] == chunks]
        for name in ("insert", "find")
    }
    published = [
        i for i, (name, c) in enumerate(sent) if name == "update" and "committed" in str(c)
    ]
    assert [len(numbers) for numbers in of_chunks.values()] == [3, 3]  # 37 chunks
    assert len(published) == 1
    assert max(max(numbers) for numbers in of_chunks.values()) < published[0]
    writes = [
        (i, c["writeConcern"]) for i, (name, c) in enumerate(sent) if name in ("insert", "update")
    ]
    assert all(concern["w"] == "majority" for _, concern in writes)
    assert dict(writes)[published[0]].items() >= DURABLE.items()
    # The record, and what publishes it; nobody waits for the disk while there is more to come.
    journalled = [i for i, concern in writes if concern["j"]]
    assert not set(of_chunks["insert"]) & set(journalled)
    assert [i for i in journalled if i > max(of_chunks["insert"])][-1] == published[0]


def test_what_is_damaged_on_its_way_back_is_not_published(store, database, proxy):
    writer = started(open_store(proxy.uri))
    writer.commit(6, state(6.0), PERMANENT)
    passed, lock = [0], threading.Lock()

    def spoilt(data):
        """One bit of what comes back of the second message is another."""
        with lock:
            before, passed[0] = passed[0], passed[0] + len(data)
        if before < 20 * SIZE <= passed[0]:
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    proxy.change = spoilt
    with pytest.raises(CheckpointCorrupt, match=r"came back otherwise than it was written"):
        writer.commit(7, big(20), PERMANENT)
    files, chunks = (database[f"{COLLECTION}.checkpoints.{part}"] for part in ("files", "chunks"))
    assert reader(store).status().step == 6
    assert (files.count_documents({}), len(chunks.distinct("files_id"))) == (1, 1)

    proxy.change = None
    writer.commit(7, big(20), PERMANENT)
    np.testing.assert_array_equal(
        reader(store).weights()["layer9/kernel"], big(20)["layer9/kernel"]
    )


def test_a_database_that_takes_nothing_does_not_stop_steps(store, proxy):
    writer = started(open_store(proxy.uri))
    writer.commit(6, state(6.0), PERMANENT)
    weights = big(10)
    saved, held, go_on = weights["layer9/kernel"].copy(), threading.Event(), threading.Event()

    def hold(data, sent):
        held.set()
        go_on.wait(30)

    proxy.watch = hold
    background = BackgroundWriter()
    snapshot = dict(weights)
    background.put_heavy(lambda: writer.commit(7, snapshot, PERMANENT))
    assert held.wait(30)
    for _ in range(100):  # as TensorFlow does: what somebody else holds is copied before it changes
        weights = {name: array + 1 for name, array in weights.items()}
        background.check()
    assert reader(store).status().step == 6
    go_on.set()
    background.close()

    np.testing.assert_array_equal(reader(store).weights(step=7)["layer9/kernel"], saved)


def test_bytes_are_cut_alike_however_they_come():
    data = np.random.default_rng(0).bytes(1000)
    for sizes in ([1000], [1] * 1000, [0, 300, 0, 100, 600, 0], [250, 250, 500]):
        ends = np.cumsum(sizes)
        pieces = [memoryview(data)[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        found = list(cut(pieces, 300))
        assert [len(piece) for piece in found] == [300, 300, 300, 100]
        assert b"".join(found) == data
    assert list(cut([], 300)) == []


def test_work_by_threads_is_taken_little_ahead_and_over_when_it_fails():
    taken, ended = [], []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    def work(item):
        if item == 10:
            raise KeyError(item)
        ended.append(item)
        return 2 * item

    results = in_order(work, items())
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert len(taken) <= 6
    with pytest.raises(KeyError):
        list(results)
    assert len(taken) <= 14
    assert set(ended) <= set(taken)
    assert not [t for t in threading.enumerate() if t.name.startswith("pipefit-chunks")]
