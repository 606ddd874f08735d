"""Where the models of one process compute: see `Places`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipefit.errors import NotFound
from pipefit.execution.devices import Placement
from pipefit.spec import Spec
from pipefit.store import Store

logger = logging.getLogger("pipefit.run")


@dataclass(frozen=True)
class Places:
    """The devices of a process, and which of them each model has.

    Attributes:
        placement: all of them.
        indices: by the name of the model.
    """

    placement: Placement
    indices: Mapping[str, Sequence[int]]

    def replicas(self, model: str, threads: int) -> Any:
        """The devices of a model; TensorFlow starts here."""
        from pipefit.training import Replicas, start

        start(self.placement.kind, self.placement.count, threads)
        return Replicas(
            kind=self.placement.kind,
            indices=list(self.indices[model]),
            alone=len(self.indices) == 1,
        )

    def describe(self, model: str) -> str:
        """For the run's document."""
        return f"{len(self.indices[model])} x {self.placement.kind}"


def threads_of(store: Store, runs: Sequence[Spec]) -> int:
    """Threads of one operation: as many as when the runs began, because sums depend on them."""
    stored = {}
    for spec in runs:
        try:
            program = store.run(spec.name, spec.collection).document()["program"]
        except NotFound:
            continue
        if threads := program.get("threads"):
            stored[spec.name] = int(threads)
    if len(set(stored.values())) > 1:
        told = ", ".join(f"{name} with {threads}" for name, threads in stored.items())
        logger.warning(
            "these runs began with different numbers of threads (%s); the first counts, so the "
            "others may differ in the last digits from what they would have been",
            told,
        )
    return next(iter(stored.values()), None) or cores()


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
