"""Which order is carried out how: see `perform`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from pipefit.errors import PipefitError
from pipefit.execution.devices import gpus, place_all
from pipefit.execution.order import Order
from pipefit.execution.reporter import Reporter
from pipefit.execution.worker.loading import load
from pipefit.execution.worker.places import Places
from pipefit.execution.worker.results import ShouldStop
from pipefit.execution.worker.session import Session
from pipefit.execution.worker.trying import describe, fast_dev_run
from pipefit.execution.worker.validating import validate
from pipefit.spec import Spec
from pipefit.store import open_store


def perform(
    order: Order,
    reporter: Reporter,
    should_stop: ShouldStop,
    give_up: Callable[[PipefitError], None],
) -> None:
    """Carry out an order in this process (TensorFlow is loaded here).

    Args:
        order: what to do.
        reporter: is told how far it is.
        should_stop: says why to stop; None: go on.
        give_up: is called, from another thread, if the work hangs for good and cannot be ended
            by an exception.

    Raises:
        Interrupted: it was asked to stop and has checkpointed.
        PipefitError: anything else that was refused or failed.
    """
    sys.path[:0] = [path for path in order.import_paths if path not in sys.path]
    runs = Spec.from_json(order.spec).runs()
    devices = {name: run.one_model.devices for name, run in runs.items()}
    placement, indices = place_all(devices, gpus())
    placement.apply(os.environ)
    places = Places(placement, indices)
    if order.kind == "describe":
        describe(order, runs, places, reporter)
        return
    if order.kind == "fast_dev_run":
        fast_dev_run(order, runs, places, give_up)
        return
    store = open_store(order.uri)
    if order.kind == "load":
        load(order, runs, store, places, reporter=reporter, give_up=give_up)
    elif order.kind == "validate":
        validate(order, runs[""], store, places, give_up)
    else:
        session = Session(
            order,
            runs,
            store,
            places,
            reporter=reporter,
            should_stop=should_stop,
            give_up=give_up,
        )
        session.train()
