"""Loading weights into a run before its first step: see `load`."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import LoadError, PipefitError, StoreError, without_passwords
from pipefit.execution import provenance
from pipefit.execution.checks import run_order
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.loading import Around, open_source
from pipefit.execution.order import Order
from pipefit.execution.reporter import Reporter, RunLog
from pipefit.execution.watchdog import Watchdog
from pipefit.execution.worker.building import build, load_training
from pipefit.execution.worker.places import Places, threads_of
from pipefit.loading import Source, TensorInfo
from pipefit.loading.filling import facts_of, filled
from pipefit.loading.matching import STEP, Offer, match
from pipefit.loading.names import Rules
from pipefit.loading.report import Report, SourceFacts
from pipefit.records import NOTHING, RunState
from pipefit.spec import Load, Spec
from pipefit.store import RunWriter, Store, this_process

if TYPE_CHECKING:
    import numpy as np

    from pipefit.training import Trainer

    Arrays = dict[str, np.ndarray[Any, Any]]

logger = logging.getLogger("pipefit.run")

#: The artifacts of a run that tell what was loaded, for programs and for people.
REPORT_JSON, REPORT_TEXT = "load.json", "load.txt"
#: Why a run is interrupted that has its weights.
READY = "its weights are loaded ([[load]]); it is ready to be trained"

_KIND = frozenset({"permanent"})


def load(
    order: Order,
    runs: Mapping[str, Spec],
    store: Store,
    places: Places,
    *,
    reporter: Reporter,
    give_up: Callable[[PipefitError], None],
) -> None:
    """Make the first checkpoint of every run that has [[load]] and no checkpoint yet.

        build the model as training does -> match -> read -> acquire -> report, commit -> release

    Args:
        order: says how.
        runs: by the name of the model.
        store: where they are.
        places: where the models compute.
        reporter: is told what happens.
        give_up: see `pipefit.execution.worker.perform`.

    Raises:
        LoadError: something is not there, or does not fit; nothing is written of that run then.
        PipefitError: whatever else was refused or failed.
    """
    left = [name for name, spec in runs.items() if spec.load and not _has_begun(order, store, spec)]
    if not left:
        return
    threads = threads_of(store, [runs[name] for name in left])
    load_training()
    from pipefit import training

    shared = training.Shared(order.folders)
    try:
        for name in left:
            # Who reads an example of the data may hang; reading weights may take its time.
            with Watchdog(runs[name].train.step_timeout, give_up):
                built = build(order, runs, [name], places, threads, shared=shared)
            told = {"devices": places.describe(name), "threads": threads}
            loading = _Loading(order, runs[name], store, reporter, alone=len(runs) == 1)
            loading.run(built[name][1], told)
    finally:
        shared.close()


def check_loaded(store: Store, spec: Spec, start: int, *, alone: bool) -> None:
    """Before a run is trained: see that what it asks for is in it, and say so.

    Args:
        store: where it is.
        spec: of the run.
        start: the step it continues after; -1: it has no checkpoint.
        alone: whether no other run is trained in this process.

    Raises:
        LoadError: it would begin without its weights.
    """
    if spec.load and start == NOTHING:
        raise LoadError(
            f"run {spec.name!r} has [[load]], and nothing is loaded yet: the task LoadCheckpoint, "
            f"or pipefit.fit, does that first"
        )
    if not spec.load:
        return
    log = RunLog(logger, "" if alone else spec.name)
    history = store.run(spec.name, spec.collection).document()["history"]
    if any(event.get("event") == "load" for event in history):
        log.info("[[load]] was applied at its start; its artifact %s tells how", REPORT_TEXT)
    else:
        log.warning("[[load]] is not applied: the run had begun without it, and continues")


def report(order: Order, spec: Spec, trainer: Trainer) -> Report:
    """What would be loaded into a run; no tensor is read, and nothing stored.

    Args:
        order: knows where the archives and the database are.
        spec: of the run.
        trainer: of the run, at step 0.

    Raises:
        LoadError: a source cannot be opened, or a rule about names does nothing.
    """
    with _opened(order, spec) as sources:
        return _matched(spec, facts_of(_state(trainer)), sources)


def _has_begun(order: Order, store: Store, spec: Spec) -> bool:
    status = store.statuses(spec.collection, [spec.name]).get(spec.name)
    if status is not None:
        store.check_identity(run_order(spec, order.allow_change))
    return status is not None and status.step is not None


@dataclass(frozen=True)
class _Loading:
    """Loads what one run asks for."""

    order: Order
    spec: Spec
    store: Store
    reporter: Reporter
    alone: bool

    def run(self, trainer: Trainer, program: Mapping[str, Any]) -> None:
        """From the opened sources to the committed checkpoint."""
        spec, log = self.spec, RunLog(logger, "" if self.alone else self.spec.name)
        state = _state(trainer)
        with _opened(self.order, spec) as sources:
            found = _matched(spec, facts_of(state), sources)
            found.check(f"[[load]] of run {spec.name!r}")
            state = filled(state, found, sources, trainer.batch_size)
        self._check(state, found)
        summary = found.summary()
        log.info(
            "loaded %d variables (%d stay as they are initialised) from %s",
            summary["loaded"], summary["fresh"], " and ".join(summary["from"]),
        )  # fmt: skip
        self._commit(state, found, program)

    def _check(self, state: Arrays, found: Report) -> None:
        from pipefit.training import not_finite

        step, steps = int(state[STEP]), self.spec.train.steps
        if step > steps:
            source = next(m.source for m in found.course if m.name == STEP)
            raise LoadError(
                f"train.steps = {steps}: step = true continues after step {step} of "
                f"{found.sources[source].label}; set train.steps to more, or leave step out"
            )
        names = {m.name for m in found.model.matched}
        bad = not_finite({k: v for k, v in state.items() if k.removeprefix("model/") in names})
        if bad:
            raise LoadError(
                f"{bad[0]} holds NaN or infinity in its source (and {len(bad) - 1} more variables "
                f"do): name another step or file"
            )

    def _commit(self, state: Arrays, found: Report, program: Mapping[str, Any]) -> None:
        spec, step = self.spec, int(state[STEP])
        told = {**provenance.program(), **self.order.program, **program}
        order = run_order(spec, self.order.allow_change, told)
        writer = self.store.acquire(order, this_process(), self.order.lease_seconds)
        with Heartbeat(writer, lambda: None, lambda error: None):  # a lost lease is told by writes
            try:
                if not writer.checkpoints():  # somebody may have been faster
                    writer.begin(NOTHING)
                    # What tells of it comes first, so that it is there whenever the checkpoint is.
                    self._tell(found, step)
                    writer.note({"event": "load", "to": step, **found.summary()})
                    writer.commit(step, state, _KIND)
            except BaseException as error:
                self._failed(writer, error, step)
                raise
            over = step == spec.train.steps
            state_now, reason = (RunState.FINISHED, None) if over else (RunState.INTERRUPTED, READY)
            writer.end(state_now, reason, step, self.reporter.tail())

    def _failed(self, writer: RunWriter, error: BaseException, step: int) -> None:
        stopped = not isinstance(error, Exception)
        state = RunState.INTERRUPTED if stopped else RunState.FAILED
        reason = "asked to stop while loading" if stopped else _reason(error)
        try:
            writer.end(state, reason, step, self.reporter.tail())
        except StoreError as late:
            logger.error("the end of the attempt could not be written: %s", late)

    def _tell(self, found: Report, step: int) -> None:
        put = functools.partial(self.store.put_artifact, self.spec.collection, self.spec.name)
        put(REPORT_JSON, step, json.dumps(found.to_json(), indent=1).encode())
        put(REPORT_TEXT, step, found.text().encode())


def _reason(error: BaseException) -> str:
    ours = isinstance(error, PipefitError)
    return without_passwords(str(error) if ours else f"{type(error).__name__}: {error}")


@contextmanager
def _opened(order: Order, spec: Spec) -> Iterator[list[Source]]:
    """The sources of a run, in the order of its tables."""
    base = Path(order.import_paths[0]) if order.import_paths else None
    around = Around(order.uri, spec.collection, order.folders, base)
    with ExitStack() as stack:
        yield [stack.enter_context(open_source(table.source, around)) for table in spec.load]


def _matched(spec: Spec, wanted: Mapping[str, TensorInfo], sources: Sequence[Source]) -> Report:
    offers = [
        _offer(number, *pair) for number, pair in enumerate(zip(spec.load, sources, strict=True))
    ]
    return match(wanted, offers)


def _offer(number: int, table: Load, source: Source) -> Offer:
    return Offer(
        SourceFacts(source.label, source.step, source.digest, table.asked()),
        source.tensors(),
        Rules(table.strip_prefix, table.rename, table.include, table.exclude),
        mapping=table.mapping == "auto",
        optimizer=table.optimizer,
        step=table.step,
        allow_missing=table.allow_missing,
        allow_unexpected=table.allow_unexpected,
        allow_mismatch=table.allow_mismatch,
        order=table.order,
        where=f"load[{number}]",
    )


def _state(trainer: Trainer) -> Arrays:
    from pipefit.training import to_numpy

    return to_numpy(trainer.snapshot())
