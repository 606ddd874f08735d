"""The password of the database is nowhere but where it was given.

A job runs as a user of its own, with a password that is found in no other way, while everything is
collected that somebody else could see or keep; then the user is dropped in the middle of a run.
"""

import base64
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import psutil
import pymongo
import pytest

from tests.pipelines.conftest import ROOT, worker_of
from tests.pipelines.test_scheduler import STEPS, Scheduler

PASSWORD = "xyzzy/p@ss:w%rd?" + os.urandom(4).hex()
FORMS = (PASSWORD, quote(PASSWORD, safe=""), PASSWORD.partition("/")[0] + "%2F")
PIPEFIT = [sys.executable, "-c", "from pipefit.cli import main; main(prog_name='pipefit')"]

# One process for many commands; what they print is all that it prints.
COMMANDS = """
import json, sys
from pipefit.cli import main
for words in json.loads(sys.argv[1]):
    print("$ pipefit", *words)
    try:
        main(words, prog_name="pipefit")
    except SystemExit as end:
        print("it ended with", end.code)
"""


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


TALKATIVE = """
import os, sys
def net(units, outputs):
    from pipefit.training.models import mlp
    print("my database:", os.environ["PIPEFIT_MONGO_URI"])
    print("my complaint:", os.environ["PIPEFIT_MONGO_URI"], file=sys.stderr)
    return mlp(units=units, outputs=outputs)
"""


class Guarded(http.server.BaseHTTPRequestHandler):
    """Gives the data to whoever knows the password."""

    def do_GET(self):
        known = base64.b64encode(f"zork:{PASSWORD}".encode()).decode()
        allowed = self.headers.get("Authorization") == f"Basic {known}"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        if allowed:
            self.wfile.write((ROOT / "configs/archives/optdigits.tar.gz").read_bytes())

    def log_message(self, *words):
        pass


@pytest.fixture
def talkative(tmp_path):
    """An experiment with a password in the address of its data, and code that prints another."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        url = f"http://zork:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/optdigits.tar.gz"
        text = (ROOT / "configs/digits_mlp.toml").read_text()
        text = text.replace("configs/archives/optdigits.tar.gz", url)
        text = text.replace("pipefit.training.models:mlp", "talkative:net")
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "talkative.py").write_text(TALKATIVE)
        (folder / "mine.toml").write_text(text)
        yield str(folder / "mine.toml")
        server.shutdown()
        shutil.rmtree(folder)


def test_it_is_nowhere_while_a_run_lives_and_when_it_fails(
    user, job, environment, tmp_path, talkative
):
    database, uri = user
    environment["PIPEFIT_MONGO_URI"] = uri
    scheduler = Scheduler(tmp_path)
    try:
        scheduler.wait_until_ready()
        made = job(talkative, name="night", **STEPS)
        made.environment = environment
        process = made.start("TrainAndValidate", *scheduler.words)
        made.wait_for_step(100, process)
        worker = worker_of(process)
        worker.suspend()  # alive all the same, and in nobody's way
        shown = processes()
        assert str(worker.cmdline()[-1]) in shown and "night" in shown
        live = pages(scheduler)
        assert "night" in live
        told = [
            subprocess.run(
                [*PIPEFIT, "show", "night", *words],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for words in ([], ["--toml"])
        ]
        assert "# archives.digits.url had a password, which is not kept" in told[1]
        database.command({"dropAllUsersFromDatabase": 1})
        worker.resume()
        output, _ = process.communicate(timeout=120)
        failed = pages(scheduler)
    finally:
        scheduler.process.terminate()
        scheduler.process.wait(30)

    assert process.returncode == 30 and "refuses access" in output, output
    assert "refuses access" in failed
    stored = documents(database)
    assert "night" in stored and "TrainAndValidate" in stored
    assert "http://zork:***@" in stored and "my database: mongodb://zork:***@" in output
    Path(talkative).unlink()  # the one place where it is
    home = files(environment["PIPEFIT_HOME"])
    kept = files(tmp_path)
    assert "my complaint: mongodb://zork:***@" in home
    assert_no_secret(
        processes=shown, page=live, later=failed, output=output, stored=stored, home=home, log=kept
    )
    assert_no_secret(show=told[0], toml=told[1])


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
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    texts = {"all": done.stdout + done.stderr}
    assert done.returncode == 0 and "Traceback" not in texts["all"], texts["all"]
    codes = [int(code) for code in re.findall(r"^it ended with (\d)$", done.stdout, re.M)]
    for command, code in zip(commands, codes, strict=True):
        refused = how != "works" and command[0] not in ("import", "db")
        refused |= command[0] == "rewind" or (command[0] == "import" and how != "works")
        assert code == int(refused), (command, texts["all"])
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
