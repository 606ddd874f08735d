"""--fast-dev-run and --dry-run: what they do and print, and that they leave nothing behind."""

import re

import pytest

from pipefit.store import open_store

CONFIG = """
name = "two"
collection = "tried"

[data.train]
builder = "lab:points"
batch_size = 50

[models.a]
builder = "lab:net"
[models.b]
builder = "lab:net"
units = 3

[optimizer]
builder = "keras.optimizers:SGD"
learning_rate = 0.1

[train]
data = "train"
steps = 60
max_loss = 100.0

[validation.test]
data = "train"
"""

LAB = """
import keras
import numpy as np
from pipefit.data import Arrays

def points():
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    return Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))

def net(units=2, scale=1.0):
    x = keras.Input((4,), name="x")
    y = keras.layers.Rescaling(scale)(x)
    return keras.Model(x, keras.layers.Dense(units, name="out")(y), name="net")
"""

MINE = """
import tensorflow as tf
from pipefit.training import Experiment

class Mine(Experiment):
    def loss(self):
        return lambda labels, y_pred: tf.square(y_pred[:, 0] - tf.cast(labels, tf.float32))
"""

#: A database that nobody reaches: whoever asked it would fail.
NOWHERE = "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=200"


@pytest.fixture(scope="module")
def lab(shared_job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    (folder / "two.toml").write_text(CONFIG)
    (folder / "lab.py").write_text(LAB)
    (folder / "mine.py").write_text(MINE)
    made = shared_job("two.toml", cwd=folder, name="two", collection="tried")
    made.reachable = made.environment
    made.environment = {**made.environment, "PIPEFIT_MONGO_URI": NOWHERE}
    return made


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_fast_dev_run_does_one_step_of_everything_and_needs_no_database(lab, workers):
    printed = lab.run("TrainAndValidate", "--fast-dev-run", "--workers", workers)
    for run in ("a", "b"):
        trained = rf"^INFO: tried/two/{run}: one step: loss [\d.]+, learning_rate 0.1$"
        validated = rf"^INFO: tried/two/{run}: test, 50 examples: loss [\d.]+, accuracy [\d.]+$"
        assert re.search(trained, printed, re.M), printed
        assert re.search(validated, printed, re.M), printed
    assert "tried/two: everything was done for one step; nothing was stored" in printed
    assert lab.left_behind == []
    assert open_store(lab.reachable["PIPEFIT_MONGO_URI"]).collections() == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"models.b.scale": 1e30, "train.max_loss": 1e9},
         r"two/b: the loss of the first step is (inf|[\d.]+e\+\d+); look at the data"),
        ({"models.b.unit": 3}, r"models.b.unit = 3: unknown argument of lab:net"),
        ({"validation.test.outputs": '["logit"]'}, r"has no output 'logit'; it has out"),
        ({"experiment": "mine:Mine", "save.best": '{ metric = "test/accuracy", mode = "max" }'},
         r"save.best.metric = 'test/accuracy': no such metric is validated; there are test/loss"),
    ],
)  # fmt: skip
def test_what_would_fail_later_fails_now(lab, changes, told):
    with_quotes = {key: f"'{v}'" if isinstance(v, str) else v for key, v in changes.items()}
    process = lab.start("TrainAndValidate", "--fast-dev-run", **with_quotes)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode in (30, 35), printed
    assert re.search(rf"^ERROR: .*{told}", printed, re.M), printed
    assert lab.left_behind == []


def test_a_dry_run_shows_the_experiment_the_plan_and_the_models(lab):
    printed = lab.run("TrainAndValidate", "--dry-run", "--workers", "2", **{"train.steps": 70})
    assert "# two.toml, with all defaults" in printed
    assert "steps = 70\n" in printed and "recent_keep = 3\n" in printed
    assert "\nunknown   Validate tried/two/b test\n" in printed
    assert "\nnot known: mongodb://127.0.0.1:1/x cannot be reached" in printed
    for run, parameters in (("a", 10), ("b", 15)):
        described = printed.split(f"# The model of two/{run}, on 1 x cpu")[1]
        assert re.search(r"│ out \(Dense\) .*│", described)
        assert re.search(rf"^ Total params: {parameters} ", described, re.M)
    assert lab.left_behind == []


def test_a_dry_run_shows_what_is_there_already(lab):
    lab.environment, unreachable = lab.reachable, lab.environment
    try:
        printed = lab.run("TrainAndValidate", "--dry-run")
        assert "\nto do     Train tried/two\n" in printed
        assert open_store(lab.environment["PIPEFIT_MONGO_URI"]).collections() == []
        lab.run("Train", **{"train.steps": 5, "save.validate_every": 0})
        printed = lab.run("TrainAndValidate", "--dry-run", **{"train.steps": 5})
    finally:
        lab.environment = unreachable
    assert "\nthere     Train tried/two\n" in printed
    assert "\nto do     Validate tried/two/a test\n" in printed
