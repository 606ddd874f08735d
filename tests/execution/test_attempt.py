"""What an attempt does with what the training hands over."""

import json
import logging
import threading

import numpy as np
import pytest
from bson import ObjectId

from pipefit.errors import CheckpointCorrupt
from pipefit.execution.reporter import Reporter
from pipefit.execution.worker import results
from pipefit.execution.worker.attempt import Attempt
from pipefit.records import MetricBlock, RunOrder
from pipefit.spec import read_spec
from pipefit.store import this_process


class Slow:
    """A writer that writes metrics only when it is let."""

    def __init__(self, writer):
        self._writer, self.open = writer, threading.Event()

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def write_metrics(self, block):
        assert self.open.wait(30)
        self._writer.write_metrics(block)


@pytest.fixture
def spec():
    return read_spec("configs/digits.toml", {"name": "a"})


def acquired(store, spec):
    order = RunOrder(spec.collection, spec.name, "1", {}, json.dumps({}), spec.train.steps)
    writer = store.acquire(order, this_process(), ttl=60.0)
    writer.begin(-1)
    return order, writer


def test_training_waits_for_a_database_that_is_slower_than_its_values(store, spec, monkeypatch):
    monkeypatch.setattr(results, "_METRICS_BYTES", 1_000_000)
    order, writer = acquired(store, spec)
    slow = Slow(writer)
    handed_over = []

    with Reporter(lambda event: None) as reporter:
        attempt = Attempt(spec, order, slow, reporter, lambda: None)

        def train():
            for step in range(1, 8):
                attempt.metrics(MetricBlock(step, {"image": np.full((1, 50_000), float(step))}))
                handed_over.append(step)
            attempt.finished(None)

        training = threading.Thread(target=train, daemon=True)
        training.start()
        training.join(1.0)
        assert handed_over == [1, 2]  # 400 kB each; the third is more than may wait
        slow.open.set()
        training.join(30)

    assert handed_over == list(range(1, 8))
    images = store.run("a", spec.collection).values("image")
    assert {step: image[0] for step, image in images} == {step: step for step in range(1, 8)}


class Restored:
    """A course that is only restored."""

    def restore(self, arrays):
        self.step = int(arrays["step"])


@pytest.mark.parametrize("strict", [False, True])
def test_a_damaged_newest_checkpoint_stops_a_strict_run_only(store, spec, caplog, strict):
    _, writer = acquired(store, spec)
    infos = [writer.commit(n, {"step": np.asarray(n)}, frozenset({"recent"})) for n in (1, 2)]
    chunks = store.connection.database[f"{spec.collection}.checkpoints.chunks"]
    data = chunks.find_one({"files_id": ObjectId(infos[1].id)})["data"]
    chunks.update_one({"files_id": ObjectId(infos[1].id)}, {"$set": {"data": data[:-1] + b"x"}})
    assert spec.identity == read_spec("configs/digits.toml", {"save.strict": True}).identity

    asked = read_spec("configs/digits.toml", {"name": "a", "save.strict": strict})
    course, damaged = Restored(), "the checkpoint of step 2 of run 'a' is damaged"
    with Reporter(lambda event: None) as reporter:
        attempt = Attempt(asked, None, writer, reporter, lambda: None)
        if strict:
            with pytest.raises(CheckpointCorrupt, match=damaged):
                attempt.restore(course)
            attempt.give_up(CheckpointCorrupt("it is"))
            assert store.run("a", spec.collection).status().state == "FAILED"
        else:
            assert attempt.restore(course) == course.step == 1
            assert (
                f"{damaged}: " in reporter.tail() and "falling back to the one" in reporter.tail()
            )
        attempt.finished(None)


@pytest.mark.parametrize("lines", [2000, 1])
def test_of_20_megabytes_of_log_the_store_keeps_the_end(store, spec, lines):
    order, writer = acquired(store, spec)
    with Reporter(lambda event: None) as reporter:
        attempt = Attempt(spec, order, writer, reporter, lambda: None)
        for number in range(lines):
            logging.getLogger("a library").warning("%d %s", number, "x" * (20_000_000 // lines))
        attempt.finished(None)

    [ended] = store.run("a", spec.collection).attempts()
    assert ended.log_tail.endswith("xxx") and len(ended.log_tail) == 64_000
    if lines > 1:
        assert ended.log_tail.splitlines()[-1].startswith("WARNING: 1999 xxx")
    sizes = [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    database = store.connection.database
    for name in database.list_collection_names():
        for found in database[name].aggregate(sizes):
            assert found["largest"] < 1_000_000, name
