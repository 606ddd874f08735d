"""Validating a committed checkpoint: see `validate`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from pipefit.execution.order import Order
from pipefit.execution.worker.places import Places, threads_of
from pipefit.records import Validation
from pipefit.spec import Spec
from pipefit.store import Store

logger = logging.getLogger("pipefit.run")


def validate(order: Order, spec: Spec, store: Store, places: Places) -> None:
    """Validate a committed checkpoint on one set, read only, and publish the numbers.

    Raises:
        PipefitError: whatever was refused or failed; nothing of it is published then.
    """
    run = store.run(spec.name, spec.collection)
    checkpoint = run.checkpoint(order.step)
    threads = threads_of(store, [spec])
    from pipefit import training

    made = training.experiment_class(spec)
    experiment = made(spec, order.folders, places.replicas("", threads))
    table = spec.validation[order.validation]
    # Read whole, because only then is it verified.
    arrays = run.weights(order.step)
    training.State(experiment.network).restore(_weights(arrays, averaged=table.averaged))
    validator = experiment.validator(order.validation)
    wanted = bool(table.outputs)
    outputs = store.outputs_writer(spec.collection, spec.name, order.validation) if wanted else None
    begin = time.perf_counter()
    try:
        found = validator.run(outputs.add if outputs else None)
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
    store.commit_validation(spec.collection, spec.name, checkpoint, validation, manifest)
    logger.info("%s", ", ".join(f"{k} {v:.4f}" for k, v in found.metrics.items()))


def _weights(arrays: Mapping[str, Any], *, averaged: bool) -> dict[str, Any]:
    """What a model needs of a checkpoint."""
    kept = {k: v for k, v in arrays.items() if k.startswith(("model/", "generator/"))}
    if averaged:
        for name, value in arrays.items():
            if name.startswith("average/"):
                path = f"model/{name.removeprefix('average/')}"
                kept[path] = value.astype(kept[path].dtype)
    return kept
