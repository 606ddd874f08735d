"""Train: the training core in a fresh process, up to the committed checkpoint of the last step."""

from __future__ import annotations

import luigi

from pipefit import settings
from pipefit.execution import completed, last_steps
from tasks.base import store
from tasks.load import LoadCheckpoint
from tasks.targets import CheckpointTarget
from tasks.worker import WorkerTask


class Train(WorkerTask):
    """Trains the run of an experiment, or the runs of its models, or continues them."""

    def requires(self) -> dict[str, luigi.Task]:
        """The archives, and what is loaded before the first step."""
        loaded = {"load": LoadCheckpoint(**self.same)} if self.spec.loads else {}
        return {**self.unpacked(), **loaded}

    def output(self) -> list[CheckpointTarget]:
        """The committed checkpoint of the last step of every run."""
        steps = last_steps(store(), list(self.run_orders().values()))
        return [CheckpointTarget(self.spec.collection, run, step) for run, step in steps.items()]

    def complete(self) -> bool:
        """Whether every run has come to its end, by this very experiment.

        Raises:
            IdentityMismatch: if a run of this name is another experiment.
            StoreError: if a run is beyond that step and keeps no checkpoint of it.
        """
        orders = list(self.run_orders().values())
        return len(completed(store(), orders)) == len(orders)

    def run(self) -> None:
        """Train, once nobody else owns the runs."""
        spec = self.spec
        self.wait_for_owners()
        order = self.order(spec, settings.mongo_uri(), kind="train", allow_change=self.allowed)
        self.carry_out(order, self.subject, spec.train.steps)
