"""Resumable TensorFlow training pipelines, results in MongoDB.

    import pipefit

    spec = pipefit.read_spec("configs/digits.toml", {"train.steps": 200})
    store = pipefit.open_store()
    run = store.run("digits-mlp", collection="digits")
    run.metrics(), run.validations(), run.checkpoints()    # pandas.DataFrame
    run.values("test/confusion")       # any value that was recorded: (step, numpy.ndarray), lazy
    run.weights()                                          # dict[str, numpy.ndarray]
    for shard in run.outputs("test"):                      # per example, never all in memory
        print(shard["logits"].shape)

    run = pipefit.fit("configs/digits.toml")               # trains here, without Luigi
    model = pipefit.load_model(run, step=200)              # keras.Model, built and restored
    weights = pipefit.load_weights("old/model.h5", include="^conv")    # of any kind of file

Importing this package loads neither pandas nor TensorFlow nor the MongoDB driver; these come with
what needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pipefit.errors import PipefitError

if TYPE_CHECKING:
    from pipefit.execution.api import fit
    from pipefit.execution.weights import load_model, load_weights
    from pipefit.spec import Spec, read_spec
    from pipefit.store import open_store

    __version__: str

__all__ = [
    "PipefitError",
    "Spec",
    "__version__",
    "fit",
    "load_model",
    "load_weights",
    "open_store",
    "read_spec",
]

_HOMES = {
    "Spec": "pipefit.spec",
    "fit": "pipefit.execution.api",
    "load_model": "pipefit.execution.weights",
    "load_weights": "pipefit.execution.weights",
    "open_store": "pipefit.store",
    "read_spec": "pipefit.spec",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pipefit")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
