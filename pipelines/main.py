"""The main job: train, validate, aggregate, and show the numbers."""

from __future__ import annotations

import atexit
import contextlib
import functools

import luigi

from pipefit.errors import PipefitError
from tasks.aggregate import Aggregate, everything_there, show_results
from tasks.signals import is_luigi_command
from tasks.trial import TrialTask


class TrainAndValidate(TrialTask):
    """Trains one experiment, validates its last step on every set, and writes the report.

    Of an experiment with several models, each of them.
    """

    def requires(self) -> list[luigi.Task]:
        """The end of the graph for every model; a trial needs the archives only."""
        return list(self.unpacked().values()) if self.is_trial else list(self.aggregates())

    def aggregates(self) -> list[Aggregate]:
        """The last task of every model."""
        return [Aggregate(model=model, **self.same) for model in self.spec.runs()]

    def complete(self) -> bool:
        """Whether all of the graph is there, in a few queries."""
        return self.trial_is_over() if self.is_trial else everything_there(self.aggregates())

    def run(self) -> None:
        """Try out what is asked for; else nothing is left to do: the results are shown below."""
        if self.is_trial:
            self.run_trial(TrainAndValidate(**self.same))


def _show_at_end(task: TrainAndValidate, *_: object) -> None:
    """Let the `luigi` command print the results last of all, if they are there then.

    Called in the scheduling process: with several workers `run` is called in a forked one.
    """
    if is_luigi_command() and not task.is_trial:
        _register(task)


@functools.cache
def _register(task: TrainAndValidate) -> None:
    """Once, however many dependencies are discovered."""
    atexit.register(_show, task)


def _show(task: TrainAndValidate) -> None:
    # What is wrong with the database has been told before.
    with contextlib.suppress(PipefitError):
        if task.complete():
            for aggregate in task.aggregates():
                show_results(aggregate)


for _event in (luigi.Event.DEPENDENCY_DISCOVERED, luigi.Event.DEPENDENCY_PRESENT):
    TrainAndValidate.event_handler(_event)(_show_at_end)
