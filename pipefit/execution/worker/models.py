"""Models of runs, outside of any training: see `restored`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipefit.spec import Spec

if TYPE_CHECKING:
    import numpy as np


def restored(
    spec: Spec, folders: Mapping[str, str], arrays: Mapping[str, np.ndarray[Any, Any]]
) -> Any:
    """The model of an experiment with its weights; on the first CPU.

    Args:
        spec: with one model.
        folders: where the archives are, by name.
        arrays: the variables of the model and its generators, as a checkpoint has them.

    Raises:
        SpecError: it cannot be built.
        StateMismatch: the arrays are not those of this model.
    """
    from pipefit import training

    shared = training.Shared(folders)
    try:
        experiment = training.experiment_class(spec)(spec, folders, shared=shared)
        training.State(experiment.network).restore(arrays)
    finally:
        shared.close()
    return experiment.network
