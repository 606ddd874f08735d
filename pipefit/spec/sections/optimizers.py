"""[optimizer] and [optimizers.*]: how variables are updated."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from pipefit.refs import Call, show
from pipefit.spec.sections.kinds import LearningRate, Regex
from pipefit.spec.tables import Builder, Listed, Positive, Table


class Clip(Table):
    """How gradients are clipped: to a range, each by its norm, or all by their common norm."""

    value: Positive | None = None
    norm: Positive | None = None
    global_norm: Positive | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Clip:
        if len(self.table()) != 1:
            raise ValueError("must have exactly one of value, norm, global_norm")
        return self


class Group(Table):
    """Variables whose path matches (`re.search`) have a learning rate of their own.

    Attributes:
        match: the first group that matches counts.
        scale: what the optimizer's learning rate is multiplied by; None: `learning_rate` is set.
        learning_rate: a number or a schedule instead of the optimizer's; None: `scale` is set.
    """

    match: Regex
    scale: Annotated[float, Field(ge=0)] | None = None
    learning_rate: LearningRate | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Group:
        if (self.scale is None) == (self.learning_rate is None):
            raise ValueError("must have exactly one of scale, learning_rate")
        return self


def _checked_groups(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    matches = [group.match for group in groups]
    for match in matches:
        if matches.count(match) > 1:
            raise ValueError(f"match = {show(match)} is there twice, but only the first counts")
    return groups


class Optimizer(Builder):
    """[optimizer]: how variables are updated.

    Attributes:
        learning_rate: a number, a schedule, or None for the builder's own default.
        clip: how gradients are clipped, None for not at all.
        groups: learning rates by variable name.
        weight_decay_on: only variables whose path matches decay by the optimizer's own argument
            weight_decay; None: those that the optimizer chooses.
    """

    learning_rate: LearningRate | None = None
    clip: Clip | None = None
    groups: Annotated[Listed[Group], AfterValidator(_checked_groups)] = ()
    weight_decay_on: Regex | None = None

    @property
    def call(self) -> Call:
        """The builder with its arguments, the learning rate (as written) among them."""
        written = {key: value for key, value in self.table().items() if key == "learning_rate"}
        return Call(self.builder, {**self.arguments, **written})


class OptimizerPart(Optimizer):
    """[optimizers.NAME]: how some of the variables are updated.

    Attributes:
        match: which ones; every trainable variable must match one table and no other.
    """

    match: Regex
