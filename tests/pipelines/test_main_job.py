"""The main job in a user's own folder: what is seen of it, what it leaves, what a rerun costs."""

import re
import sys
from pathlib import Path

import pytest

CONFIG = """
name = "mine"
collection = "jobs"

[data.train]
builder = "mydata:points"
n = 300
batch_size = 50

[model]
builder = "mymodel:net"
outputs = 2

[optimizer]
builder = "keras.optimizers:SGD"
learning_rate = 0.1

[train]
data = "train"
steps = 60

[validation.test]
data = { builder = "mydata:points", n = 70, seed = 1, batch_size = 50 }

[save]
validate_every = 20
recent_every = 20
"""

DATA = """
import numpy as np
from pipefit.data import Arrays

def points(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype("float32")
    return Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))
"""

MODEL = """
import os, sys
import keras

def net(outputs):
    print("building", "my net")
    print('{"event": "outcome", "error": null}')
    print("waiting\\rdone")
    print("without an end", end="")
    os.write(1, b"native words\\n")
    os.write(2, b"native complaints\\n")
    sys.stderr.write("complaints\\n")
    x = keras.Input((4,), name="x")
    return keras.Model(x, keras.layers.Dense(outputs, name="out")(x))
"""

TASKS = """
import luigi
from tasks.base import ExperimentTask
from tasks.targets import CheckpointTarget

class Idle(ExperimentTask):
    def output(self):
        return CheckpointTarget("jobs", "nobody", 1)

    def run(self):
        pass
"""

# Tells what Luigi's process has imported and started, when it is about to end.
WATCHED = """
import atexit, sys
started = []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
        started.append(event)
sys.addaudithook(hook)
heavy = {"tensorflow", "keras", "pandas", "matplotlib"}
atexit.register(lambda: print("loaded", *heavy & set(sys.modules), "started", *started))
from luigi.cmdline import luigi_run
luigi_run(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def mine(shared_job, tmp_path_factory):
    """A job whose file and modules are in a folder of their own, typed in the folder above."""
    folder = tmp_path_factory.mktemp("user")
    own = folder / "experiments"
    own.mkdir()
    for name, text in (("my.toml", CONFIG), ("mydata.py", DATA), ("mymodel.py", MODEL)):
        (own / name).write_text(text)
    (folder / "mytasks.py").write_text(TASKS)
    return shared_job("experiments/my.toml", cwd=folder, name="mine", collection="jobs")


@pytest.fixture(scope="module")
def printed(mine):
    """What the whole job prints where there is no terminal."""
    return mine.run()


def worker_log(job):
    return (Path(job.environment["PIPEFIT_HOME"]) / "logs/jobs/mine/worker.log").read_text()


def test_the_whole_job_runs_in_any_folder(mine, printed):
    assert mine.reader.status().state == "FINISHED"
    assert mine.reader.validations()["step"].tolist() == [20, 40, 60]
    assert mine.reader.metrics().index.tolist() == list(range(1, 61))
    program = mine.reader.document()["program"]
    assert program["command"].endswith("--set 'name=mine collection=jobs'")


def test_without_a_terminal_there_are_plain_lines_with_level_run_and_step(printed):
    assert "\r" not in printed and "it/s" not in printed and "step/s" not in printed
    progress = (
        r"^INFO: jobs/mine step 60/60 \(100 %\), loss [\d.e-]+, [\d,]+ examples/s, 0:00 left$"
    )
    assert re.search(progress, printed, re.MULTILINE), printed
    for step in (20, 40, 60):
        line = rf"^INFO: jobs/mine step {step}: test: loss [\d.]+, accuracy [\d.]+$"
        assert re.search(line, printed, re.MULTILINE), printed
    assert re.search(r"^INFO: jobs/mine test at step 60: loss ", printed, re.MULTILINE)


def test_the_table_and_the_report_come_last(mine, printed):
    assert "Traceback" not in printed
    *_, name, head, _, first, second, third, last = printed.splitlines()
    assert name == "jobs/mine, 60 steps" and head.split() == [
        "step",
        "set",
        "loss",
        "accuracy",
        "examples",
    ]
    assert [line.split()[0] for line in (first, second, third)] == ["20", "40", "60"]
    report = Path(last.removeprefix("Report: "))
    assert report.read_bytes() == mine.reader.artifact("report.html")


def test_what_user_code_prints_is_logged_and_harms_nothing(mine, printed):
    for line in (
        "jobs/mine: building my net",
        'jobs/mine: {"event": "outcome", "error": null}',
        "jobs/mine: done",
        "jobs/mine step 60: without an end",
    ):
        assert f"INFO: {line}\n" in printed
    for text in ("native words", "native complaints", "complaints"):
        assert text not in printed and text in worker_log(mine)


def test_a_rerun_imports_nothing_heavy_and_starts_nothing(mine, printed):
    log = worker_log(mine)
    command, mine.luigi = mine.luigi, [sys.executable, "-c", WATCHED]
    try:
        output = mine.run()
    finally:
        mine.luigi = command
    *table, last = output.splitlines()
    assert last.split() == ["loaded", "started"], output
    assert table[-5:] == printed.splitlines()[-5:]
    assert "1 complete ones were encountered" in output
    assert worker_log(mine) == log and len(mine.reader.attempts()) == 1


def test_a_missing_report_is_made_again_without_a_worker(mine, printed):
    report = Path(printed.splitlines()[-1].removeprefix("Report: "))
    log = worker_log(mine)
    report.unlink()
    mine.run()
    assert report.exists() and worker_log(mine) == log


def test_another_experiment_of_the_same_name_is_refused_or_accepted_on_purpose(mine, printed):
    changes = {"optimizer.learning_rate": 0.2, "train.steps": 80}
    first, *rest = mine.refused(code=35, **changes).splitlines()
    assert first.startswith("run 'mine' of collection 'jobs' was made by another experiment")
    assert "--allow-change" in first
    assert rest == ["optimizer.learning_rate: 0.1 -> 0.2"]
    assert mine.reader.document()["history"] == []

    mine.run("Train", "--allow-change", "optimizer.learning_rate", **changes)
    [entry] = mine.reader.document()["history"]
    assert entry["changes"] == [{"key": "optimizer.learning_rate", "old": "0.1", "new": "0.2"}]
    assert mine.reader.metrics()["learning_rate"].loc[[60, 61]].round(6).tolist() == [0.1, 0.2]


def test_fewer_steps_than_are_trained_are_refused_and_change_nothing(mine, printed):
    before, log = mine.reader.document(), worker_log(mine)
    changes = {"optimizer.learning_rate": before["parts"]["optimizer.learning_rate"]}
    message = mine.refused(code=35, **{**changes, "train.steps": 50})
    assert re.match(r"train.steps = 50: run 'mine' .* at step \d+, .* set train.steps to", message)
    assert mine.reader.document() == before and worker_log(mine) == log


def test_what_a_builder_raises_is_told_with_its_traceback_and_the_code_of_a_failure(mine):
    output = mine.run(code=30, **{"name": "other", "model.outputs": 0})
    told = [line for line in output.splitlines() if not line.startswith("INFO: ")]
    assert told[0].startswith("ERROR: model: mymodel:net failed with ValueError: ")
    assert told[2] == "Traceback (most recent call last):" and "mymodel.py" in told[3]
    assert "building.py" not in output  # only the frames of the user's own code are of interest
    assert "other" not in mine.store.statuses("jobs", ["other"])


def test_a_task_that_returns_without_its_target_has_failed(mine):
    environment, mine.environment = mine.environment, {**mine.environment, "PYTHONPATH": "."}
    try:
        output = mine.run("Idle", module="mytasks", code=30)
    finally:
        mine.environment = environment
    assert "Task finished running, but complete() is still returning false" in output
