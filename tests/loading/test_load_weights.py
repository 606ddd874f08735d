"""Weights from files to Python, without TensorFlow."""

import subprocess
import sys

import numpy as np
import pytest

import pipefit
from pipefit.errors import LoadError, SettingsError, SpecError
from pipefit.records import Best, RunOrder, RunState, Validation
from pipefit.store import open_store, this_process

TENSORS = {
    "net/conv1/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "net/conv1/bias": np.ones(3, np.float32),
    "net/fc/kernel": np.zeros((3, 2), np.float32),
    "net/fc/kernel/Momentum": np.ones((3, 2), np.float32),
    "global_step": np.int64(7),
}


@pytest.fixture
def file(tmp_path):
    np.savez(tmp_path / "weights.npz", **TENSORS)
    return tmp_path / "weights.npz"


def test_only_what_is_included_comes_under_its_new_name(file):
    found = pipefit.load_weights(
        file, strip_prefix="net/", rename={r"^conv(\d)": r"block\1"}, include="conv"
    )
    assert sorted(found) == ["block1/bias", "block1/kernel"]
    np.testing.assert_array_equal(found["block1/kernel"], TENSORS["net/conv1/kernel"])
    assert sorted(pipefit.load_weights(str(file))) == sorted(TENSORS)[1:4]
    assert pipefit.load_weights({"path": str(file)}, exclude=["conv", "fc/kernel"]) == {}


def test_what_is_wrong_is_told(file):
    with pytest.raises(LoadError, match=r"weights.npz: include 'covn' matches none of the names"):
        pipefit.load_weights(file, include="covn")
    with pytest.raises(LoadError, match="step = 3: a file has one step only"):
        pipefit.load_weights(file, step=3)
    with pytest.raises(LoadError, match="there is no"):
        pipefit.load_weights(file.with_name("other.npz"))
    with pytest.raises(SpecError, match="exactly one of name, path, archive, tfutils"):
        pipefit.load_weights({"pth": str(file)})
    kept = {"path": "https://me:***@example.org/a.npz", "sha256": "0" * 64}
    with pytest.raises(LoadError, match="put the password back"):
        pipefit.load_weights(kept)
    with pytest.raises(LoadError, match="archive 'a' is not there: name the file itself"):
        pipefit.load_weights({"archive": "a"})


def test_a_state_that_was_saved_to_a_file_has_variables_by_their_paths(tmp_path):
    state = {"model/out/kernel": np.ones((2, 2), np.float32), "run/step": np.int64(40)}
    state |= {"optimizer/sgd/out_kernel_momentum": np.ones((2, 2), np.float32)}
    np.savez(tmp_path / "state.npz", **state)
    assert list(pipefit.load_weights(tmp_path / "state.npz")) == ["out/kernel"]


def test_a_run_of_another_database_is_found_by_name_and_step(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULTS", str(tmp_path))
    store = open_store(tmp_path.as_uri())
    writer = store.acquire(RunOrder("c", "a", "1", {}, "{}", steps=9), this_process(), ttl=60)
    writer.begin(-1)
    for step in (3, 6, 9):
        state = {"model/out/kernel": np.full(2, step, "f4"), "run/step": np.int64(step)}
        writer.commit(step, state, frozenset({"permanent"}), Best("v/loss", "min", 1.0, 6))
        writer.write_validation(Validation("v", step, {"loss": float(step % 5)}, examples=1))
    writer.end(RunState.FINISHED, None, 9, "")

    def found(step, **more):
        table = {"name": "a", "collection": "c", "database": "file://${RESULTS}", "step": step}
        return int(pipefit.load_weights({**table, **more})["out/kernel"][0])

    assert [found(step) for step in (3, "newest", "best")] == [3, 9, 6]
    assert found({"metric": "v/loss", "mode": "max"}) == 9
    assert found({"metric": "v/loss", "mode": "min"}) == 6
    with pytest.raises(LoadError, match=r"no checkpoint that it keeps .* there are v/loss"):
        found({"metric": "v/accuracy", "mode": "max"})
    with pytest.raises(LoadError, match="its steps are: 3, 6, 9"):
        found(5)
    with pytest.raises(LoadError, match=r"no run 'b' in collection 'c'.*its collections are: c"):
        found(3, name="b")
    with pytest.raises(SettingsError, match="NOBODY, which is not set"):
        found(3, database="file://${NOBODY}")


def test_a_damaged_checkpoint_is_no_source(tmp_path):
    store = open_store(tmp_path.as_uri())
    writer = store.acquire(RunOrder("c", "a", "1", {}, "{}", steps=9), this_process(), ttl=60)
    writer.begin(-1)
    info = writer.commit(3, {"model/out/kernel": np.ones(9)}, frozenset({"permanent"}))
    (file,) = (path for path in tmp_path.rglob("*") if path.name == info.id)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(LoadError, match=r"run c/a at step 3 .*is damaged"):
        pipefit.load_weights({"name": "a", "collection": "c", "database": tmp_path.as_uri()})


def test_no_tensorflow_and_no_database_is_needed(file):
    code = (
        f"import sys, pipefit; pipefit.load_weights({str(file)!r}); "
        "assert not {'tensorflow', 'keras', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
