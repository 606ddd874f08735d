"""Trying an experiment out, without any database: see `fast_dev_run` and `describe`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipefit.errors import Diverged, PipefitError, SpecError
from pipefit.execution.order import Order
from pipefit.execution.reporter import Reporter, RunLog
from pipefit.execution.watchdog import Watchdog
from pipefit.execution.worker.building import build, load_training
from pipefit.execution.worker.loading import report
from pipefit.execution.worker.places import Places, cores
from pipefit.records import TIMING
from pipefit.spec import Spec

if TYPE_CHECKING:
    from pipefit.training import Experiment, Trainer

logger = logging.getLogger("pipefit.run")


def describe(order: Order, runs: Mapping[str, Spec], places: Places, reporter: Reporter) -> None:
    """Build every model, and hand on texts about each: its layers, what would be loaded.

    Args:
        order: what to do.
        runs: by the name of the model.
        places: where the models compute.
        reporter: receives the texts.

    Raises:
        PipefitError: if one cannot be built, or what would be loaded does not fit.
    """
    load_training()
    from pipefit import training

    found = {}
    for name, (experiment, trainer) in build(order, runs, list(runs), places, cores()).items():
        _, texts = training.description(experiment.network, trainer.updates)
        title = f"# The model of {runs[name].name}, on {places.describe(name)}"
        reporter.text(f"{title}\n\n{texts['model.txt'].decode()}")
        if runs[name].load and order.uri:
            found[name] = report(order, runs[name], trainer)
            title = f"# What [[load]] of {runs[name].name} would load"
            reporter.text(f"{title}\n\n{found[name].text()}")
    for name, each in found.items():
        each.check(f"[[load]] of run {runs[name].name!r}")


def fast_dev_run(
    order: Order,
    runs: Mapping[str, Spec],
    places: Places,
    give_up: Callable[[PipefitError], None],
) -> None:
    """One step of everything, to see that it can be done: nothing is stored.

    Every model is trained one step, its state is copied as for a checkpoint and restored, and one
    batch of every validation set is validated.

    Args:
        order: what to do.
        runs: by the name of the model.
        places: where the models compute.
        give_up: see `pipefit.execution.worker.perform`.

    Raises:
        PipefitError: whatever was refused or failed.
    """
    load_training()
    from pipefit import training

    if any(spec.load for spec in runs.values()):
        logger.info("[[load]] is left out here; --dry-run shows what would be loaded")
    built = build(order, runs, list(runs), places, cores())
    limit = min(spec.train.step_timeout for spec in runs.values())
    with Watchdog(limit, give_up) as watchdog:
        trainers = [trainer for _, trainer in built.values()]
        rows = training.Together().run(trainers, 1)
        for (name, (experiment, trainer)), numbers in zip(built.items(), rows, strict=True):
            spec = runs[name]
            log = RunLog(logger, spec.name if len(runs) > 1 else "")
            _check_loss(spec, float(numbers["loss"][0]))
            _check_state(spec, trainer)
            log.info("one step: %s", _text(_told(numbers)))
            for validation in spec.validation:
                watchdog.alive()
                _validate(spec, experiment, validation, log)


def _told(numbers: Mapping[str, Any]) -> dict[str, float]:
    """What was recorded of the first step, of what is a number."""
    # How long it took says nothing: it was compiled.
    shown = {name: column for name, column in numbers.items() if name not in TIMING}
    return {k: v[0] for k, v in shown.items() if v.ndim == 1 and v.dtype.kind in "biuf"}


def _check_loss(spec: Spec, loss: float) -> None:
    if not math.isfinite(loss) or loss > (spec.train.max_loss or math.inf):
        raise Diverged(
            f"{spec.name}: the loss of the first step is {loss}; look at the data, the loss and "
            f"the initial weights, or raise train.max_loss"
        )


def _check_state(spec: Spec, trainer: Trainer) -> None:
    from pipefit.training import not_finite, to_numpy

    arrays = to_numpy(trainer.snapshot())
    trained = {f"model/{variable.path}" for variable in trainer.updates.trainable}
    if bad := not_finite({name: arrays[name] for name in trained}):
        raise Diverged(f"{spec.name}: after one step {', '.join(bad)} holds NaN or infinity")
    trainer.restore(arrays)


def _validate(spec: Spec, experiment: Experiment, validation: str, log: RunLog) -> None:
    found = experiment.validator(validation).first()
    log.info("%s, %d examples: %s", validation, found.examples, _text(found.metrics))
    rules = {"save.best": spec.save.best, "train.early_stop": spec.train.early_stop}
    for place, rule in rules.items():
        if rule and rule.validation == validation:
            known = [f"{validation}/{metric}" for metric in found.metrics]
            if rule.metric not in known:
                raise SpecError(
                    f"{place}.metric = {rule.metric!r}: no such metric is validated; "
                    f"there are {', '.join(known)}"
                )


def _text(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {float(value):.4g}" for name, value in numbers.items())
