"""[train]: on what, how long, and how exactly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipefit.spec.sections.kinds import Duration, MetricRule
from pipefit.spec.tables import Builder, Count, Listed, Named, Positive, Table
from pipefit.spec.values import FrozenDict


def _checked_once(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(words)) < len(words):
        raise ValueError("must have each word once")
    return words


class EarlyStop(MetricRule):
    """Ends the run when a validation metric has stopped getting better.

    Attributes:
        patience: so many validations in a row without a better value end the run.
        min_delta: a value must be better than the best one by more than this.
    """

    patience: Count = 5
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Rollback(Table):
    """After a loss that is not finite or too large: back to the last good checkpoint.

    Attributes:
        times: how often in all.
        scale: what all learning rates are multiplied by each time.
    """

    times: Count = 3
    scale: Annotated[float, Field(gt=0, le=1)] = 0.5


class Train(Table):
    """[train]: what is trained on and how long.

    Attributes:
        data: name of a [data.*] table.
        steps: optimizer updates in all; more steps later continue the run.
        accumulate: gradients of this many slices of a batch are averaged before one update.
        max_loss: a larger loss stops the run as failed.
        metrics: by name; None: the worker's default.
        deterministic: whether the same run gives the same bits.
        jit_compile: whether XLA compiles the step.
        precision: what is computed in; variables stay float32.
        average: momentum of the moving average of the weights; None: there is none.
        overfit: this many batches are repeated for ever; None: all of the data.
        targets: by name, builders of callables `(inputs, outputs, mode) -> dict`.
        loop: builder of what replaces the innermost loop.
        record: what else is recorded of every step.
        early_stop: when to end before `steps`.
        max_time: seconds of training, over all attempts, after which the run ends.
        rollback: what to do when the loss diverges; None: the run fails.
        step_timeout: seconds without a finished step after which the run fails.
    """

    data: str
    steps: Count
    accumulate: Count = 1
    max_loss: Positive | None = None
    metrics: Named[Builder] | None = None
    deterministic: bool = True
    jit_compile: bool = False
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    overfit: Count | None = None
    targets: Named[Builder] = Field(default_factory=FrozenDict)
    loop: Builder | None = None
    record: Annotated[
        Listed[Literal["gradient_norms", "update_norms"]], AfterValidator(_checked_once)
    ] = ()
    early_stop: EarlyStop | None = None
    max_time: Duration | None = None
    rollback: Rollback | None = None
    step_timeout: Positive = 1800.0
