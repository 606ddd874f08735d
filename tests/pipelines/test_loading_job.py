"""[[load]] as it is typed: a dry run that shows what would be loaded, and the job itself."""

import hashlib
import tarfile

import numpy as np
import pytest

SHAPES = {"hidden1": (64, 128), "hidden2": (128, 32), "logits": (32, 10)}


@pytest.fixture
def archive(tmp_path):
    """Words that name an archive with the weights of the MLP, by the names of TensorFlow 1."""
    random = np.random.default_rng(0)
    weights = {f"net/{k}/weights": random.normal(0, 0.1, shape) for k, shape in SHAPES.items()}
    weights |= {f"net/{k}/biases": np.zeros(shape[1]) for k, shape in SHAPES.items()}
    file = tmp_path / "weights.npz"
    np.savez(file, **{name: value.astype("float32") for name, value in weights.items()})
    with tarfile.open(tmp_path / "old.tar.gz", "w:gz") as tar:
        tar.add(file, "old/weights.npz")
    digest = hashlib.sha256((tmp_path / "old.tar.gz").read_bytes()).hexdigest()
    return weights, {"archives.old.url": tmp_path / "old.tar.gz", "archives.old.sha256": digest}


def loading(rules):
    return {"'load": f'[{{ from = {{ archive = "old" }}, {rules} }}]\''}


def test_it_is_shown_and_then_done_once(job, store, archive):
    weights, words = archive
    trial = job(**words, **loading('include = ["^net/hidden"]'))
    output = trial.run("TrainAndValidate", "--dry-run", code=30)
    assert "to do     LoadCheckpoint jobs/run" in output
    assert "the model: 6 missing, 4 unexpected" in output
    assert "ERROR: [[load]] of run 'run' does not fit: 6 missing, 4 unexpected; rename" in output
    assert store.collections() == []

    real = job(**words, **loading('strip_prefix = "net/"'), **{"train.steps": 20})
    output = real.run("Train")
    assert "loading: loaded 6 variables (0 stay as they are initialised) from" in output
    assert real.reader.checkpoints()["step"].tolist() == [0, 20]
    state = real.reader.weights(0)
    for name, shape in SHAPES.items():
        kernel = state[f"model/{name}/kernel"]
        assert (
            kernel.shape == shape and (kernel == weights[f"net/{name}/weights"].astype("f4")).all()
        )
    assert "old/weights.npz" in real.reader.artifact("load.txt").decode()
