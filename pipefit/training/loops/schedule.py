"""When something is due: pure functions of the step and the intervals; no TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

#: Kinds of checkpoints, see `pipefit.records.CheckpointInfo`.
PERMANENT, RECENT, BEST, FINAL, STOPPED = "permanent", "recent", "best", "final", "stopped"


@dataclass(frozen=True)
class Schedule:
    """The intervals of an experiment, in steps; 0 means never.

    Attributes:
        steps: the step at which the training is complete.
        metrics_every: how many steps' metrics are stored together.
        validate_every: validation of every set.
        checkpoint_every: permanent checkpoints.
        recent_every: checkpoints of which the last few are kept.
    """

    steps: int
    metrics_every: int = 100
    validate_every: int = 0
    checkpoint_every: int = 0
    recent_every: int = 0

    def next_boundary(self, step: int) -> int:
        """The first step after `step` at which something may be due."""
        intervals = (
            self.metrics_every,
            self.validate_every,
            self.checkpoint_every,
            self.recent_every,
        )
        return min([self.steps, *((step // n + 1) * n for n in intervals if n)])

    def stores_metrics(self, step: int) -> bool:
        """Whether the metrics so far are handed over at this step."""
        return _due(step, self.metrics_every) or step >= self.steps

    def validates(self, step: int) -> bool:
        """Whether the validation sets are read at this step."""
        return _due(step, self.validate_every)

    def checkpoint_kinds(self, step: int) -> frozenset[str]:
        """Why a checkpoint is due at this step; empty: none is."""
        kinds = set()
        if _due(step, self.checkpoint_every):
            kinds.add(PERMANENT)
        if _due(step, self.recent_every):
            kinds.add(RECENT)
        if step >= self.steps:
            kinds.add(FINAL)
        return frozenset(kinds)


class Pace:
    """How many steps one call takes: as many as fit into about `seconds`.

    Long enough that calling costs nothing, short enough that a request to stop is answered soon.
    The first call (it compiles) is one step and is not measured. The numbers do not depend on it.
    """

    def __init__(self, seconds: float = 0.5, most: int = 1000):
        self._seconds = seconds
        self._most = most
        self._calls = 0
        self._limit = 1

    @property
    def limit(self) -> int:
        """The most steps that the next call may take."""
        return self._limit

    def measured(self, steps: int, seconds: float) -> None:
        """Tell how long a call of so many steps took."""
        self._calls += 1
        if self._calls > 1:
            fitting = int(self._seconds * steps / max(seconds, 1e-9))
            self._limit = max(1, min(fitting, self._limit * 10, self._most))


def _due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0
