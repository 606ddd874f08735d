"""The sections of an experiment file: [archives.*], [data.*], [model], [optimizer], ..."""

from pipefit.spec.sections.kinds import TAGS, MetricRule, parse_field
from pipefit.spec.sections.loading import (
    From,
    FromArchive,
    FromFile,
    FromRun,
    FromTfutils,
    Load,
)
from pipefit.spec.sections.models import Model, NamedModel
from pipefit.spec.sections.optimizers import Clip, Group, Optimizer, OptimizerPart
from pipefit.spec.sections.saving import BestRule, Save
from pipefit.spec.sections.sources import Archive, Data
from pipefit.spec.sections.training import EarlyStop, Rollback, Train
from pipefit.spec.sections.validation import ValidationSet

__all__ = [
    "TAGS",
    "Archive",
    "BestRule",
    "Clip",
    "Data",
    "EarlyStop",
    "From",
    "FromArchive",
    "FromFile",
    "FromRun",
    "FromTfutils",
    "Group",
    "Load",
    "MetricRule",
    "Model",
    "NamedModel",
    "Optimizer",
    "OptimizerPart",
    "Rollback",
    "Save",
    "Train",
    "ValidationSet",
    "parse_field",
]
