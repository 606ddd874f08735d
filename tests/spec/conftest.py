"""An experiment file to change in many ways."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipefit.spec import Spec, read_spec

TEXT = """
name = "digits-mlp"
collection = "digits"

[archives.digits]
url = "optdigits.tar.gz"
sha256 = "ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef0123456789"

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
clip = { global_norm = 1 }
groups = [ { match = "^embedding/", scale = 0.1 } ]

[optimizer.learning_rate]
builder = "keras.optimizers.schedules:ExponentialDecay"
initial_learning_rate = 0.05
decay_steps = 39
decay_rate = 0.95

[train]
data = "train"
steps = 500

[validation.test]
data = { builder = "pipefit.data:digits", archive = "digits", split = "test", batch_size = 50 }
outputs = ["logits"]

[validation.again]
data = "train"
metrics = { accuracy = { builder = "keras.metrics:SparseCategoricalAccuracy" } }

[save]
best = { metric = "test/loss", mode = "min" }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The experiment file."""
    path = tmp_path / "digits.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def read(config: Path) -> Callable[..., Spec]:
    """Reads the experiment file with overrides."""

    def read(overrides: dict[str, Any] | None = None) -> Spec:
        return read_spec(config, overrides)

    return read
