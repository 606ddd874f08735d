"""Records of other kinds than those in the dump, written as tfutils wrote them."""

import pickle
from collections import OrderedDict

import gridfs
import numpy as np
import pytest
from bson import ObjectId
from tfutils_dump import Invented

from pipefit.errors import StoreError
from pipefit.report.imports import imported_text
from pipefit.transfer.tfutils import import_tfutils


def imported(store, old, **choices):
    (done,) = import_tfutils(store, old.database(), Invented, **choices)
    return done, store.run(done.name, done.collection)


def written(old, exp_id, step, **fields):
    """Insert a record; returns its id."""
    record = {"exp_id": exp_id, "params": {}, "saved_filters": False, "step": step, **fields}
    return old.files.insert_one(record).inserted_id


def losses(*values):
    return [{"loss": float(value)} for value in values]


def test_steps_that_were_made_again_count_once(changed, store):
    """Killed after step 60, continued after step 40 by a process that saved every 30 steps."""
    written(changed, "again", 40, train_results=losses(*range(1, 41)))
    written(changed, "again", 60, train_results=losses(*range(41, 61)))
    written(changed, "again", 70, train_results=losses(*range(141, 171)))
    done, run = imported(store, changed, exp_ids=["again"])

    metrics = run.metrics()
    assert metrics.index.tolist() == list(range(1, 71)) and done.trained == 70
    assert metrics["loss"].tolist() == [*range(1, 41), *range(141, 171)]
    assert (done.checkpoints, run.status().step) == ((), None)
    assert str(run.status().state) == "FINISHED"


def test_an_experiment_that_was_stopped_early_says_so(changed, store):
    params = {"train_params": {"num_steps": 100}}
    written(changed, "early", 40, params=params, train_results=losses(1))
    _, run = imported(store, changed, exp_ids=["early"])

    assert str(run.status().state) == "INTERRUPTED"
    assert run.status().reason == "the tfutils database has 40 of 100 steps"


def test_values_of_all_kinds_are_taken_over_or_told(changed, store):
    matrix = [[1.0, 2.0], [3.0, 4.0]]
    row = {"loss": 0.5, "top___5": 1, "deep": {"a": 2.0}, "odd": [[1], [1, 2]], "m": matrix}
    valid = {"acc": 0.5, "per___class": list(range(100)), "step": 3.0, "what": {"$weird": 1}}
    params = {"a___b": 1, "link": {"$ref": "x", "$id": 1}, "uri": "mongodb://me:secret@h/d"}
    results = {"validation_results": {"set___1": valid, "none": None}}
    written(changed, "odd", 7, params=params, train_results=[row, row], **results)
    written(changed, "odd", None, **results)
    done, run = imported(store, changed, exp_ids=["odd"])

    metrics = run.metrics()
    assert metrics.index.tolist() == [6, 7]
    assert sorted(metrics.columns) == ["deep/a", "loss", "m", "top.5"]
    assert metrics["m"][7].tolist() == matrix
    (row,) = run.validations().to_dict("records")
    assert (row["set"], row["acc"], row["step"], row["step_"]) == ("set.1", 0.5, 7, 3.0)
    assert run.values("set.1/per.class")[7].tolist() == list(range(100))
    assert done.skipped == {"odd": 2}
    assert "odd, 2 times: it cannot be stored in a run" in imported_text(done)
    stored = run.document()["spec"]["tfutils"]["params"]
    assert stored == {**params, "uri": "mongodb://me:***@h/d"}


def test_validations_of_a_stored_checkpoint_have_its_step(changed, store):
    record = changed.recent("training0")["fs.files"].find_one({"step": 300})
    load = {"load_params": {"exp_id": "training0"}}
    for validates, top in ((record["_id"], 0.75), (ObjectId(), 0.5)):
        valid = {"validation_results": {"valid0": {"top1": top}}, "validates": validates}
        written(changed, "judge", None, params=load, **valid)
    _, run = imported(store, changed, exp_ids=["judge"])

    (row,) = run.validations().to_dict("records")
    assert (row["step"], row["set"], row["top1"]) == (300, "valid0", 0.75)
    assert run.document()["history"][0]["exp_id"] == "training0"


def test_names_that_no_run_may_have(changed, store):
    written(changed, "my model (2)", 1, train_results=losses(1))
    done, _ = imported(store, changed, exp_ids=["my model (2)"])
    assert done.name == "my-model-2-"

    written(changed, "my model/(2)", 1, train_results=losses(1))
    written(changed, "empty", None)
    for choices, words in (
        ({"exp_ids": ["my model (2)", "training0"], "name": "x"}, "is for one experiment"),
        ({"exp_ids": ["training0"], "name": "a b"}, "cannot name a run"),
        ({"exp_ids": ["empty"]}, "none says of which step"),
        ({"exp_ids": ["training0"], "name": "my-model-2-"}, "another run 'my-model-2-' already"),
    ):
        with pytest.raises(StoreError, match=words):
            list(import_tfutils(store, changed.database(), Invented, **choices))
    assert store.statuses("digits", ["x", "training0", "empty"]) == {}


def test_one_that_is_refused_does_not_keep_the_others_away(changed, store):
    def brought():
        done = import_tfutils(
            store,
            changed.database(),
            Invented,
            failed=lambda name, why: refused.update({name: why}),
        )
        return {one.exp_id: one.new for one in done}

    refused = {}
    assert brought() == {"training0": True, "training1": True}
    written(changed, "training0", 1020, train_results=losses(1))
    written(changed, "training2", 20, train_results=losses(1))
    assert brought() == {"training1": False, "training2": True}
    assert "another run 'training0' already" in str(refused.pop("digits/training0"))
    assert refused == {}


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        import os

        return os.system, (f"touch {self._path}",)


@pytest.fixture
def pickled(changed):
    """A function that stores results as tfutils did beside a record."""
    bucket = gridfs.GridFS(changed.client[changed.name], "digits")

    def store_results(results, protocol=2, step=40):
        data = pickle.dumps(results, protocol) if not isinstance(results, bytes) else results
        row = changed.files.find_one({"exp_id": "training0", "step": step})
        return bucket.put(data, filename=f"{row['_id']}_fileitems", item_for=row["_id"])

    return store_results


def results():
    features = [np.arange(6, dtype=np.float32).reshape(2, 3) * step for step in range(21, 41)]
    valid = {"valid0": {"logits": np.ones((400, 10)), "names": ["a", "b"], "best": np.int64(3)}}
    return {"train_results": OrderedDict(features=features), "validation_results": valid}


def test_pickled_results_are_left_alone_unless_asked_for(changed, store, pickled):
    pickled(results())
    done, run = imported(store, changed, exp_ids=["training0"])

    assert len(done.items) == 1 and done.items[0].endswith("_fileitems") and done.read == ()
    assert "left alone   1 pickled file" in imported_text(done)
    assert "features" not in run.metrics().columns
    assert done.items[0] in run.artifact("tfutils.json").decode()


@pytest.mark.parametrize("protocol", [2, 5])
def test_pickled_results_become_values_if_asked_for(changed, store, pickled, protocol):
    pickled(results(), protocol)
    done, run = imported(store, changed, exp_ids=["training0"], unpickle=True)

    assert (len(done.read), done.refused) == (1, {})
    features = run.values("features")
    assert features.steps.tolist() == list(range(21, 41))
    assert features[40].dtype == np.float32 and features[40][1, 2] == 200.0
    assert run.values("valid0/logits")[40].shape == (400, 10)
    assert run.values("valid0/names")[40].tolist() == ["a", "b"]
    assert run.metrics()["loss"].notna().all()


def test_a_pickle_that_is_a_program_is_refused(changed, store, pickled, tmp_path):
    harmed = tmp_path / "harmed"
    pickled({"train_results": {"x": [Harm(harmed)]}}, step=40)
    pickled(b"no pickle", step=60)
    pickled(b"cnumpy\nload\n(S'/etc/passwd'\ntR.", step=80)
    pickled(b"c_codecs\nencode\n(Vx\nVrot13\ntR.", step=100)
    damaged = pickled(results(), step=120)
    changed.chunks.delete_many({"files_id": damaged})
    done, run = imported(store, changed, exp_ids=["training0"], unpickle=True)

    assert not harmed.exists() and done.read == () and done.new
    for why, words in zip(
        done.refused.values(),
        (
            "posix.system, which is no part of arrays",
            "UnpicklingError",
            "numpy.load, which is no part of arrays",
            "'rot13'",
            "0 bytes instead of",
        ),
        strict=True,
    ):
        assert words in why
    assert imported_text(done).count("  refused  ") == 5
    assert run.metrics().columns.tolist() == ["learning_rate", "loss"]
