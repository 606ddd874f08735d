"""[[load]] from a tfutils database, and from a run that was imported: the old model, in Keras."""

from dataclasses import replace

import pytest

import pipefit
from pipefit.execution import InlineExecutor, Order
from pipefit.execution.api import bring_archives
from pipefit.execution.tfutils import open_checkpoint
from pipefit.transfer.tfutils import import_tfutils

EXPERIMENT = """
name = "mlp"
collection = "new"

[archives.digits]
url = "configs/archives/optdigits.tar.gz"
sha256 = "3e7c44b505866625e5352d67f01d1a902934d2e835ec7c3493622d2618462ced"

[data.train]
builder = "pipefit.data:digits"
archive = "digits"
split = "train"
batch_size = 100

[model]
builder = "pipefit.training.models:mlp"
units = [128, 32]
outputs = 10

[optimizer]
builder = "keras.optimizers:SGD"
momentum = 0.9
learning_rate = 0.05

[train]
data = "train"
steps = 1000

[validation.test]
data = { builder = "pipefit.data:digits", archive = "digits", split = "test", batch_size = 100 }
metrics = { accuracy = { builder = "pipefit.training.objective:accuracy" } }

[[load]]
rename = { "^softmax_linear/" = "logits/" }
"""


def validated(store, uri, tmp_path, name, source):
    """The metrics of the last 360 digits with the weights of a source, and the run."""
    file = tmp_path / f"{name}.toml"
    file.write_text(f"{EXPERIMENT}from = {source}\n")
    spec = pipefit.read_spec(file, {"name": name})
    order = Order(
        kind="load",
        spec=spec.to_json(secrets=True),
        uri=uri,
        folders=bring_archives(spec),
        import_paths=tuple(spec.import_paths()),
    )
    InlineExecutor().run(order, print, lambda: None)
    run = store.run(name, "new")
    order = replace(order, kind="validate", validation="test", step=run.status().step)
    InlineExecutor().run(order, print, lambda: None)
    (row,) = run.validations().to_dict("records")
    assert row["examples"] == 360
    return round(row["accuracy"] * 360), row["loss"], run


def test_the_old_model_says_in_keras_what_it_said(old, store, database_uri, tmp_path, monkeypatch):
    secret = old.uri.partition("@")[0].rpartition(":")[2]
    monkeypatch.setenv("PASSWORD", secret)
    address = old.uri.replace(secret, "${PASSWORD}")
    source = f'{{ tfutils = "{address}", exp_id = "training0", step = 1000 }}'
    right, loss, run = validated(store, database_uri, tmp_path, "direct", source)
    assert (right, round(loss, 5)) == (329, pytest.approx(0.48752, abs=1.1e-5))
    report = run.artifact("load.txt").decode()
    assert "hidden1/weights" in report and "hidden1/kernel" in report
    assert secret not in report + str(run.document())

    table = {"tfutils": old.uri, "exp_id": "training0"}
    found = pipefit.load_weights(table, step=200, rename={"/weights$": "/kernel"})
    assert found["hidden2/kernel"].shape == (128, 32) and len(found) == 6

    list(import_tfutils(store, old.database(), lambda one: open_checkpoint(old.database(), one),
                        exp_ids=["training0"], name="old/mlp"))  # fmt: skip
    source = '{ name = "old/mlp", collection = "digits", step = 200 }'
    right, loss, _ = validated(store, database_uri, tmp_path, "imported", source)
    assert (right, round(loss, 5)) == (332, pytest.approx(0.40064, abs=1.1e-5))
