"""The main job where no MongoDB is: results in a folder that luigi.cfg names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipefit.store import open_store
from tests.pipelines.conftest import jobs
from tests.pipelines.test_main_job import CONFIG, DATA, MODEL

STEPS = 200
PIPEFIT = Path(sys.executable).parent / "pipefit"

# Tells at its end what of MongoDB the process has loaded.
WATCHED = """
import atexit, sys
atexit.register(lambda: print("loaded", *{"pymongo", "bson", "gridfs"} & set(sys.modules)))
from luigi.cmdline import luigi_run
luigi_run(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job that has run through beside a luigi.cfg, and what it printed."""
    folder = tmp_path_factory.mktemp("user")
    for name, text in (("my.toml", CONFIG), ("mydata.py", DATA), ("mymodel.py", MODEL)):
        (folder / name).write_text(text)
    (folder / "luigi.cfg").write_text("[mongo]\nuri = file:my results\n")
    environment = {**os.environ, "PIPEFIT_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"}
    environment.pop("PIPEFIT_MONGO_URI", None)
    with jobs(open_store((folder / "my results").as_uri()), environment) as make:
        job = make(
            "my.toml",
            name="whole",
            cwd=folder,
            luigi=(sys.executable, "-c", WATCHED),
            **{"train.steps": STEPS, "save.checkpoint_every": 50},
        )
        yield job, job.run()


def test_the_whole_job_needs_no_mongodb(whole):
    job, output = whole
    assert job.reader.status().state == "FINISHED"
    assert job.reader.metrics().index.tolist() == list(range(1, STEPS + 1))
    assert job.reader.validations()["step"].iloc[-1] == STEPS
    assert job.store.summary("jobs", "whole", STEPS) is not None
    last, loaded = output.splitlines()[-2:]
    report = Path(last.removeprefix("Report: "))
    assert report.read_bytes() == job.reader.artifact("report.html")
    assert loaded == "loaded"
    assert not Path(job.environment["PIPEFIT_HOME"], "mongod").exists()


def test_a_finished_job_is_recognised(whole):
    job, output = whole
    again = job.run()
    assert "1 complete ones were encountered" in again
    assert again.splitlines()[-4:] == output.splitlines()[-4:]
    assert len(job.reader.attempts()) == 1


def test_the_command_line_shows_runs_of_a_folder(whole):
    job, _ = whole

    def pipefit(*words):
        done = subprocess.run(
            [PIPEFIT, *words],
            cwd=job.cwd,
            env=job.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert re.search(r"^jobs +whole +FINISHED +200/200 ", pipefit("runs"), re.MULTILINE)
    shown = pipefit("show", "whole")
    assert "200/200 steps committed" in shown and "final, permanent" in shown
    assert pipefit("db", "uri").strip() == "file:my results"
    assert "Pipefit uses another database" in pipefit("db", "status")
