"""What is wrong is told first and in one line, before anything is written or paid for."""

import hashlib
import os
import re
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

DIGITS = "configs/archives/optdigits.tar.gz"

# A mongod on PATH is hidden by an empty PATH, the one of the wheel by this.
WITHOUT_MONGOD = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: name != "fiftyone" and find_spec(name, *rest)
from luigi.cmdline import luigi_run
luigi_run(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"train.stepps": 10}, 40, r"train.stepps = 10: unknown key.*'steps'"),
        ({"train.steps": "many"}, 40, r'train.steps = "many": must be a whole number'),
        ({"model.builder": "nowhere.to:be_found"}, 35, r"there is no module 'nowhere'"),
        ({"model.builder": "pipefit.training.models:mpl"}, 35, r"model.builder = .*'mlp'"),
        ({"model.unit": 3}, 35, r"model.unit = 3: "),
        ({"model": ""}, 40, r"--set word 'model=': has no value"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_experiment_file_is_checked_first(job, changes, code, told):
    refused = job(**changes)
    message = refused.refused(code=code)
    assert re.search(told, message.splitlines()[0]), message
    assert refused.store.collections() == []
    assert refused.left_behind == []


def test_an_unknown_validation_set(job):
    message = job().refused("Validate", "--validation", "tset", module="tasks.validate", code=40)
    assert message.endswith("validation = 'tset': there is no such set; there are: test")


def test_an_archive_with_another_hash(job):
    other = job(**{"archives.digits.sha256": "0" * 64})
    message = other.refused(code=30)
    assert "0" * 64 in message.splitlines()[0]
    assert other.store.collections() == [] and other.left_behind == []


def test_a_truncated_tar(job, tmp_path):
    path = tmp_path / "short.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(DIGITS, arcname="digits")
    path.write_bytes(path.read_bytes()[:30_000])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    short = job(**{"archives.digits.url": path, "archives.digits.sha256": sha256})
    message = short.refused(code=30)
    assert "short.tar" in message or sha256 in message
    assert short.store.collections() == []
    assert not any("unpacked" in name for name in short.left_behind), short.left_behind


@pytest.mark.parametrize("denied", [False, True], ids=["unreachable", "wrong-password"])
def test_a_database_that_is_not_there_or_refuses_the_password(job, database_uri, denied):
    user, password, rest = re.fullmatch(r"mongodb://(.*):(.*)@(.*)", database_uri).groups()
    if not denied:
        rest = re.sub(r"^[^/]*", "127.0.0.1:1", rest) + "&serverSelectionTimeoutMS=2000"
    away = job()
    secret = "s3cret-" + password[:5]
    away.environment = {
        **away.environment,
        "PIPEFIT_MONGO_URI": f"mongodb://{user}:{secret}@{rest}",
    }
    process = away.start()
    lines = []
    while process.poll() is None:
        with_children = [process.pid, *(p.pid for p in psutil.Process(process.pid).children())]
        lines += [word for pid in with_children for word in command_line(pid)]
        time.sleep(0.05)
    output = process.stdout.read()

    assert process.returncode == 35, output
    first = next(line for line in output.splitlines() if not line.startswith("INFO: "))
    assert first.startswith("ERROR: mongodb://127.0.0.1:") and "Traceback" not in output
    assert ("refuses" if denied else "cannot be reached") in first
    assert secret not in output and lines and not [line for line in lines if secret in line]
    assert away.left_behind == []
    logs = Path(away.environment["PIPEFIT_HOME"]).rglob("*.log")
    assert not [log for log in logs if secret in log.read_text()]


def command_line(pid):
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def test_no_mongod_for_this_machine(job, tmp_path):
    without = job(luigi=[sys.executable, "-c", WITHOUT_MONGOD])
    without.environment = {
        **without.environment,
        "PATH": str(tmp_path),
        "PIPEFIT_MONGO_URI": "",
        "PIPEFIT_HOME": str(tmp_path / "home"),
    }
    message = without.refused(code=35)
    assert message.startswith("no mongod found for ") and "PIPEFIT_MONGO_URI" in message
    assert without.left_behind == []


def test_a_mongod_that_does_not_start(job, tmp_path):
    program = tmp_path / "mongod"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo db version v6.0.5 || exit 14\n')
    program.chmod(0o755)
    failing = job()
    failing.environment = {
        **failing.environment,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PIPEFIT_MONGO_URI": "",
    }
    message = failing.refused(code=35)
    assert message.startswith("mongod exited with code 14 at start: ")
