"""Training the runs of an experiment in one process: see `train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipefit.data import content_digest
from pipefit.errors import PipefitError
from pipefit.execution import provenance
from pipefit.execution.checks import completed
from pipefit.execution.order import Order
from pipefit.execution.reporter import Reporter
from pipefit.execution.watchdog import Watchdog
from pipefit.execution.worker.attempt import Attempt, ShouldStop
from pipefit.execution.worker.building import build
from pipefit.execution.worker.places import Places, threads_of
from pipefit.records import NOTHING, Best, RunOrder
from pipefit.spec import Spec
from pipefit.store import Store, this_process

GiveUp = Callable[[PipefitError], None]


def train(
    order: Order,
    runs: Mapping[str, Spec],
    store: Store,
    places: Places,
    reporter: Reporter,
    should_stop: ShouldStop,
    give_up: GiveUp,
) -> None:
    """Train runs to their ends, continuing those that have begun.

    Args:
        order: says how.
        runs: by the name of the model.
        store: where they are.
        places: where the models compute.
        reporter: is told how far it is.
        should_stop: says why to stop.
        give_up: see `pipefit.execution.worker.perform`.

    Raises:
        Interrupted: it was asked to stop and has checkpointed.
        PipefitError: whatever was refused or failed; of several runs the others have ended first.
    """
    session = _Session(order, runs, store, places, reporter, should_stop, give_up)
    # Also refuses, before TensorFlow is paid for.
    done = completed(store, [session.run_order(name) for name in runs])
    left = [name for name, spec in runs.items() if spec.name not in done]
    while left:
        left = session.run(left)


class _Session:
    """One attempt at each of some runs, together; after a rollback there is another one.

    build all -> acquire -> restore the newest good checkpoints -> begin
    loop, every run's results written by its background thread, its lease renewed by another
    """

    def __init__(
        self,
        order: Order,
        runs: Mapping[str, Spec],
        store: Store,
        places: Places,
        reporter: Reporter,
        should_stop: ShouldStop,
        give_up: GiveUp,
    ):
        self._order, self._runs, self._store, self._places = order, runs, store, places
        self._reporter, self._should_stop, self._give_up = reporter, should_stop, give_up
        self._threads = 0
        self._attempts: dict[str, Attempt] = {}

    def run(self, names: Sequence[str]) -> list[str]:
        """Train these; the names of those that are to be continued by another attempt."""
        self._threads = threads_of(self._store, [self._runs[name] for name in names])
        from pipefit import training

        built = build(self._order, self._runs, names, self._places, self._threads)
        self._attempts = {}
        try:
            limit = min(self._runs[name].train.step_timeout for name in names)
            with Watchdog(limit, self._hangs) as watchdog:
                courses = [
                    self._begin(name, experiment, trainer, watchdog.alive)
                    for name, (experiment, trainer) in built.items()
                ]
                training.Loop(courses, watchdog.alive).run()
        except BaseException as error:
            for attempt in self._attempts.values():
                attempt.failed(error)
            if not self._only_to_repeat(error):
                raise
        return [name for name, attempt in self._attempts.items() if attempt.to_repeat]

    def run_order(self, name: str, data_digest: str | None = None) -> RunOrder:
        """What identifies a run in the store."""
        spec = self._runs[name]
        details = {
            **provenance.program(),
            **self._order.program,
            "devices": self._places.describe(name),
            "threads": self._threads,
        }
        return RunOrder(
            collection=spec.collection,
            name=spec.name,
            identity=spec.identity,
            parts=spec.parts(),
            spec=spec.to_json(),
            steps=spec.train.steps,
            allow_change=self._order.allow_change,
            program=details,
            stop_rules=spec.stop_rules(),
            data_digest=data_digest,
        )

    def _begin(self, name: str, experiment: Any, trainer: Any, alive: Callable[[], None]) -> Any:
        """Become the owner of a run, and find where it continues."""
        from pipefit import training

        spec = self._runs[name]
        validators = {key: experiment.validator(key) for key in spec.validation}
        order = self.run_order(name, _digest(trainer.feed.source))
        writer = self._store.acquire(order, this_process(), self._order.lease_seconds)
        rollbacks = _rollbacks(self._store, spec)
        attempt = Attempt(
            spec,
            order,
            writer,
            self._reporter,
            self._should_stop,
            alone=len(self._runs) == 1,
            rollbacks=rollbacks,
        )
        self._attempts[name] = attempt
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
        start = attempt.restore(course)
        best = attempt.begin(start)
        course.best = _continued(best if start != NOTHING else None, experiment.worst())
        if spec.train.rollback:
            trainer.updates.rate_scale = spec.train.rollback.scale**rollbacks
        attempt.trainable = frozenset(f"model/{v.path}" for v in trainer.updates.trainable)
        facts, texts = training.description(experiment.network, trainer.updates)
        diff = provenance.diff()
        writer.describe(facts, {**texts, **({"program.diff": diff} if diff else {})})
        return course

    def _only_to_repeat(self, error: BaseException) -> bool:
        """Whether all that has failed is to be continued by another attempt."""
        failed = [attempt for attempt in self._attempts.values() if attempt.has_failed]
        return bool(failed) and all(attempt.to_repeat for attempt in failed)

    def _hangs(self, error: PipefitError) -> None:
        for attempt in self._attempts.values():
            attempt.give_up(error)
        self._give_up(error)


def _digest(source: Any) -> str | None:
    """Of the content of training data; None for what can be read in order only."""
    digest = content_digest(source)
    return None if digest.startswith("none:") else digest


def _rollbacks(store: Store, spec: Spec) -> int:
    """How often the run was rolled back so far."""
    history = store.run(spec.name, spec.collection).document()["history"]
    return sum(event.get("event") == "rollback" for event in history)


def _continued(stored: Best | None, worst: Best | None) -> Best | None:
    """The stored best, unless the experiment now asks for another metric."""
    if stored is None or worst is None:
        return worst
    return stored if (stored.metric, stored.mode) == (worst.metric, worst.mode) else worst
