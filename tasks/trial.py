"""Trying an experiment out: `--fast-dev-run` and `--dry-run` train nothing and store nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import luigi
from luigi.task import flatten

from pipefit import settings
from pipefit.errors import PipefitError, without_passwords
from pipefit.execution import to_load
from tasks.archives import ArchiveTask
from tasks.base import ExperimentTask, store
from tasks.worker import WorkerTask

logger = logging.getLogger(__name__)

Planned = ExperimentTask | ArchiveTask

#: Ids of tasks that were tried out in this process, and that nobody has asked about yet.
_over: set[str] = set()


class TrialTask(WorkerTask):
    """A task that can be tried out before it is meant."""

    loading = True
    fast_dev_run = luigi.BoolParameter(
        default=False, description="do one step of everything, and store nothing"
    )
    dry_run = luigi.BoolParameter(
        default=False, description="show the experiment, the plan and the models; do nothing"
    )

    @property
    def is_trial(self) -> bool:
        """Whether nothing but a trial is asked for."""
        return bool(self.fast_dev_run or self.dry_run)

    def trial_is_over(self) -> bool:
        """Whether the trial was just made in this process.

        Luigi asks after a task has run whether it is complete. A trial leaves nothing that could
        tell; so the process remembers it for that one question, and the next command tries again.
        """
        if self.task_id in _over:
            _over.remove(self.task_id)
            return True
        return False

    def run_trial(self, meant: ExperimentTask) -> None:
        """Make the trial.

        Args:
            meant: the task that would be run without the trial.
        """
        spec, label = self.spec, self.subject
        if self.dry_run:
            _print_experiment(meant)
            _print_plan(meant)
            self.carry_out(self.order(spec, self._uri_of_weights(), kind="describe"), label)
        if self.fast_dev_run:
            self.carry_out(self.order(spec, uri="", kind="fast_dev_run"), label)
            logger.info("%s: everything was done for one step; nothing was stored", label)
        _over.add(self.task_id)

    def _uri_of_weights(self) -> str:
        """The database in which weights may be looked for; empty if nothing would be loaded."""
        loads = self.spec.loads and (database_problem() or to_load(store(), self.spec))
        return settings.mongo_uri() if loads else ""


def _print_experiment(task: ExperimentTask) -> None:
    print(f"\n# {task.config}, with all defaults\n\n{without_passwords(task.spec.to_toml())}")


def _print_plan(task: ExperimentTask) -> None:
    problem = database_problem()
    print("# What there is, and what would be done\n")
    for state, what in plan(task, ask=problem is None):
        print(f"{state:8}  {what}")
    print(f"\nnot known: {problem}\n" if problem else "", flush=True)


def database_problem() -> str | None:
    """Why the database cannot be asked; None if it can. The embedded one is not started for it."""
    from pipefit.store import server

    try:
        if settings.mongo_uri() == settings.EMBEDDED and not server.status().running:
            return "the database of this machine is not running (`pipefit db start` starts it)"
        store().collections()
    except PipefitError as error:
        return str(error)
    return None


def plan(root: Planned, *, ask: bool) -> Iterator[tuple[str, str]]:
    """The tasks that Luigi would look at, in the order in which it would run them.

    Args:
        root: the task that is asked for.
        ask: whether the database can be asked.

    Returns:
        For each "there", "to do", "unknown" or "refused" and why, and the task.
    """
    seen: set[str] = set()

    def walk(task: Planned) -> Iterator[tuple[str, str]]:
        if task.task_id in seen:
            return
        seen.add(task.task_id)
        state = _state(task, ask)
        if state in ("to do", "unknown"):  # Luigi does not look behind what is there
            for required in flatten(task.requires()):
                yield from walk(required)
        yield state, f"{task.task_family} {task.subject}"

    yield from walk(root)


def _state(task: Planned, ask: bool) -> str:
    if isinstance(task, ExperimentTask) and not ask:
        return "unknown"
    try:
        return "there" if task.complete() else "to do"
    except PipefitError as error:
        return f"refused: {error}\n        "
