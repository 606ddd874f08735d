"""The main job: train, validate, aggregate, and show the numbers."""

from __future__ import annotations

import luigi

from tasks.aggregate import Aggregate, show_results
from tasks.base import ExperimentTask


class TrainAndValidate(ExperimentTask):
    """Trains one experiment, validates its last step on every set, and writes the report."""

    def requires(self) -> Aggregate:
        """The end of the graph."""
        return Aggregate(**self.same)

    def complete(self) -> bool:
        """Whether all of the graph is there, in a few queries."""
        return self.requires().everything_there()

    def run(self) -> None:
        """Nothing is left to do: the results are shown by the event below."""


@TrainAndValidate.event_handler(luigi.Event.SUCCESS)
@TrainAndValidate.event_handler(luigi.Event.DEPENDENCY_PRESENT)
def _show(task: TrainAndValidate) -> None:
    show_results(task.requires())
