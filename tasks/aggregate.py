"""Aggregate: joins the validations of a run into one summary record and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import luigi
import luigi.format

from pipefit import settings
from pipefit.execution import completed
from tasks.base import ModelTask, store
from tasks.targets import SummaryTarget
from tasks.train import Train
from tasks.validate import Validate

#: How many of the newest validations the summary repeats, for the table on the screen.
_SUMMARY_ROWS = 12


class Aggregate(ModelTask):
    """Writes the summary of a run at its last step, and its report."""

    def requires(self) -> dict[str, luigi.Task]:
        """The training and the validation of its last step on every set."""
        validations = {
            f"validate {name}": Validate(validation=name, model=self.model, **self.same)
            for name in self.spec.validation
        }
        return {"train": Train(**self.same), **validations}

    def output(self) -> list[luigi.Target]:
        """The summary record and the report's file."""
        return self.results(self.last_step())

    def results(self, step: int) -> list[luigi.Target]:
        """What there is once the run has ended at this step."""
        spec = self.run_spec
        summary = SummaryTarget(spec.collection, spec.name, step)
        return [summary, luigi.LocalTarget(str(self.report))]

    @property
    def report(self) -> Path:
        """Where the report lies."""
        spec = self.run_spec
        return settings.home() / "reports" / spec.collection / spec.name / "report.html"

    def run(self) -> None:
        """Join what is stored; the record comes last."""
        from pipefit.execution.replay import replay_before
        from pipefit.report import render

        spec, step = self.run_spec, self.last_step()
        # All that a complete run may have left is how its attempt ended: no training asks for it.
        replay_before(store(), spec.collection, [spec.name])
        page = render(store().run(spec.name, spec.collection))
        store().put_artifact(spec.collection, spec.name, "report.html", step, page.encode())
        _publish(self.report, page)
        store().write_summary(spec.collection, spec.name, step, self._summary(step))

    def _summary(self, step: int) -> dict[str, Any]:
        spec = self.run_spec
        wanted = [(spec.name, name, step) for name in spec.validation]
        found = store().validated(spec.collection, wanted)
        newest = store().run(spec.name, spec.collection).validations().tail(_SUMMARY_ROWS)
        return {
            "step": step,
            "validations": {
                name: {"examples": v.examples, "metrics": dict(v.metrics)}
                for (_, name, _), v in found.items()
            },
            "newest": newest.to_dict("records"),
        }


def _publish(path: Path, text: str) -> None:
    """Write a file under a temporary name first, so that nobody reads half of it."""
    with luigi.LocalTarget(str(path), format=luigi.format.UTF8).open("w") as out:
        out.write(text)


def everything_there(tasks: Sequence[Aggregate]) -> bool:
    """Whether the runs of an experiment, their validations, summaries and reports are all there.

    Asked in a few queries, however many models and validation sets there are.

    Args:
        tasks: those of all models of one experiment.
    """
    orders = tasks[0].run_orders()
    steps = completed(store(), list(orders.values()))
    if len(steps) < len(orders):
        return False
    spec = tasks[0].spec
    wanted = [(run, name, step) for run, step in steps.items() for name in spec.validation]
    if wanted and len(store().validated(spec.collection, wanted)) < len(wanted):
        return False
    return all(
        target.exists() for task in tasks for target in task.results(steps[task.run_spec.name])
    )


def show_results(task: Aggregate) -> None:
    """Print the table of the run's validations and where the report lies."""
    from pipefit.report import validations_table

    spec, step = task.run_spec, task.last_step()
    summary = store().summary(spec.collection, spec.name, step) or {}
    print(f"\n{spec.collection}/{spec.name}, {step} steps")
    print(validations_table(summary.get("newest", [])))
    print(f"Report: {task.report}")
