"""The training core: the only place that imports TensorFlow and Keras; knows no database."""

from pipefit.training.devices import Replicas
from pipefit.training.experiment import Experiment
from pipefit.training.loop import Actions, Loop
from pipefit.training.objective import Objective, per_example
from pipefit.training.optimizers import Clip, prepare
from pipefit.training.schedule import Pace, Schedule
from pipefit.training.state import State, not_finite, to_numpy
from pipefit.training.trainer import Trainer, Validator

__all__ = [
    "Actions",
    "Clip",
    "Experiment",
    "Loop",
    "Objective",
    "Pace",
    "Replicas",
    "Schedule",
    "State",
    "Trainer",
    "Validator",
    "not_finite",
    "per_example",
    "prepare",
    "to_numpy",
]
