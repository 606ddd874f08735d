"""Runs that cannot go on: what is told, which state they end in, and what stays."""

import os
import re
import signal
import subprocess
import time

import pytest

from pipefit.store import open_store, server
from tests.pipelines.conftest import ROOT, jobs

# Goes well for 30 steps.
DIVERGING = """
[optimizer.learning_rate]
builder = "keras.optimizers.schedules:PiecewiseConstantDecay"
boundaries = [30]
values = [0.05, 50.0]
"""

BRITTLE = """
import numpy as np
from pipefit.data import Arrays

class Brittle(Arrays):
    def take(self, indices):
        if 99 in indices:
            raise OSError("photo 99 cannot be read")
        return super().take(indices)

def brittle():
    return Brittle(images=np.zeros((100, 8, 8, 1), "float32"), labels=np.zeros(100, "int64"))
"""

STOPPER = """
import os
from pipefit.store import server
from tasks.base import ExperimentTask
from tasks.targets import CheckpointTarget

class Stopper(ExperimentTask):
    def output(self):
        return CheckpointTarget("jobs", "nobody", 1)

    def run(self):
        server.stop()
"""


@pytest.fixture
def digits(tmp_path):
    """A function that writes the experiment file with something replaced."""

    def write(old="", new=""):
        text = (ROOT / "configs/digits_mlp.toml").read_text()
        assert old in text
        path = tmp_path / "digits.toml"
        path.write_text(text.replace(old, new))
        return str(path)

    return write


def short_leases(folder):
    """Variables for a command whose runs are owned for six seconds at a time."""
    config = folder / "luigi.cfg"
    config.write_text("[execution]\nlease_seconds = 6\n")
    return {"LUIGI_CONFIG_PATH": str(config)}


def first_line(output):
    """The first line that is not about progress."""
    return next(line for line in output.splitlines() if not line.startswith("INFO: "))


def test_a_loss_that_diverges_fails_the_run_and_leaves_the_checkpoint_before_it(job, digits):
    config = digits("learning_rate = 0.05\n", DIVERGING)
    limits = {"train.steps": 100, "train.max_loss": 20, "save.recent_every": 10}
    diverging = job(config, **limits)
    output = diverging.run("Train", code=30)

    rule = "is above max_loss = 20"
    told = re.fullmatch(rf"ERROR: (step (\d+): loss = \S+ {rule}\b.*)", first_line(output))
    assert told and "Traceback" not in output, output
    step = int(told[2])
    assert 31 < step < 40
    status = diverging.reader.status()
    assert (status.state, status.reason, status.step) == ("FAILED", told[1], 30)
    assert diverging.reader.checkpoints()["step"].max() == 30
    assert diverging.reader.metrics().index.tolist() == list(range(1, step + 1))
    [attempt] = diverging.reader.attempts()
    assert attempt.state == "FAILED" and attempt.step >= 30


def test_what_a_data_source_raises_in_mid_run_is_told_with_its_traceback(job, digits, tmp_path):
    (tmp_path / "brittle.py").write_text(BRITTLE)
    config = digits(
        '[data.train]\nbuilder = "pipefit.data:digits"\narchive = "digits"\nsplit = "train"\n',
        '[data.train]\nbuilder = "brittle:brittle"\n',
    )
    broken = job(config, **{"data.train.batch_size": 10, "save.recent_every": 1})
    output = broken.run("Train", code=30)

    assert first_line(output).startswith("ERROR: Brittle: take() of 10 examples")
    assert "OSError: photo 99 cannot be read" in first_line(output)
    assert "brittle.py" in output
    status = broken.reader.status()
    assert status.state == "FAILED" and "photo 99" in status.reason


def test_a_second_command_for_a_run_says_who_owns_it(job, tmp_path):
    first = job(**{"train.steps": 1_000_000, "save.validate_every": 0})
    first.environment = {**first.environment, **short_leases(tmp_path)}
    process = first.start("Train")
    first.wait_for_step(100, process)
    output = first.run("Train", code=30)

    owner = first.reader.attempts()[0].owner
    assert first_line(output).startswith(f"WARNING: jobs/run: owned by {owner} until ")
    assert f"ERROR: run 'run' of 'jobs' is owned by {owner}, which is alive" in output
    assert "Traceback" not in output
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert len(first.reader.attempts()) == 1
    assert set(first.reader.checkpoints()["fence"]) == {1}


@pytest.fixture
def own_server(pipefit_home):
    """The URI of a server that this test may stop; clients notice within a second."""
    return server.ensure_running() + "&serverSelectionTimeoutMS=1000"


def test_a_database_that_is_away_for_a_while_is_waited_for_and_one_that_stays_away_ends_the_run(
    own_server, tmp_path
):
    environment = {**os.environ, "PIPEFIT_MONGO_URI": own_server, **short_leases(tmp_path)}
    with jobs(open_store(own_server), environment) as make:
        job = make(**{"train.steps": 10_000_000, "save.validate_every": 0})
        process = job.start("Train")
        job.wait_for_step(100, process)
        server.stop()
        time.sleep(2)
        server.ensure_running()
        job.wait_for_step(job.reader.status().step + 200, process)

        server.stop()
        begin = time.monotonic()
        output, _ = process.communicate(timeout=60)
        assert time.monotonic() - begin < 30
        assert process.returncode == 30, output

    told = [line for line in output.splitlines() if not line.startswith("INFO: ")]
    away = r"127\.0\.0\.1:\d+/pipefit cannot be reached"
    assert re.match(rf"WARNING: jobs/run step \d+: .*{away}", told[0]), output
    assert any("trying again" in line for line in told)
    assert any(re.match(rf"ERROR: mongodb://{away}", line) for line in told)
    assert "Traceback" not in output
    server.ensure_running()
    frame = job.reader.metrics()
    assert len(frame) > 300 and frame.index.tolist() == list(range(1, len(frame) + 1))


@pytest.mark.parametrize("embedded", [True, False])
def test_a_database_that_goes_away_is_started_if_it_is_ours_else_an_error_and_never_not_complete(
    request, pipefit_home, tmp_path, embedded
):
    (tmp_path / "stopper.py").write_text(STOPPER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if not embedded:
        environment["PIPEFIT_MONGO_URI"] = request.getfixturevalue("own_server")
    with jobs(None, environment) as make:
        output = make().run("Stopper", module="stopper", code=30)
    if embedded:  # it was not running before the command either
        assert server.status().running
        assert "complete() is still returning false" in output
    else:
        assert first_line(output).startswith("ERROR: mongodb://127.0.0.1:")
        assert "cannot be reached" in first_line(output) and "Traceback" not in output


def test_a_full_disk_is_named(job, tmp_path):
    full = job()
    home = tmp_path / "small"
    home.mkdir()
    full.environment = {**full.environment, "PIPEFIT_HOME": str(home)}
    mount = f'mount -t tmpfs -o size=64k tmpfs "{home}" && exec "$0" "$@"'
    limited = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
    if subprocess.run([*limited, "true"], check=False, capture_output=True).returncode:
        limited = ["prlimit", "--fsize=20000"]  # where nobody may mount
    full.luigi = [*limited, *full.luigi]
    message = full.refused(code=30)

    assert re.search("no space|No space left|File too large", message.splitlines()[0]), message
    assert full.store.collections() == []
