"""Training the runs of an experiment in one process: see `Session`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipefit.data import content_digest
from pipefit.errors import Interrupted, PipefitError
from pipefit.execution import provenance
from pipefit.execution.checks import completed, run_order
from pipefit.execution.order import Order
from pipefit.execution.replay import replay_before
from pipefit.execution.reporter import Reporter
from pipefit.execution.watchdog import Watchdog
from pipefit.execution.worker.attempt import Attempt
from pipefit.execution.worker.building import build, load_training
from pipefit.execution.worker.loading import check_loaded
from pipefit.execution.worker.places import Places, threads_of
from pipefit.execution.worker.results import ShouldStop
from pipefit.records import NOTHING, Best, RunOrder
from pipefit.spec import Spec
from pipefit.store import Store, this_process

if TYPE_CHECKING:
    from pipefit.training import CallFailed, Course, Experiment, Shared, Trainer, Validator

GiveUp = Callable[[PipefitError], None]

logger = logging.getLogger("pipefit.run")

#: So long a process that hangs may take to tell the database, seconds.
_LAST_WORDS_SECONDS = 20.0


class _Built(NamedTuple):
    """What there is of a model before its run is touched."""

    experiment: Experiment
    trainer: Trainer
    validators: Mapping[str, Validator]


class Session:
    """Trains runs to their ends, continuing those that have begun.

    That is one attempt at each of them, together; some may need another one.

        build all -> acquire all -> restore the newest good checkpoints -> begin
        loop, every run's results written by its background thread, its lease renewed by another

    A run that was rolled back is continued once the others have ended. When a call for several
    models has failed, it is not known which are to blame, and the state of all is lost: all are
    continued from their last checkpoints, one by one up to the step that failed, and together from
    there on. That is done again only if it has left fewer of them.

    Args:
        order: says how.
        runs: by the name of the model.
        store: where they are.
        places: where the models compute.
        reporter: is told how far it is.
        should_stop: says why to stop.
        give_up: see `pipefit.execution.worker.perform`.
    """

    def __init__(
        self,
        order: Order,
        runs: Mapping[str, Spec],
        store: Store,
        places: Places,
        *,
        reporter: Reporter,
        should_stop: ShouldStop,
        give_up: GiveUp,
    ):
        self._order, self._runs, self._store, self._places = order, runs, store, places
        self._reporter, self._should_stop, self._give_up = reporter, should_stop, give_up
        self._threads = 0
        self._shared: Shared | None = None
        self._built: dict[str, _Built] = {}
        self._attempts: dict[str, Attempt] = {}
        self._apart_until, self._part_below = 0, math.inf
        self._failures: dict[str, BaseException] = {}

    def train(self) -> None:
        """Train all that are not at their end.

        Raises:
            Interrupted: it was asked to stop and has checkpointed.
            PipefitError: whatever was refused or failed; of several runs the others have ended
                first.
        """
        collection = next(iter(self._runs.values())).collection
        replay_before(self._store, collection, [spec.name for spec in self._runs.values()])
        # Also refuses, before TensorFlow is paid for.
        done = completed(self._store, [self._order_of(name) for name in self._runs])
        left = [name for name, spec in self._runs.items() if spec.name not in done]
        try:
            while left:
                left = self._attempt(left)
        finally:
            if self._shared is not None:
                self._shared.close()
        self._raise_failures()

    def _attempt(self, names: Sequence[str]) -> list[str]:
        """Train these; the names of those that are to be continued by another attempt."""
        self._threads = threads_of(self._store, [self._runs[name] for name in names])
        load_training()
        from pipefit import training

        self._shared = self._shared or training.Shared(self._order.folders)
        self._built, self._attempts = {}, {}
        courses: list[Course] = []
        limit = min(self._runs[name].train.step_timeout for name in names)
        with Watchdog(limit, self._hangs, self._pulse) as watchdog:
            try:
                for name in names:
                    self._build(name)
                    watchdog.alive()
                self._acquire(names)
                courses += [self._begin(name, watchdog.alive) for name in names]
                training.Loop(
                    courses,
                    watchdog.alive,
                    apart_until=self._apart_until,
                    part_below=self._part_below,
                ).run()
            except training.CallFailed as error:
                self._part(error)
            except BaseException as error:
                for attempt in self._attempts.values():
                    attempt.failed(error)
                stopped = isinstance(error, Interrupted) or not isinstance(error, Exception)
                failed = any(course.error for course in courses)
                if not self._note_spooled() and (stopped or not failed):
                    raise
        self._note_failures(courses)
        self._note_spooled()
        return [name for name, attempt in self._attempts.items() if attempt.to_repeat]

    def _raise_failures(self) -> None:
        """Raise why runs have failed, once all have ended."""
        if self._failures:
            from pipefit.training import joined

            raise joined(self._failures, len(self._runs))

    def _order_of(self, name: str, data_digest: str | None = None) -> RunOrder:
        """What identifies a run in the store."""
        spec = self._runs[name]
        details = {
            **provenance.program(),
            **self._order.program,
            "devices": self._places.describe(name),
            "threads": self._threads,
        }
        return run_order(spec, self._order.allow_change, details, data_digest)

    def _build(self, name: str) -> None:
        one = build(
            self._order, self._runs, [name], self._places, self._threads, shared=self._shared
        )
        experiment, trainer = one[name]
        # Before the next model is built, which seeds everything anew: as if it were alone.
        validators = {key: experiment.validator(key) for key in self._runs[name].validation}
        self._built[name] = _Built(experiment, trainer, validators)

    def _acquire(self, names: Sequence[str]) -> None:
        """Become the owner of all runs, or of none."""
        digests: dict[Any, str | None] = {}
        try:
            for name in names:
                spec, feed = self._runs[name], self._built[name].trainer.feed
                if feed not in digests:
                    digests[feed] = _digest(feed.source)
                order = self._order_of(name, digests[feed])
                writer = self._store.acquire(order, this_process(), self._order.lease_seconds)
                self._attempts[name] = Attempt(
                    spec,
                    order,
                    writer,
                    self._reporter,
                    self._should_stop,
                    store=self._store.describe(),
                    alone=len(self._runs) == 1,
                    rollbacks=_rollbacks(self._store, spec),
                )
        except Exception as error:
            given_back = Interrupted(f"not begun, because another model could not be: {error}")
            for attempt in self._attempts.values():
                attempt.failed(given_back)
            raise

    def _begin(self, name: str, alive: Callable[[], None]) -> Course:
        """Find where a run continues; if that fails, it fails alone."""
        from pipefit import training

        spec, attempt = self._runs[name], self._attempts[name]
        experiment, trainer, validators = self._built[name]
        attempt.results.trainable = frozenset(f"model/{v.path}" for v in trainer.updates.trainable)
        course = training.Course(
            trainer=trainer,
            validators=validators,
            schedule=experiment.schedule(),
            actions=attempt,
            name=spec.name,
            max_loss=spec.train.max_loss,
            early_stop=experiment.early_stop(),
            max_seconds=spec.train.max_time,
            alive=alive,
        )
        try:
            start = attempt.restore(course)
            check_loaded(self._store, spec, start, alone=len(self._runs) == 1)
            best = attempt.begin(start)
            course.best = _continued(best if start != NOTHING else None, experiment.worst())
            trainer.updates.rate_scale = attempt.rate_scale
            facts, texts = training.description(experiment.network, trainer.updates)
            diff = provenance.diff()
            attempt.describe(facts, {**texts, **({"program.diff": diff} if diff else {})})
        except Exception as error:
            course.close(error)
        alive()
        return course

    def _note_failures(self, courses: Sequence[Course]) -> None:
        from pipefit.training import without_stack

        alone = len(self._runs) == 1
        for course in courses:
            if course.error:
                # With its stack it would keep the models until the others have ended.
                told = course.error if alone else without_stack(course.error)
                self._failures[course.name] = told

    def _note_spooled(self) -> bool:
        """Let the errors that say where the rest of runs is be those that are raised, if any."""
        spooled = {a.spec.name: a.spooled for a in self._attempts.values() if a.spooled}
        self._failures.update(spooled)
        return bool(spooled)

    def _part(self, error: CallFailed) -> None:
        logger.warning("%s", error)
        self._apart_until = error.until
        if error.until:
            self._part_below = error.count

    def _pulse(self) -> object:
        """Changes as long as streams are being read up to where they are continued."""
        return [built.trainer.feed.skipped for built in list(self._built.values())]

    def _hangs(self, error: PipefitError) -> None:
        """Tell the database if it answers soon; then end the process."""
        telling = [
            threading.Thread(target=attempt.give_up, args=(error,), daemon=True)
            for attempt in self._attempts.values()
        ]
        for thread in telling:
            thread.start()
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        for thread in telling:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._give_up(error)
        # Still there, so the process is not ours to end; who waits for a source waits no longer.
        for built in list(self._built.values()):
            built.trainer.feed.close(0.0)


def _digest(source: Any) -> str | None:
    """Of the content of training data; None for what can be read in order only."""
    digest = content_digest(source)
    return None if digest.startswith("none:") else digest


def _rollbacks(store: Store, spec: Spec) -> list[Mapping[str, Any]]:
    """What the history says about how the run was rolled back so far."""
    rollbacks: list[Mapping[str, Any]] = []
    for event in store.run(spec.name, spec.collection).document()["history"]:
        if event.get("event") == "rollback":
            rollbacks.append(event)
        elif event.get("event") == "rewind":
            # Before what it was rolled back to, it has not diverged yet.
            rollbacks = [earlier for earlier in rollbacks if earlier["to"] <= event["to"]]
    return rollbacks


def _continued(stored: Best | None, worst: Best | None) -> Best | None:
    """The stored best, unless the experiment now asks for another metric."""
    if stored is None or worst is None:
        return worst
    return stored if (stored.metric, stored.mode) == (worst.metric, worst.mode) else worst
