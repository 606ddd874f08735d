"""Validate: a committed checkpoint, read only, on one validation set."""

from __future__ import annotations

import luigi

from pipefit import settings
from pipefit.errors import SpecError
from tasks.base import ModelTask
from tasks.targets import ValidationTarget
from tasks.train import Train
from tasks.worker import WorkerTask


class Validate(WorkerTask, ModelTask):
    """Validates a run at one step."""

    validation = luigi.Parameter(description="the validation set")
    step = luigi.IntParameter(default=0, description="a step with a checkpoint; 0: the last one")

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        known = self.spec.validation
        if self.validation not in known:
            raise SpecError(
                f"{self.config}: validation = {self.validation!r}: there is no such set; "
                f"there are: {', '.join(known) or 'none'}"
            )

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return f"{super().subject} {self.validation}"

    @property
    def at(self) -> int:
        """The step that is validated."""
        return self.step or self.last_step()

    def requires(self) -> dict[str, luigi.Task]:
        """The training and the archives."""
        return {"train": Train(**self.same), **self.unpacked()}

    def output(self) -> ValidationTarget:
        """The committed record."""
        spec = self.run_spec
        return ValidationTarget(spec.collection, spec.name, self.validation, self.at)

    def run(self) -> None:
        """Validate in a worker process."""
        spec, step = self.run_spec, self.at
        order = self.order(
            spec, settings.mongo_uri(), kind="validate", validation=self.validation, step=step
        )
        self.carry_out(order, f"{self.subject} at step {step}")
