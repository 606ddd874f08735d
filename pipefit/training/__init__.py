"""The training core: the only place that imports TensorFlow and Keras; knows no database."""

from pipefit.training.describing import description
from pipefit.training.experiment import Experiment, Shared, experiment_class
from pipefit.training.feeding.pipeline import Feed
from pipefit.training.loops.course import Actions, Course, EndedEarly
from pipefit.training.loops.loop import CallFailed, Loop, joined, without_stack
from pipefit.training.loops.own_loops import TrainStep
from pipefit.training.loops.schedule import Pace, Schedule
from pipefit.training.loops.stopping import EarlyStop
from pipefit.training.loops.together import Together
from pipefit.training.objective import Objective, per_example
from pipefit.training.replicas.devices import Replicas, start
from pipefit.training.state import State, not_finite, to_numpy
from pipefit.training.targets import Targets
from pipefit.training.trainer import Trainer
from pipefit.training.updating.freezing import freeze
from pipefit.training.updating.gradients import Clip
from pipefit.training.updating.rates import Group
from pipefit.training.updating.updates import Part, Updates
from pipefit.training.validator import Validated, ValidationStep, Validator

__all__ = [
    "Actions",
    "CallFailed",
    "Clip",
    "Course",
    "EarlyStop",
    "EndedEarly",
    "Experiment",
    "Feed",
    "Group",
    "Loop",
    "Objective",
    "Pace",
    "Part",
    "Replicas",
    "Schedule",
    "Shared",
    "State",
    "Targets",
    "Together",
    "TrainStep",
    "Trainer",
    "Updates",
    "Validated",
    "ValidationStep",
    "Validator",
    "description",
    "experiment_class",
    "freeze",
    "joined",
    "not_finite",
    "per_example",
    "start",
    "to_numpy",
    "without_stack",
]
