"""Ending a run before its last step because its numbers no longer improve: `EarlyStop`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipefit.errors import SpecError

#: Where a snapshot holds the state of early stopping (then mode and metric follow), and the seconds
#: trained so far.
EARLY_STOP, SECONDS = "run/early_stop/", "run/seconds"


class EarlyStop:
    """Watches a validation metric (Prechelt, "Early Stopping - But When?", 1998).

    Args:
        metric: "SET/METRIC".
        mode: whether a larger ("max") or a smaller value ("min") is better.
        patience: after how many validations in a row without a better value the run ends.
        min_delta: a value must be better by more than this to count as better.
    """

    def __init__(self, *, metric: str, mode: str, patience: int, min_delta: float = 0.0):
        self.metric = metric
        #: The name of its state; what was observed of another metric says nothing about this one.
        self.key = f"{EARLY_STOP}{mode}/{metric}"
        self._sign = 1.0 if mode == "max" else -1.0
        self._patience, self._min_delta = patience, min_delta
        self._best = -math.inf  # of sign * value
        self._waited = 0

    @property
    def exhausted(self) -> str | None:
        """Why the run ends here; None: it goes on."""
        if self._waited < self._patience:
            return None
        if math.isinf(self._best):
            return f"{self.metric} was no number in any of the last {self._waited} validations"
        more = f" by more than {self._min_delta:g}" if self._min_delta else ""
        return (
            f"{self.metric} has not improved on {self._sign * self._best:.6g}{more} in the last "
            f"{self._waited} validations"
        )

    def observe(self, values: Mapping[str, float]) -> None:
        """Take in the values of one validation of all sets; NaN is never better.

        Raises:
            SpecError: if the metric is not among them.
        """
        if self.metric not in values:
            raise SpecError(
                f"train.early_stop.metric = {self.metric!r}: no such number; "
                f"there are {', '.join(values)}"
            )
        value = self._sign * values[self.metric]
        if value > self._best + (self._min_delta if math.isfinite(self._best) else 0.0):
            self._best, self._waited = value, 0
        else:
            self._waited += 1

    def state(self) -> np.ndarray[Any, Any]:
        """What a checkpoint holds of it, float64 [2]."""
        return np.array([self._best, self._waited], np.float64)

    def restore(self, state: np.ndarray[Any, Any]) -> None:
        """Continue from `state`."""
        self._best, self._waited = float(state[0]), int(state[1])
