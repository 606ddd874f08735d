"""Orders whose worker meets a file instead of TensorFlow, so it does at once what a test wants."""

import pytest

from pipefit import read_spec
from pipefit.execution import Order

CONFIG = "configs/digits_mlp.toml"


@pytest.fixture
def order(tmp_path, database_uri, monkeypatch):
    """A function that makes orders; `tensorflow` is the text of the module of that name."""
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))

    def make(tensorflow="", kind="train", changes=None, **details):
        (tmp_path / "tensorflow.py").write_text(tensorflow)
        spec = read_spec(CONFIG, {"name": "mlp", "collection": "digits", **(changes or {})})
        return Order(
            kind=kind,
            spec=spec.to_json(),
            uri=database_uri,
            import_paths=(str(tmp_path),),
            **details,
        )

    return make


@pytest.fixture
def validation(order, make_run):
    """A function that makes orders to validate step 100 of a run that has a checkpoint there."""

    def make(tensorflow):
        make_run(steps=100)
        return order(tensorflow, kind="validate", validation="test", step=100)

    return make
