"""[validation.*]: what is validated on, and what is kept of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from pipefit.spec.sections.kinds import kind
from pipefit.spec.sections.sources import Data
from pipefit.spec.tables import Builder, Listed, Named, Table
from pipefit.spec.values import FrozenDict


class ValidationSet(Table):
    """[validation.NAME]: data to validate on.

    Attributes:
        data: name of a [data.*] table, or such a table.
        outputs: names of the model outputs to keep per example.
        metrics: by name; None: the worker's default.
        targets: by name, builders of callables `(inputs, outputs, mode) -> dict`.
        loop: builder of what replaces the innermost loop.
        averaged: whether the averaged weights are validated (`train.average`).
    """

    data: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Data, Tag("<table>")],
        Discriminator(
            kind,
            custom_error_type="wrong_kind",
            custom_error_message="must be the name of a [data.*] table or a table with a builder",
        ),
    ]
    outputs: Listed[str] = ()
    metrics: Named[Builder] | None = None
    targets: Named[Builder] = Field(default_factory=FrozenDict)
    loop: Builder | None = None
    averaged: bool = False
