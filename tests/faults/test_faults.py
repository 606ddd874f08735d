"""What the soak looks at and aims at: that it would see what is wrong, and hits what it names."""

from collections import Counter

import numpy as np
import pymongo
import pytest

from pipefit.records import MetricBlock, RunOrder, RunState, Validation
from pipefit.store import open_store, this_process
from tests.faults.books import Books, lost
from tests.faults.kinds import KINDS
from tests.faults.moments import MESSAGES, At, Watch
from tests.faults.plan import plan_of
from tests.faults.results import differences, results_of
from tests.faults.variants import VARIANTS
from tests.store.proxy import Proxy

COLLECTION = "faults"
KEPT = frozenset({"permanent"})


def whole_life(store, name="run"):
    """All that a job writes, in its order."""
    order = RunOrder(COLLECTION, name, "same", {"seed": 0}, "{}", steps=20)
    writer = store.acquire(order, this_process(), ttl=600)
    writer.begin(-1)
    writer.describe({"parameters": 1}, {"model.txt": b"a model"})
    for first in (1, 11):
        rows = np.arange(first, first + 10)
        writer.write_metrics(MetricBlock(first, {"loss": 1.0 / rows}))
        writer.write_validation(Validation("test", first + 9, {"accuracy": 0.5}, examples=3))
        writer.commit(first + 9, {"w": rows.astype(np.float32)}, KEPT)
    writer.commit(20, {"w": np.ones(10, np.float32)}, KEPT)
    kept = writer.checkpoints()
    writer.retain({info.id: info.kinds for info in kept if info.step == 20})
    writer.end(RunState.FINISHED, None, 20, "")
    outputs = store.outputs_writer(COLLECTION, name, "test")
    outputs.add({"logits": np.ones((3, 2), np.float32)})
    done = Validation("test", 20, {"accuracy": 0.5}, examples=3)
    store.commit_validation(COLLECTION, name, kept[0], done, outputs.close())
    store.put_artifact(COLLECTION, name, "report.html", 20, b"<html>")
    store.write_summary(COLLECTION, name, 20, {"step": 20, "validations": {}})


@pytest.fixture
def database(database_uri):
    with pymongo.MongoClient(database_uri) as client:
        yield client.get_default_database()


def test_every_write_of_a_job_can_be_aimed_at(database_uri):
    proxy = Proxy(database_uri)
    watches = {
        (name, sent): Watch(At(name, 1, sent)) for name in MESSAGES for sent in (False, True)
    }
    for watch in watches.values():
        watch.release()
    proxy.watch = lambda piece, sent: [watch(piece, sent) for watch in watches.values()]
    whole_life(open_store(proxy.uri))
    proxy.close()
    assert [key for key, watch in watches.items() if not watch.reached.is_set()] == []


def test_what_is_lost_doubled_or_left_over_is_seen(store, database, database_uri):
    whole_life(store)
    whole = Books(database_uri, COLLECTION)
    assert whole.counting["run metrics  20"] == 1
    assert (whole.orphans, whole.missing, whole.drafts) == ([], [], 0)

    records = database[f"{COLLECTION}.records"]
    block = records.find_one({"kind": "metrics", "step": 11}, {"_id": 0})
    records.insert_one({**block, "step": 15})
    records.delete_one({"kind": "validation", "step": 10})
    bucket = database[f"{COLLECTION}.checkpoints"]
    bucket.chunks.insert_one({"files_id": "nobody's", "n": 0, "data": b"123"})
    bucket.chunks.delete_one({"n": 0, "files_id": {"$ne": "nobody's"}})
    books = Books(database_uri, COLLECTION)
    assert lost(books.counting, whole.counting) == ["run validation test 10"]
    rows = [f"run metrics  {step}" for step in range(15, 21)]
    doubled = Counter(books.counting) - Counter(whole.counting)
    assert [doubled[row] for row in rows] == [1] * 6
    assert books.orphans == ["nobody's"]
    assert len(books.missing) == 1


def test_one_bit_is_a_difference(store):
    whole_life(store)
    found, again = (results_of(store, COLLECTION, "run") for _ in range(2))
    assert list(differences(found, again)) == []
    again["metrics"]["columns"]["loss"]["7"] = again["metrics"]["columns"]["loss"]["8"]
    del again["checkpoints"]["step 20"]["tensors"]["w"]
    told = list(differences(again, found))
    assert [line.partition(":")[0] for line in told] == [
        "checkpoints step 20 tensors w",
        "metrics columns loss 7",
    ]


def test_a_seed_and_a_number_are_a_plan():
    plans = [plan_of(7, number) for number in range(100)]
    assert plans == [plan_of(7, number) for number in range(100)]
    assert [str(plan) for plan in plans] != [str(plan_of(8, number)) for number in range(100)]
    assert {plan.variant.name for plan in plans} == {variant.name for variant in VARIANTS}
    assert {fault.kind for plan in plans for fault in plan.faults} == KINDS.keys()
    assert {len(plan.faults) for plan in plans} == {1, 2, 3}
