"""What the tasks share whose work is done by a worker process: the order, the display, the end."""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import time
from typing import Any

import luigi
from luigi.task_status import RUNNING

from pipefit import settings
from pipefit.errors import RunOwned, SettingsError
from pipefit.execution import Order, Signalled, command_line, executor, log_path
from pipefit.spec import Spec
from tasks.archives import CacheArchive, UntarArchive
from tasks.base import ExperimentTask, store
from tasks.progress import Display
from tasks.signals import Preempted

logger = logging.getLogger(__name__)

#: How long a live owner on this host may take to end (it may be stopping because its scheduler
#: died) before the second command gives up; seconds.
_PATIENCE = 10.0


class WorkerTask(ExperimentTask):
    """A task whose work is one order to a worker process."""

    accepts_messages = True
    #: Whether it needs the archives of which only [[load]] reads.
    loading = False

    def unpacked(self) -> dict[str, luigi.Task]:
        """The tasks that bring the archives that are needed, by name."""
        base = self.spec.import_paths()[0]
        tasks: dict[str, luigi.Task] = {}
        for name, archive in self.spec.archives_needed(loading=self.loading).items():
            same = {"url": archive.url, "sha256": archive.sha256, "base": base}
            if archive.unpack:
                members, size = archive.max_members or 0, archive.max_bytes or 0
                tasks[name] = UntarArchive(max_members=members, max_bytes=size, **same)
            else:
                tasks[name] = CacheArchive(**same)
        return tasks

    def order(self, spec: Spec, uri: str, **details: Any) -> Order:
        """What the worker is to do.

        Args:
            spec: the experiment, or that of one of its models.
            uri: of the database; empty if there is no need of one.
            **details: the kind of the order, and what belongs to it.
        """
        return Order(
            spec=spec.to_json(secrets=True),
            uri=uri,
            folders={name: task.output().path for name, task in self.unpacked().items()},
            import_paths=tuple(self.spec.import_paths()),
            lease_seconds=_lease_seconds(),
            program={"command": command_line()},
            **details,
        )

    def carry_out(self, order: Order, label: str, steps: int = 0) -> None:
        """Run the worker until it is done.

        Args:
            order: what it is to do.
            label: in front of every line that is shown.
            steps: where the training ends; 0 shows no progress.

        Raises:
            Preempted: after SIGTERM or SIGINT, the run being checkpointed.
            PipefitError: whatever the worker refused or failed with.
        """
        self._link(log_path(order).as_uri())
        run_by = executor(settings.value("execution", "executor", "local"))
        runs = {run.name: f"{run.collection}/{run.name}" for run in self.spec.runs().values()}
        with Display(self, label, steps, runs) as display:
            try:
                run_by.run(order, display, self._asked_to_stop)
            except Signalled as error:
                logger.warning("%s: %s; type the same command to continue", label, error)
                raise Preempted from None

    def wait_for_owners(self) -> None:
        """Wait until nobody else owns the runs.

        Raises:
            RunOwned: if one is owned by a process that lives on.
        """
        for wanted in self.run_orders().values():
            _wait_for_owner(wanted.collection, wanted.name)

    @property
    def allowed(self) -> tuple[str, ...]:
        """The keys of `--allow-change`."""
        return tuple(shlex.split(self.allow_change))

    def _link(self, url: str) -> None:
        """Show a link on the scheduler's page."""
        set_tracking_url: Any = self.set_tracking_url  # Luigi declares it as None
        set_tracking_url(url)
        # That makes Luigi's scheduler forget that the task takes messages, and its page then offers
        # no way to send one; there is no public way to tell it both.
        with contextlib.suppress(AttributeError):
            reporter = set_tracking_url.__self__
            reporter._scheduler.add_task(
                task_id=reporter._task_id,
                worker=reporter._worker_id,
                status=RUNNING,
                tracking_url=url,
                accepts_messages=True,
            )

    def _asked_to_stop(self) -> str | None:
        """Why to stop, if "stop" was sent from Luigi's web page."""
        # What Luigi gives a task while it runs, it does not declare.
        messages: Any = getattr(self, "scheduler_messages", None)
        while messages is not None and not messages.empty():
            message = messages.get()
            if message.content.strip().lower() == "stop":
                message.respond("checkpointing and stopping")
                return "stop was sent from the scheduler's page"
            message.respond(f"{message.content!r} is not known; there is: stop")
        return None


def _lease_seconds() -> float:
    text = settings.value("execution", "lease_seconds", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < math.inf:
        raise SettingsError(f"[execution] lease_seconds = {text}: must be a number, 1 or more")
    return seconds


def _wait_for_owner(collection: str, name: str) -> None:
    """Wait for a lease to end, saying so; a lease that is renewed has a live owner.

    Raises:
        RunOwned: if the run is owned by a process that lives on.
    """
    lease = store().lease(collection, name)
    if lease is None:
        return
    owner, fence, first = lease.owner, lease.fence, lease.expires
    until = f"{first:%H:%M:%S} UTC"
    logger.warning("%s/%s: owned by %s until %s; waiting", collection, name, owner, until)
    begin = time.monotonic()
    while lease is not None and lease.fence == fence:
        if lease.expires > first and time.monotonic() - begin > _PATIENCE:
            raise RunOwned(
                f"run {name!r} of {collection!r} is owned by {owner}, which is alive; wait for it, "
                f"stop it (its scheduler's page, Ctrl-C, kill {owner.pid}), or use another name"
            )
        time.sleep(0.5)
        lease = store().lease(collection, name)
