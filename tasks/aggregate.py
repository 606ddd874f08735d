"""Aggregate: joins the validations of a run into one summary record and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import luigi
import luigi.format

from pipefit import settings
from tasks.base import ExperimentTask, store
from tasks.targets import SummaryTarget
from tasks.train import Train
from tasks.validate import Validate

#: How many of the newest validations the summary repeats, for the table on the screen.
_SUMMARY_ROWS = 12


class Aggregate(ExperimentTask):
    """Writes the summary of a run at `train.steps`, and its report."""

    def requires(self) -> dict[str, luigi.Task]:
        """The training and the validation of its last step on every set."""
        validations = {
            name: Validate(validation=name, **self.same) for name in self.spec.validation
        }
        return {"train": Train(**self.same), **{f"validate {k}": v for k, v in validations.items()}}

    def output(self) -> list[luigi.Target]:
        """The summary record and the report's file."""
        spec = self.spec
        summary = SummaryTarget(spec.collection, spec.name, spec.train.steps)
        return [summary, luigi.LocalTarget(str(self.report))]

    @property
    def report(self) -> Path:
        """Where the report lies."""
        spec = self.spec
        return settings.home() / "reports" / spec.collection / spec.name / "report.html"

    def everything_there(self) -> bool:
        """Whether the run, its validations, the summary and the report are all there."""
        required = self.requires()
        return required["train"].complete() and all(
            task.complete() for task in [self, *required.values()] if task != required["train"]
        )

    def run(self) -> None:
        """Join what is stored; the record comes last."""
        from pipefit.report import render

        spec = self.spec
        step = spec.train.steps
        page = render(store().run(spec.name, spec.collection))
        store().put_artifact(spec.collection, spec.name, "report.html", step, page.encode())
        _publish(self.report, page)
        store().write_summary(spec.collection, spec.name, step, self._summary(step))

    def _summary(self, step: int) -> dict[str, Any]:
        spec = self.spec
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


def show_results(task: Aggregate) -> None:
    """Print the table of the run's validations and where the report lies."""
    from pipefit.report import validations_table

    spec = task.spec
    summary = store().summary(spec.collection, spec.name, spec.train.steps) or {}
    print(f"\n{spec.collection}/{spec.name}, {spec.train.steps} steps")
    print(validations_table(summary.get("newest", [])))
    print(f"Report: {task.report}")
