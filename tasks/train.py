"""Train: the training core in a fresh process, up to a committed checkpoint of `train.steps`."""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import sys
import time
from typing import Any

import luigi
from luigi.task_status import RUNNING

from pipefit import settings
from pipefit.errors import RunOwned, SettingsError
from pipefit.execution import Order, Signalled, executor, log_path, reached
from tasks.archives import UntarArchive
from tasks.base import ExperimentTask, store
from tasks.progress import Display
from tasks.signals import Preempted
from tasks.targets import CheckpointTarget

logger = logging.getLogger(__name__)

#: How long a live owner on this host may take to end (it may be stopping because its scheduler
#: died) before the second command gives up; seconds.
_PATIENCE = 10.0


class WorkerTask(ExperimentTask):
    """A task whose work is one order to a worker process."""

    accepts_messages = True

    def unpacked(self) -> dict[str, luigi.Task]:
        """The tasks that bring the experiment's archives, by name."""
        spec = self.spec
        base = spec.import_paths()[0]
        return {
            name: UntarArchive(
                url=archive.url,
                sha256=archive.sha256,
                base=base,
                max_bytes=archive.max_bytes or 0,
                max_members=archive.max_members or 0,
            )
            for name, archive in spec.archives.items()
        }

    def carry_out(self, label: str, steps: int, **details: Any) -> None:
        """Run the worker until it is done.

        Raises:
            Preempted: after SIGTERM or SIGINT, the run being checkpointed.
            PipefitError: whatever the worker refused or failed with.
        """
        spec = self.spec
        order = Order(
            spec=spec.to_json(),
            uri=settings.mongo_uri(),
            folders={name: task.output().path for name, task in self.unpacked().items()},
            import_paths=tuple(spec.import_paths()),
            lease_seconds=_lease_seconds(),
            program={"command": shlex.join(sys.argv)},
            **details,
        )
        self._link(log_path(order).as_uri())
        run_by = executor(settings.value("execution", "executor", "local"))
        with Display(self, label, steps) as display:
            try:
                run_by.run(order, display, self._asked_to_stop)
            except Signalled as error:
                logger.warning("%s: %s; type the same command to continue", label, error)
                raise Preempted from None

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


class Train(WorkerTask):
    """Trains the run of an experiment, or continues it."""

    def requires(self) -> dict[str, luigi.Task]:
        """The archives."""
        return self.unpacked()

    def output(self) -> CheckpointTarget:
        """The committed checkpoint of the last step."""
        spec = self.spec
        return CheckpointTarget(spec.collection, spec.name, spec.train.steps)

    def complete(self) -> bool:
        """Whether that checkpoint is committed, by this very experiment.

        Raises:
            IdentityMismatch: if the run of this name is another experiment.
            StoreError: if the run is beyond that step and keeps no checkpoint of it.
        """
        return reached(store(), self.run_order())

    def run(self) -> None:
        """Train, once nobody else owns the run."""
        order = self.run_order()
        _wait_for_owner(order.collection, order.name)
        self.carry_out(
            f"{order.collection}/{order.name}",
            order.steps,
            kind="train",
            allow_change=tuple(order.allow_change),
        )


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
