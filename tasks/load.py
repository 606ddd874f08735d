"""LoadCheckpoint: what [[load]] names becomes the first checkpoint of a run."""

from __future__ import annotations

import luigi

from pipefit import settings
from pipefit.records import RunOrder
from tasks.base import store
from tasks.targets import BegunTarget
from tasks.worker import WorkerTask


class LoadCheckpoint(WorkerTask):
    """Loads the weights of the runs of an experiment that have [[load]] and have not begun."""

    loading = True

    def requires(self) -> dict[str, luigi.Task]:
        """The archives: of weights, and of the data from which the models are built."""
        return self.unpacked()

    def output(self) -> list[BegunTarget]:
        """Any committed checkpoint of each of these runs: they continue from their own."""
        return [BegunTarget(order) for order in self._orders()]

    def complete(self) -> bool:
        """Whether all of them have begun, asked at once.

        Raises:
            IdentityMismatch: if a run of this name is another experiment.
        """
        orders = self._orders()
        names = [order.name for order in orders]
        statuses = store().statuses(self.spec.collection, names)
        for order in orders:
            if order.name in statuses and statuses[order.name].identity != order.identity:
                store().check_identity(order)
        return all(name in statuses and statuses[name].step is not None for name in names)

    def run(self) -> None:
        """Load, once nobody else owns the runs."""
        self.wait_for_owners()
        order = self.order(self.spec, settings.mongo_uri(), kind="load", allow_change=self.allowed)
        self.carry_out(order, f"{self.subject} loading")

    def _orders(self) -> list[RunOrder]:
        runs, orders = self.spec.runs(), self.run_orders()
        return [orders[name] for name, spec in runs.items() if spec.load]
