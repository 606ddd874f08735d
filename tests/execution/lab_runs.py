"""Experiments of `tests.execution.lab`, carried out here or by workers that can be killed.

Import it while tests are collected: it decides how many devices TensorFlow has in this process.
"""

import contextlib
import gc
import json
import multiprocessing
import os
from pathlib import Path
from unittest import mock

import tensorflow as tf

from pipefit.execution import InlineExecutor, Order
from pipefit.execution.worker import __main__ as worker_main
from pipefit.records import TIMING
from pipefit.spec import Spec
from pipefit.training import Course

# Raises if other tests have started TensorFlow; then they have asked for the same.
with contextlib.suppress(RuntimeError):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )

# Every experiment collects garbage, which takes a second with all that a process of pytest holds.
gc.collect()
gc.freeze()

ROOT = str(Path(__file__).parent.parent.parent)
LAB = "tests.execution.lab"

#: Forked from a process that has imported TensorFlow, a worker starts at once.
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["tests.execution.lab_runs", "pipefit.training"])


def builder(name, /, **arguments):
    return {"builder": f"{LAB}:{name}", **arguments}


def sgd(rate, **arguments):
    return {"builder": "keras.optimizers:SGD", "learning_rate": rate, **arguments}


def experiment(**tables):
    """An experiment of the model "grow", whose weight grows by 1 in each of 12 steps."""
    return Spec.of_tables(
        {
            "name": "run",
            "collection": "lab",
            "data": {"train": builder("points", batch_size=8)},
            "model": builder("grow"),
            "loss": builder("growing"),
            "optimizer": sgd(1.0),
            "save": {},
            **tables,
            "train": {
                "data": "train",
                "steps": 12,
                "metrics": {"w": builder("weight")},
                **tables.get("train", {}),
            },
        }
    )


def changed(spec, **tables):
    """The experiment with whole tables, or keys of [train], replaced."""
    return Spec.of_tables(
        {**spec.table(), **tables, "train": {**spec.train.table(), **tables.get("train", {})}}
    )


def order(spec, uri, kind="train", **details):
    return Order(kind=kind, spec=spec.to_json(), uri=uri, import_paths=(ROOT,), **details)


def carry_out(spec, uri, *, stop_at=None):
    """Train in this process; what was logged. It is asked to stop once all runs are at a step."""
    # Else the first experiment would start TensorFlow with as many devices as it needs.
    assert len(tf.config.list_logical_devices("CPU")) == 4
    lines, steps = [], {}

    def see(event):
        if event.kind == "log":
            lines.append(event.values["message"])

    def noted(course, *args):
        taken(course, *args)
        steps[course.name] = course.trainer.step

    def why():
        return "enough" if len(steps) and min(steps.values()) >= (stop_at or 0) else None

    taken = Course.take
    with mock.patch.object(Course, "take", noted):
        InlineExecutor().run(order(spec, uri), see, (lambda: None) if stop_at is None else why)
    return lines


class Worker:
    """A worker process.

    Args:
        spec: what it trains.
        uri: of the database.
        environment: further variables.
        prepare: is called in it first.
        **details: of its order, if that is another than to train.
    """

    def __init__(self, spec, uri, environment=None, prepare=None, **details):
        ours, theirs = _forking.Pipe()
        self.process = _forking.Process(
            target=_work, args=(theirs, dict(os.environ, **(environment or {})), prepare)
        )
        self.process.start()
        theirs.close()
        self._input = os.fdopen(os.dup(ours.fileno()), "w")
        self._output = os.fdopen(os.dup(ours.fileno()))
        ours.close()
        print(order(spec, uri, **details).to_json(), file=self._input, flush=True)

    def end(self, seconds=60):
        """Its exit code, and its outcome if it has told one."""
        events = [json.loads(line) for line in self._output]
        self.process.join(seconds)
        code = self.process.exitcode
        self._input.close()
        self._output.close()
        outcomes = [event for event in events if event["event"] == "outcome"]
        return code, outcomes[-1] if outcomes else None


def _work(pipe, environment, prepare):
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(pipe.fileno(), 0)
    os.dup2(pipe.fileno(), 1)
    pipe.close()
    if prepare is not None:
        prepare()
    worker_main.main()


def results(run):
    """All that a run leaves behind, but for what is measured."""
    metrics = run.metrics()
    metrics = metrics.drop(columns=[name for name in TIMING if name in metrics])
    assert metrics.index.tolist() == list(range(1, len(metrics) + 1))
    validations = run.validations()
    left = {name: value.tobytes() for name, value in run.weights().items() if name != "run/seconds"}
    return {
        "weights": left,
        "metrics": {name: column.to_numpy().tobytes() for name, column in metrics.items()},
        "validations": validations.drop(columns=["seconds", "checkpoint"]).to_csv(),
        "checkpoints": run.checkpoints()[["step", "kinds"]].to_dict("list"),
    }


def assert_same(one, other):
    """Bit for bit."""
    left, right = results(one), results(other)
    for what in left:
        assert left[what] == right[what], what
