"""Building what an experiment describes, in this process: see `build`."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipefit.execution.order import Order
from pipefit.execution.worker.places import Places
from pipefit.spec import Spec

if TYPE_CHECKING:
    from pipefit.training import Experiment, Shared, Trainer


def load_training() -> None:
    """Load TensorFlow and the training core, at four fifths of what that costs a short run.

    None of it is ever garbage, so nobody looks there for any, neither meanwhile nor later.
    """
    if "pipefit.training" in sys.modules:
        return
    gc.collect()
    gc.disable()
    try:
        importlib.import_module("pipefit.training")
        gc.freeze()
    finally:
        gc.enable()


def build(
    order: Order,
    runs: Mapping[str, Spec],
    names: Sequence[str],
    places: Places,
    threads: int,
    *,
    shared: Shared | None = None,
) -> dict[str, tuple[Experiment, Trainer]]:
    """The experiments of some models and their trainings at step 0; they share what they read.

    Args:
        order: knows where the archives are.
        runs: by the name of the model.
        names: of those that are wanted.
        places: where they compute.
        threads: of one operation.
        shared: what was built for others in this process.

    Raises:
        PipefitError: if one cannot be built.
    """
    load_training()
    from pipefit import training

    shared = shared or training.Shared(order.folders)
    built = {}
    for name in names:
        spec = runs[name]
        made = training.experiment_class(spec)
        experiment = made(spec, order.folders, places.replicas(name, threads), shared=shared)
        built[name] = experiment, experiment.trainer()
    return built
