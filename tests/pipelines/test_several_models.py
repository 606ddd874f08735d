"""Several models in one job: each is a run of its own, as if it were trained alone."""

import re
from pathlib import Path

import pytest

DATA = """
collection = "several"

[data.train]
builder = "lab:points"
n = 300
batch_size = 50

[optimizer]
builder = "keras.optimizers:SGD"
learning_rate = 0.1

[train]
data = "train"
steps = 60

[validation.test]
data = { builder = "lab:points", n = 70, seed = 1, batch_size = 50 }

[save]
validate_every = 20
recent_every = 20
"""
MODELS = {
    "narrow": 'builder = "lab:net"\nunits = 4\n',
    "wide": 'builder = "lab:net"\nunits = 32\n',
}
OWN = 'builder = "keras.optimizers:Adam"\nlearning_rate = 0.01\n'
SEVERAL = "".join(f"[models.{name}]\n{text}" for name, text in MODELS.items())
SEVERAL = f'name = "two"\n{DATA}\n{SEVERAL}\n[models.wide.optimizer]\n{OWN}'
ALONE = f'name = "wide"\n{DATA}\n[model]\n{MODELS["wide"]}'
ALONE = ALONE.replace('builder = "keras.optimizers:SGD"\nlearning_rate = 0.1\n', OWN)

LAB = """
import keras
import numpy as np
from pipefit.data import Arrays

def points(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype("float32")
    return Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))

def net(units):
    x = keras.Input((4,), name="x")
    y = keras.layers.Dense(units, activation="relu", name="hidden")(x)
    y = keras.layers.Dropout(0.2, name="dropout")(y)
    return keras.Model(x, keras.layers.Dense(2, name="out")(y), name="net")
"""


@pytest.fixture(scope="module")
def lab(shared_job, tmp_path_factory):
    """A function that makes jobs in one folder."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "several.toml").write_text(SEVERAL)
    (folder / "alone.toml").write_text(ALONE)
    (folder / "lab.py").write_text(LAB)

    def make(file, **changes):
        return shared_job(f"{file}.toml", cwd=folder, **{"collection": "several", **changes})

    return make


def run_of(job, model):
    return job.store.run(f"{job.changes['name']}/{model}", job.changes["collection"])


@pytest.fixture(scope="module")
def whole(lab):
    """The job that nothing has interrupted, and what it printed."""
    job = lab("several", name="two")
    job.printed = job.run()
    return job


def test_every_model_is_trained_validated_and_reported(whole):
    for model in MODELS:
        run = run_of(whole, model)
        assert run.status().state == "FINISHED"
        assert run.metrics().index.tolist() == list(range(1, 61))
        assert run.validations()["step"].tolist() == [20, 40, 60]
        assert f"\nINFO: several/two/{model} step 40: test: loss " in whole.printed
        assert f"\nINFO: several/two/{model} test at step 60: loss " in whole.printed
        assert f"\nseveral/two/{model}, 60 steps\n" in whole.printed
        assert run.artifact("report.html").decode() in report_of(whole.printed, model)
    assert re.search(
        r"^INFO: several/two step 60/60 \(100 %\), .* \(slowest of 2: ", whole.printed, re.M
    )


def report_of(printed, model):
    [path] = re.findall(rf"^Report: (.*/two/{model}/report.html)$", printed, re.M)
    return Path(path).read_text(encoding="utf-8")


def test_a_rerun_does_nothing(whole):
    printed = whole.run()
    assert "1 complete ones were encountered" in printed
    assert printed.splitlines()[-12:] == whole.printed.splitlines()[-12:]
    assert [len(run_of(whole, model).attempts()) for model in MODELS] == [1, 1]


def test_a_model_is_the_same_run_as_alone(whole, lab):
    """So where that is there already, nothing is left to do; see tests/execution for the bits."""
    alone = lab("alone", name="two/wide")
    assert "1 complete ones were encountered" in alone.run("Train")
    assert len(run_of(whole, "wide").attempts()) == 1


def test_one_that_diverges_fails_alone_and_is_mended_alone(lab):
    changes = {"models.wide.optimizer.learning_rate": 1e30}
    job = lab("several", name="hot", **changes)
    printed = job.run("Train", code=30)
    narrow, wide = run_of(job, "narrow"), run_of(job, "wide")
    assert narrow.status().state == "FINISHED" and narrow.status().step == 60
    assert wide.status().state == "FAILED"
    assert re.search(r"^ERROR: .*hot/wide: .*(nan|inf|NaN|infinity)", printed, re.M), printed
    accepted = ("--allow-change", "optimizer.learning_rate")
    job.changes["models.wide.optimizer.learning_rate"] = 0.01
    job.run("Train", *accepted)
    assert wide.status().state == "FINISHED"
    assert len(narrow.attempts()) == 1 and len(wide.attempts()) == 2
    assert narrow.document()["history"] == []
