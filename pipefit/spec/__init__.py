"""The experiment file: one TOML file, read into a validated and immutable `Spec`.

spec = read_spec("configs/digits.toml", parse_set("train.steps=2000 name=night-1"))
check_builders(spec)
spec.identity, spec.train_data.batch_size, spec.one_model.call
"""

from pipefit.spec.checking import check_builders
from pipefit.spec.experiment import Spec
from pipefit.spec.reading import changed, parse_set, read_source, read_spec
from pipefit.spec.sections import (
    Archive,
    BestRule,
    Clip,
    Data,
    EarlyStop,
    From,
    FromArchive,
    FromFile,
    FromRun,
    FromTfutils,
    Group,
    Load,
    Model,
    NamedModel,
    Optimizer,
    OptimizerPart,
    Rollback,
    Save,
    Train,
    ValidationSet,
    parse_field,
)
from pipefit.spec.tables import Builder

__all__ = [
    "Archive",
    "BestRule",
    "Builder",
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
    "Model",
    "NamedModel",
    "Optimizer",
    "OptimizerPart",
    "Rollback",
    "Save",
    "Spec",
    "Train",
    "ValidationSet",
    "changed",
    "check_builders",
    "parse_field",
    "parse_set",
    "read_source",
    "read_spec",
]
