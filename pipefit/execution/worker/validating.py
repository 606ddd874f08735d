"""Validating a committed checkpoint: see `validate`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipefit.errors import CheckpointCorrupt, PipefitError
from pipefit.execution.order import Order
from pipefit.execution.watchdog import Watchdog
from pipefit.execution.worker.building import load_training
from pipefit.execution.worker.patience import Patience
from pipefit.execution.worker.places import Places, threads_of
from pipefit.records import Validation
from pipefit.spec import Spec
from pipefit.store import RunReader, Store

logger = logging.getLogger("pipefit.run")


def validate(
    order: Order,
    spec: Spec,
    store: Store,
    places: Places,
    give_up: Callable[[PipefitError], None],
) -> None:
    """Validate a committed checkpoint on one set, read only, and publish the numbers.

    Args:
        order: says which.
        spec: of the run.
        store: where it is.
        places: where the model computes.
        give_up: see `pipefit.execution.worker.perform`.

    Raises:
        PipefitError: whatever was refused or failed; nothing of it is published then.
    """
    with Watchdog(spec.train.step_timeout, give_up) as watchdog:
        _validate(order, spec, store, places, watchdog.alive)


def _validate(
    order: Order, spec: Spec, store: Store, places: Places, alive: Callable[[], None]
) -> None:
    run = store.run(spec.name, spec.collection)
    checkpoint = run.checkpoint(order.step)
    threads = threads_of(store, [spec])
    load_training()
    from pipefit import training

    made = training.experiment_class(spec)
    experiment = made(spec, order.folders, places.replicas("", threads))
    table = spec.validation[order.validation]
    arrays = _read(run, order.step)
    training.State(experiment.network).restore(_weights(arrays, averaged=table.averaged))
    validator = experiment.validator(order.validation)
    alive()
    wanted = bool(table.outputs)
    outputs = store.outputs_writer(spec.collection, spec.name, order.validation) if wanted else None
    begin = time.perf_counter()
    try:
        found = validator.run(outputs.add if outputs else None, alive)
        manifest = outputs.close() if outputs else None
    except BaseException:
        if outputs:
            outputs.abort()
        raise
    validation = Validation(
        order.validation,
        order.step,
        found.metrics,
        found.examples,
        checkpoint.id,
        time.perf_counter() - begin,
        found.values,
    )
    # All the work is done: it would be a pity.
    Patience(order.lease_seconds, lambda: None)(
        lambda: store.commit_validation(
            spec.collection, spec.name, checkpoint, validation, manifest
        )
    )
    logger.info("%s", ", ".join(f"{k} {v:.4f}" for k, v in found.metrics.items()))


def _read(run: RunReader, step: int) -> dict[str, Any]:
    """All of a checkpoint, because only then is it verified.

    Raises:
        CheckpointCorrupt: it is damaged; no other one is validated in its place.
    """
    try:
        return run.weights(step)
    except CheckpointCorrupt as error:
        earlier = [int(other) for other in run.checkpoints()["step"] if other < step]
        if not earlier:
            raise
        raise CheckpointCorrupt(
            f"{error}: `pipefit rewind {run.name} --collection {run.collection} --step "
            f"{max(earlier)}` and the command of the run make it again"
        ) from error


def _weights(arrays: Mapping[str, Any], *, averaged: bool) -> dict[str, Any]:
    """What a model needs of a checkpoint."""
    kept = {k: v for k, v in arrays.items() if k.startswith(("model/", "generator/"))}
    if averaged:
        for name, value in arrays.items():
            if name.startswith("average/"):
                path = f"model/{name.removeprefix('average/')}"
                kept[path] = value.astype(kept[path].dtype)
    return kept
