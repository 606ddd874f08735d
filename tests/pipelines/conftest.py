"""The `luigi` command as a user types it, on the shipped digits, in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
LUIGI = Path(sys.executable).parent / "luigi"


class Job:
    """One experiment in the test's own database."""

    def __init__(self, store, environment, config="configs/digits_mlp.toml", **changes):
        self.store = store
        self.environment = environment
        self.config = config
        self.changes = {"name": "run", "collection": "jobs", **changes}

    def words(self, task="TrainAndValidate", *extra, **changes):
        values = {**self.changes, **changes}
        words = " ".join(f"{key}={value}" for key, value in values.items())
        module = "tasks.train" if task == "Train" else "pipelines"
        return [LUIGI, "--module", module, task, "--config", self.config, "--set", words, *extra]

    def start(self, task="TrainAndValidate", *extra, **changes):
        return subprocess.Popen(
            self.words(task, *extra, **changes),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, task="TrainAndValidate", *extra, code=0, **changes):
        """Run to the end; returns what was printed."""
        process = self.start(task, *extra, **changes)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        return output

    @property
    def reader(self):
        return self.store.run(self.changes["name"], self.changes["collection"])

    def wait_for_step(self, step, process):
        """Until a checkpoint of at least this step is committed."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            status = self.store.statuses(self.changes["collection"], [self.changes["name"]]).get(
                self.changes["name"]
            )
            if status is not None and (status.step or 0) >= step:
                return status.step
            if process.poll() is not None:
                raise AssertionError(f"ended before step {step}:\n{process.stdout.read()}")
            time.sleep(0.02)
        raise AssertionError(f"no checkpoint of step {step} in time")


def worker_of(process):
    """The training process of a luigi command."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children(recursive=True):
            if "pipefit.execution.worker" in " ".join(child.cmdline()):
                return child
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def kill(*processes):
    """kill -9, and wait until they are gone."""
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait(timeout=30)


def same_results(one, other):
    """All that a run leaves behind is bit-equal: state, metrics, validations."""
    left, right = one.weights(), other.weights()
    assert left.keys() == right.keys()
    different = [name for name in left if not np.array_equal(left[name], right[name])]
    assert not different
    ours, theirs = one.metrics(), other.metrics()
    assert ours.index.tolist() == list(range(1, len(ours) + 1))
    assert ours.equals(theirs)
    columns = ["step", "set", "examples", "loss", "accuracy"]
    assert one.validations()[columns].equals(other.validations()[columns])


@pytest.fixture
def job(store, environment):
    """Makes jobs."""

    def make(config="configs/digits_mlp.toml", **changes):
        return Job(store, environment, config, **changes)

    return make
