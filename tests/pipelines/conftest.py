"""The `luigi` command as a user types it, on the shipped digits, in processes of its own."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipefit.records import TIMING

ROOT = Path(__file__).parent.parent.parent
LUIGI = Path(sys.executable).parent / "luigi"


class Job:
    """One experiment in the test's own database.

    It is typed in the folder `cwd`; `luigi` is the command, or what takes its place.
    """

    def __init__(
        self,
        store,
        environment,
        config="configs/digits_mlp.toml",
        *,
        cwd=ROOT,
        luigi=(LUIGI,),
        **changes,
    ):
        self.cwd, self.luigi = cwd, luigi
        self.store = store
        self.environment = environment
        self.config = config
        self.changes = {"name": "run", "collection": "jobs", **changes}
        self.started = []

    def words(self, task="TrainAndValidate", *extra, module=None, **changes):
        values = {**self.changes, **changes}
        words = " ".join(f"{key}={value}" for key, value in values.items())
        module = module or ("tasks.train" if task == "Train" else "pipelines")
        given = ["--config", self.config, "--set", words, *extra]
        return [*self.luigi, "--module", module, task, *given]

    def start(self, task="TrainAndValidate", *extra, **changes):
        process = subprocess.Popen(
            self.words(task, *extra, **changes),
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self):
        """Nothing that a test has started outlives it, however it failed."""
        for process in self.started:
            if process.poll() is None:
                tree = [*psutil.Process(process.pid).children(recursive=True), process]
                for member in tree:
                    with contextlib.suppress(psutil.Error):
                        member.kill()
                process.wait()
            process.stdout.close()

    def run(self, task="TrainAndValidate", *extra, code=0, **changes):
        """Run to the end; returns what was printed."""
        process = self.start(task, *extra, **changes)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        return output

    def refused(self, task="TrainAndValidate", *extra, code, **changes):
        """Run what is refused; returns the message: what is printed before Luigi's summary."""
        output = self.run(task, *extra, code=code, **changes)
        assert "Traceback" not in output, output
        told = itertools.dropwhile(lambda line: line.startswith("INFO: "), output.splitlines())
        message = list(itertools.takewhile(lambda line: not line.startswith("INFO: "), told))
        assert message and message[0].startswith("ERROR: "), output
        return "\n".join(message).removeprefix("ERROR: ")

    @property
    def left_behind(self):
        """What is in the home besides logs and lock files."""
        home = Path(self.environment["PIPEFIT_HOME"])
        files = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
        return [str(p) for p in files if p.parts[0] != "logs" and not p.name.endswith("lock")]

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
    """All that a run leaves behind is bit-equal, but for what is measured."""
    left, right = one.weights(), other.weights()
    assert left.keys() == right.keys()
    different = [name for name in left if not np.array_equal(left[name], right[name])]
    assert not different
    ours, theirs = (run.metrics().drop(columns=list(TIMING)) for run in (one, other))
    assert ours.index.tolist() == list(range(1, len(ours) + 1))
    assert ours.equals(theirs)
    measured = ["checkpoint", "seconds"]
    ours, theirs = (run.validations().drop(columns=measured) for run in (one, other))
    assert ours.equals(theirs)


@contextlib.contextmanager
def jobs(store, environment):
    """A function that makes jobs; they end with the context."""
    made = []

    def make(config="configs/digits_mlp.toml", **changes):
        made.append(Job(store, environment, config, **changes))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.end()


@pytest.fixture
def job(store, environment):
    """Makes jobs."""
    with jobs(store, environment) as make:
        yield make


@contextlib.contextmanager
def _new_database(mongo_uri):
    import pymongo

    from pipefit.store import server

    name = f"test-{uuid.uuid4().hex}"
    yield mongo_uri.replace(f"/{server.DATABASE}?", f"/{name}?")
    with pymongo.MongoClient(mongo_uri) as client:
        client.drop_database(name)


@pytest.fixture(scope="module")
def shared_job(mongo_uri, tmp_path_factory):
    """Makes jobs in a database and a home that the tests of a module share."""
    from pipefit.store import open_store

    with _new_database(mongo_uri) as uri:
        home = tmp_path_factory.mktemp("home")
        environment = {**os.environ, "PIPEFIT_MONGO_URI": uri, "PIPEFIT_HOME": str(home)}
        with jobs(open_store(uri), environment) as make:
            yield make
