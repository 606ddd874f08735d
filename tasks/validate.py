"""Validate: a committed checkpoint, read only, on one validation set."""

from __future__ import annotations

import luigi

from pipefit.errors import SpecError
from tasks.targets import ValidationTarget
from tasks.train import Train, WorkerTask


class Validate(WorkerTask):
    """Validates the run at one step."""

    validation = luigi.Parameter(description="the validation set")
    step = luigi.IntParameter(default=0, description="a step with a checkpoint; 0: train.steps")

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        known = self.spec.validation
        if self.validation not in known:
            raise SpecError(
                f"{self.config}: validation = {self.validation!r}: there is no such set; "
                f"there are: {', '.join(known) or 'none'}"
            )

    @property
    def at(self) -> int:
        """The step that is validated."""
        return self.step or self.spec.train.steps

    def requires(self) -> dict[str, luigi.Task]:
        """The training and the archives."""
        return {"train": Train(**self.same), **self.unpacked()}

    def output(self) -> ValidationTarget:
        """The committed record."""
        spec = self.spec
        return ValidationTarget(spec.collection, spec.name, self.validation, self.at)

    def run(self) -> None:
        """Validate in a worker process."""
        spec = self.spec
        label = f"{spec.collection}/{spec.name} {self.validation} at step {self.at}"
        self.carry_out(label, 0, kind="validate", validation=self.validation, step=self.at)
