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

def net(units=2):
    x = keras.Input((4,), name="x")
    return keras.Model(x, keras.layers.Dense(units, name="out")(x), name="net")
"""

#: A database that nobody reaches: whoever asked it would fail.
NOWHERE = "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=200"


@pytest.fixture(scope="module")
def lab(shared_job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    (folder / "two.toml").write_text(CONFIG)
    (folder / "lab.py").write_text(LAB)
    made = shared_job("two.toml", cwd=folder, name="two", collection="tried")
    made.reachable = made.environment
    made.environment = {**made.environment, "PIPEFIT_MONGO_URI": NOWHERE}
    return made


def test_a_fast_dev_run_does_one_step_of_everything_and_needs_no_database(lab):
    printed = lab.run("TrainAndValidate", "--fast-dev-run")
    for run in ("a", "b"):
        trained = rf"^INFO: tried/two/{run}: one step: loss [\d.]+, learning_rate 0.1$"
        validated = rf"^INFO: tried/two/{run}: test, 50 examples: loss [\d.]+, accuracy [\d.]+$"
        assert re.search(trained, printed, re.M), printed
        assert re.search(validated, printed, re.M), printed
    assert "tried/two: everything was done for one step; nothing was stored" in printed
    assert lab.left_behind == []
    assert open_store(lab.reachable["PIPEFIT_MONGO_URI"]).collections() == []


def test_what_would_fail_later_fails_now(lab):
    """What only a worker sees is in tests/execution/test_trying_out.py."""
    message = lab.refused("TrainAndValidate", "--fast-dev-run", code=35, **{"models.b.unit": 3})
    assert "models.b.unit = 3: unknown argument of lab:net" in message
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
    database = open_store(lab.reachable["PIPEFIT_MONGO_URI"]).connection.database

    def documents():
        return {name: list(database[name].find()) for name in database.list_collection_names()}

    try:
        lab.run("Train", **{"train.steps": 5, "save.validate_every": 0})
        before = documents()
        printed = lab.run("TrainAndValidate", "--dry-run", **{"train.steps": 5})
        assert documents() == before
    finally:
        lab.environment = unreachable
    assert "\nthere     Train tried/two\n" in printed
    assert "\nto do     Validate tried/two/a test\n" in printed
