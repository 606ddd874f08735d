"""The password of the database is nowhere but where it was given.

A job runs as a user of its own, with a password that is found in no other way, while everything is
collected that somebody else could see or keep; then the user is dropped in the middle of a run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import psutil
import pymongo
import pytest

from tests.pipelines.conftest import worker_of
from tests.pipelines.test_scheduler import STEPS, Scheduler

PASSWORD = "xyzzy/p@ss:w%rd?" + os.urandom(4).hex()
FORMS = (PASSWORD, quote(PASSWORD, safe=""), PASSWORD.partition("/")[0] + "%2F")
PIPEFIT = [sys.executable, "-c", "from pipefit.cli import main; main(prog_name='pipefit')"]


def assert_no_secret(**texts):
    found = [where for where, text in texts.items() for form in FORMS if form in text]
    assert found == []


@pytest.fixture
def user(database_uri):
    """A user of the database, and the URI with which they come."""
    with pymongo.MongoClient(database_uri) as client:
        database = client.get_default_database()
        roles = [{"role": "readWrite", "db": database.name}]
        database.command("createUser", "zork", pwd=PASSWORD, roles=roles)
        host = database_uri.rpartition("@")[2].partition("/")[0]
        yield database, f"mongodb://zork:{quote(PASSWORD, safe='')}@{host}/{database.name}"
        database.command({"dropAllUsersFromDatabase": 1})


def documents(database):
    """All that is stored, as text; bytes as they are."""
    parts = []
    for name in database.list_collection_names():
        for document in database[name].find():
            parts.append(repr(document))
            parts.append(bytes(document.get("data", b"")).decode("latin-1"))
    return "\n".join(parts)


def files(folder):
    texts = [p.read_bytes().decode("latin-1") for p in Path(folder).rglob("*") if p.is_file()]
    return "\n".join(texts)


def processes():
    """What `ps` shows to everybody."""
    shown = []
    for process in psutil.process_iter(["cmdline"]):
        shown += process.info["cmdline"] or []
    return "\n".join(shown)


def pages(scheduler):
    """What the scheduler's page asks for."""
    found = [scheduler.ask("worker_list"), scheduler.ask("resource_list")]
    for status in ("PENDING", "RUNNING", "DONE", "FAILED"):
        tasks = scheduler.ask("task_list", status=status, upstream_status="")
        found.append(tasks)
        for task in tasks:
            found += [scheduler.ask("fetch_error", task_id=task)]
            found += [scheduler.ask("dep_graph", task_id=task)]
    return json.dumps(found)


def test_it_is_nowhere_while_a_run_lives_and_when_it_fails(
    user, job, environment, tmp_path, monkeypatch
):
    database, uri = user
    environment["PIPEFIT_MONGO_URI"] = uri
    scheduler = Scheduler(tmp_path)
    try:
        scheduler.wait_until_ready()
        made = job(name="night", **STEPS)
        made.environment = environment
        words = ("--scheduler-host", "127.0.0.1", "--scheduler-port", str(scheduler.port))
        process = made.start("TrainAndValidate", *words)
        made.wait_for_step(100, process)
        shown = processes()
        assert str(worker_of(process).cmdline()[-1]) in shown and "night" in shown
        live = pages(scheduler)
        assert "night" in live
        database.command({"dropAllUsersFromDatabase": 1})
        output, _ = process.communicate(timeout=120)
        failed = pages(scheduler)
    finally:
        scheduler.process.terminate()
        scheduler.process.wait(30)

    assert process.returncode == 30 and "refuses access" in output, output
    assert "refuses access" in failed
    stored = documents(database)
    assert "night" in stored and "TrainAndValidate" in stored
    home = files(environment["PIPEFIT_HOME"])
    kept = files(tmp_path)
    assert_no_secret(
        processes=shown, page=live, later=failed, output=output, stored=stored, home=home, log=kept
    )


@pytest.mark.parametrize("how", ["works", "wrong", "away", "not trusted"])
def test_no_command_shows_it(user, make_run, environment, tmp_path, how):
    make_run("mlp", "digits")
    _, uri = user
    if how == "wrong":
        uri = uri.replace("zork:", "grue:")
    if how == "away":
        uri = uri.partition("@")[0] + "@127.0.0.1:1/x?serverSelectionTimeoutMS=50"
    if how == "not trusted":
        uri += "?tls=true&serverSelectionTimeoutMS=50"
    environment["PIPEFIT_MONGO_URI"] = uri
    environment["SECRET"] = uri
    file = str(tmp_path / "a.tar")
    commands = [
        ["runs"],
        ["show", "mlp"],
        ["show", "mlp", "--lines"],
        ["export", "mlp", file],
        ["gc", "--yes"],
        ["rewind", "mlp", "--step", "7"],
        ["import", file],
        ["import", file, "--uri", "${SECRET}"],
        ["db", "status"],
    ]
    texts = {}
    for command in commands:
        done = subprocess.run(
            [*PIPEFIT, *command], env=environment, capture_output=True, text=True, check=False
        )
        name = " ".join(command)
        texts[name] = done.stdout + done.stderr
        refused = how != "works" and command[0] not in ("import", "db")
        assert done.returncode == int(
            refused or command[0] == "rewind" or (command[0] == "import" and how != "works")
        ), texts[name]
        assert "Traceback" not in texts[name]
    if how == "works":
        texts["archive"] = Path(file).read_bytes().decode("latin-1")
    assert_no_secret(**texts)


def test_the_command_of_a_program_is_kept_without_it(monkeypatch):
    from pipefit.execution import Order, command_line

    uri = f"mongodb://me:{quote(PASSWORD, safe='')}@host/x"
    monkeypatch.setattr(sys, "argv", ["train.py", "--db", uri, f"--uri={uri}?w=1"])
    told = command_line()
    assert told == "train.py --db mongodb://me:***@host/x '--uri=mongodb://me:***@host/x?w=1'"
    assert_no_secret(order=repr(Order("train", "{}", uri)))
