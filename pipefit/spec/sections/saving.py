"""[save]: what is written when."""

from __future__ import annotations

from pipefit.spec.sections.kinds import MetricRule
from pipefit.spec.tables import Count, Interval, Table


class BestRule(MetricRule):
    """Which validation metric decides what the best checkpoint is."""


class Save(Table):
    """[save]: what is written when, in steps; 0 means never.

    Attributes:
        metrics_every: training metrics are sent to the database.
        validate_every: all validation sets are validated.
        checkpoint_every: a checkpoint is kept for good.
        recent_every: a checkpoint is kept until `recent_keep` newer ones are there.
        recent_keep: how many of those are kept.
        best: keeps the checkpoint with the best value of a validation metric as well.
        strict: a run whose newest checkpoint is damaged stops, instead of continuing after the one
            before.
    """

    metrics_every: Count = 100
    validate_every: Interval = 1000
    checkpoint_every: Interval = 10000
    recent_every: Interval = 1000
    recent_keep: Count = 3
    best: BestRule | None = None
    strict: bool = False
