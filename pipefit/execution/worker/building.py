"""Building what an experiment describes, in this process: see `build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipefit.execution.order import Order
from pipefit.execution.worker.places import Places
from pipefit.spec import Spec

if TYPE_CHECKING:
    from pipefit.training import Experiment, Shared, Trainer


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
    from pipefit import training

    shared = shared or training.Shared(order.folders)
    built = {}
    for name in names:
        spec = runs[name]
        made = training.experiment_class(spec)
        experiment = made(spec, order.folders, places.replicas(name, threads), shared=shared)
        built[name] = experiment, experiment.trainer()
    return built
