"""Training by one call from Python, without Luigi."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipefit
from pipefit.errors import SpecError

CONFIG = """
name = "points"
collection = "mine"

[archives.points]
url = "points.tar.gz"
sha256 = "SHA256"

[data.train]
builder = "lab:points"
archive = "points"
batch_size = 50

[model]
builder = "lab:net"

[optimizer]
builder = "keras.optimizers:Adam"
learning_rate = 0.01

[train]
data = "train"
steps = 20

[validation.test]
data = "train"

[save]
validate_every = 10
"""
LAB = """
import keras
import numpy as np
from pipefit.data import Arrays

def points(archive):
    file = archive if archive.is_file() else archive / "points.npy"
    x = np.load(file) if file.suffix == ".npy" else np.zeros((120, 4), "float32")
    return Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))

def net(units=2):
    x = keras.Input((4,), name="x")
    y = keras.layers.Dropout(0.1)(keras.layers.Dense(8, name="hidden")(x))
    return keras.Model(x, keras.layers.Dense(units, name="out")(y), name="net")
"""
SCRIPT = """
import sys
import pipefit

assert not {"tensorflow", "pandas", "luigi"} & set(sys.modules)
run = pipefit.fit("points.toml")
print(type(run).__name__, run.name, run.status().step, run.validations()["step"].tolist())
spec = pipefit.read_spec("points.toml", {"train.steps": 30})
print(pipefit.fit(spec, {"train.steps": 40}).status().step)
print(pipefit.fit("points.toml", {"name": "at-once", "train.steps": 40}).status().step)
models = {"a": {"builder": "lab:net"}, "b": {"builder": "lab:net", "units": 3}}
tables = {key: value for key, value in spec.table().items() if key != "model"}
several = pipefit.Spec.of_tables({**tables, "models": models}, spec.origin)
print({name: run.status().step for name, run in pipefit.fit(several).items()})
packed = pipefit.fit("points.toml", {"name": "packed", "archives.points.unpack": False})
print(packed.status().step, packed.metrics()["loss"].equals(run.metrics()["loss"]))
assert "luigi" not in sys.modules
"""


@pytest.fixture
def folder(tmp_path, environment, monkeypatch):
    """A user's folder with an experiment, its code and an archive; it is the current one."""
    import hashlib
    import tarfile

    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    np.save("points.npy", np.random.default_rng(0).normal(size=(120, 4)).astype("float32"))
    with tarfile.open("points.tar.gz", "w:gz") as tar:
        tar.add("points.npy")
    sha256 = hashlib.sha256(Path("points.tar.gz").read_bytes()).hexdigest()
    Path("points.toml").write_text(CONFIG.replace("SHA256", sha256))
    Path("lab.py").write_text(LAB)
    return folder


def test_a_script_trains_continues_and_reads_runs(folder, store, environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "StoredRun points 20 [10, 20]",
        "40",
        "40",
        "{'a': 30, 'b': 30}",
        "20 False",
    ]
    one, other = store.run("points", "mine"), store.run("at-once", "mine")
    weights = one.weights()
    assert all(np.array_equal(weights[name], value) for name, value in other.weights().items())
    assert [attempt.start for attempt in one.attempts()] == [-1, 20]
    assert "step 20: test: loss " in done.stderr
    assert "step 20/20 (100 %), loss " in done.stderr
    assert "points/a: step 30/30 (100 %), loss " in done.stderr


def test_what_is_wrong_is_told_before_anything_is_brought_or_stored(folder, store):
    with pytest.raises(SpecError, match=r"model\.unitz = 3: unknown argument of lab:net"):
        pipefit.fit("points.toml", {"model.unitz": 3})
    with pytest.raises(SpecError, match=r"train\.step = 3: unknown key"):
        pipefit.fit(pipefit.read_spec("points.toml"), {"train.step": 3})
    assert store.collections() == []
    assert not (folder.parent / "pipefit-home" / "cache").exists()
