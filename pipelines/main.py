"""The main job: train, validate, aggregate, and show the numbers."""

from __future__ import annotations

import atexit
import contextlib

import luigi

from pipefit.errors import PipefitError
from tasks.aggregate import Aggregate, show_results
from tasks.base import ExperimentTask
from tasks.signals import is_luigi_command


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


def _show_at_end(task: TrainAndValidate, *_: object) -> None:
    """Let the `luigi` command print the results last of all, if they are there then.

    Called in the scheduling process: with several workers `run` is called in a forked one.
    """
    if is_luigi_command():
        atexit.register(_show, task)


def _show(task: TrainAndValidate) -> None:
    # What is wrong with the database has been told before.
    with contextlib.suppress(PipefitError):
        if task.complete():
            show_results(task.requires())


for _event in (luigi.Event.DEPENDENCY_DISCOVERED, luigi.Event.DEPENDENCY_PRESENT):
    TrainAndValidate.event_handler(_event)(_show_at_end)
