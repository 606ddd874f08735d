import hashlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymongo
import pytest
from click.testing import CliRunner

from pipefit.cli import main
from pipefit.records import Ended, RunOrder, RunState
from pipefit.spec import Spec, read_spec
from pipefit.store import open_store, this_process

ROOT = Path(__file__).parent.parent
PIPEFIT = [sys.executable, "-c", "from pipefit.cli import main; main(prog_name='pipefit')"]


@pytest.fixture
def pipefit(environment):
    """A function that calls the command on the database of `store`."""

    def call(*arguments: str, fails: bool = False):
        result = CliRunner().invoke(main, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == (1 if fails else 0), result.output
        return result.stderr if fails else result.stdout

    return call


def test_runs_are_listed_with_what_one_wants_to_know(pipefit, make_run):
    assert pipefit("runs").startswith("no runs yet in mongodb://127.0.0.1:")
    make_run("mlp", steps=100)
    make_run("cnn", "other", state=RunState.FAILED, reason="the loss is NaN\nat length")
    header, _, mlp, cnn = pipefit("runs").splitlines()
    assert header.split() == [
        *("collection", "name", "state", "steps", "best", "attempts", "updated", "reason")
    ]
    assert mlp.split()[:6] == ["digits", "mlp", "FINISHED", "100/100", "0.9500", "1"]
    assert cnn.split()[:3] == ["other", "cnn", "FAILED"] and cnn.endswith("the loss is NaN")
    assert "mlp" not in pipefit("runs", "--collection", "other")


def test_a_run_that_ended_early_says_so_and_what_happened(pipefit, make_run):
    make_run(
        steps=100,
        metrics={"loss": np.ones(100), "image": np.ones((100, 1000))},
        notes=[
            {"event": "rollback", "from": 80, "to": 50, "scale": 0.5},
            {"event": "odd\x1b[2J", "x": [1]},
        ],
        model={"name": "mlp", "parameters": 2410, "trainable_parameters": 1000, "layers": [{}, {}]},
        ended=Ended("early_stop", "{}", 100, "no better test/accuracy\x1b[2J"),
    )
    assert pipefit("runs").splitlines()[-1].endswith("no better test/accuracy?[2J")
    lines = [" ".join(line.split()) for line in pipefit("show", "mlp").splitlines()]
    assert "ended complete at step 100 by early_stop: no better test/accuracy?[2J" in lines
    assert "model mlp, 2,410 parameters (1,000 trained), 2 layers" in lines
    at = lines.index("History")
    assert lines[at + 1] == "time attempt what"
    assert lines[at + 3].endswith("1 odd?[2J: x 1")
    assert lines[at + 4].endswith("1 rollback: from 80, to 50, scale 0.5000")


def test_an_unknown_collection_gets_the_nearest(pipefit, make_run):
    make_run()
    error = pipefit("runs", "--collection", "digit", fails=True)
    assert error.startswith("pipefit: error: no collection 'digit' in mongodb://127.0.0.1:")
    assert "the nearest: digits" in error


def test_show_tells_about_a_finished_run(pipefit, make_run):
    make_run("mlp", steps=200, sets=("test", "shifted"))
    text = pipefit("show", "mlp")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "digits/mlp FINISHED"
    assert "progress 200/200 steps committed" in lines
    assert "best test/accuracy 0.9500 (max) at step 200" in lines
    assert "step set accuracy loss examples" in lines
    assert "200 test 0.9500 0.2000 297" in lines and "100 shifted 0.9250 0.2000 297" in lines
    assert any(line.startswith("200 permanent 104 B 20") for line in lines)
    assert any(line.startswith("1 FINISHED 0 200") for line in lines)


def test_show_tells_how_far_a_running_run_is(pipefit, make_run):
    progress = {"step": 50, "steps": 200, "loss": 0.25, "rate": 41234.5, "seconds_left": 200.0}
    make_run("mlp", steps=200, state=RunState.RUNNING, progress=progress)
    text = pipefit("show", "mlp")
    assert "50/200 steps (25%), loss 0.2500, 41,234 examples/s, 3 min 20 s left" in text
    assert f"pid {os.getpid()} on " in text


def test_show_gives_the_reason_and_the_log_of_a_failed_run(pipefit, make_run):
    log = "step 10\nTraceback:\n  Diverged: \x1b[31mhere\n"
    make_run("mlp", state=RunState.FAILED, reason="the loss is NaN", log_tail=log)
    text = pipefit("show", "mlp")
    assert "  reason    the loss is NaN" in text
    assert text.endswith("attempt 1\n  step 10\n  Traceback:\n    Diverged: ?[31mhere\n")


def test_show_says_where_the_report_lies_and_brings_it_there(pipefit, make_run, store, environment):
    make_run("night/mlp")
    assert "report" not in pipefit("show", "night/mlp")
    assert "has no report yet" in pipefit("show", "night/mlp", "--report", fails=True)
    path = Path(environment["PIPEFIT_HOME"], "reports/digits/night/mlp/report.html")

    def told():
        (line,) = [x for x in pipefit("show", "night/mlp").splitlines() if "report" in x]
        return line.split(maxsplit=1)[1]

    for page in (b"<p>first", b"<p>second"):
        store.put_artifact("digits", "night/mlp", "report.html", 100, page)
        assert told() == "`pipefit show night/mlp --report` brings it to this machine"
        assert pipefit("show", "night/mlp", "--report") == f"{path}\n"
        assert path.read_bytes() == page and told() == str(path)


def test_a_run_is_rewound_and_tells_what_was_taken_out(pipefit, make_run, store):
    run = make_run("mlp", steps=100)
    assert pipefit("show", "mlp", "--lines") == "no closed lines\n"
    error = pipefit("rewind", "mlp", "--step", "70", fails=True)
    assert "keeps no checkpoint of step 70" in error and error.endswith("kept: 100\n")
    writer = acquired(store, run)
    writer.begin(100)
    for step in (150, 200):
        writer.commit(step, {"w": np.zeros(10, "float32")}, frozenset({"permanent"}))
    error = pipefit("rewind", "mlp", "--step", "100", fails=True)
    assert f"is owned by pid {os.getpid()} on" in error
    writer.end(RunState.FINISHED, None, 200, "")

    told = pipefit("rewind", "mlp", "--step", "100")
    assert told == "digits/mlp is at step 100; what came after it is the closed line 1\n"
    lines = [" ".join(line.split()) for line in pipefit("show", "mlp").splitlines()]
    assert "reason rewound to step 100" in lines
    assert any(line.endswith("3 rewind: from 200, to 100") for line in lines)
    header, _, line = pipefit("show", "mlp", "--lines").splitlines()
    assert header.split() == ["line", "from", "to", "closed", "checkpoints"]
    assert line.split()[:3] == ["1", "101", "200"] and line.endswith("  150 200")


def acquired(store, run):
    """An owner's handle on a run that `make_run` has made."""
    order = RunOrder(run.collection, run.name, "same", {"seed": 0}, "{}", steps=200)
    return store.acquire(order, this_process(), ttl=600)


def test_a_closed_line_is_dropped_when_one_says_so(pipefit, make_run, store):
    make_run("mlp", "digits", steps=100)
    pipefit("rewind", "mlp", "--step", "100")
    told = pipefit("rewind", "mlp", "--drop", "1")
    assert told.startswith("digits/mlp: the closed line 1 is dropped; `pipefit gc` removes its ")
    assert pipefit("show", "mlp", "--lines") == "no closed lines\n"
    assert "no closed line 1: it was dropped" in pipefit("rewind", "mlp", "--drop", "1", fails=True)
    for words in ([], ["--step", "3", "--drop", "1"]):
        result = CliRunner().invoke(main, ["rewind", "mlp", *words])
        assert result.exit_code == 2 and "give --step N, or --drop LINE" in result.stderr


def test_garbage_is_listed_and_removed_when_one_says_so(pipefit, make_run, store):
    assert pipefit("gc") == "0 things can be removed, 0 B\n"
    run = make_run("mlp", steps=100)
    outputs = store.outputs_writer("digits", "mlp", "test")
    outputs.add({"x": np.zeros((10, 1000))})
    key = outputs.close()
    header, _, held, amount = pipefit("gc", "--yes").splitlines()
    assert header.split()[:6] == ["collection", "run", "what", "id", "size", "age"]
    assert held.split()[:6] == ["digits", "mlp", "outputs", key, "80.1", "kB"]
    assert held.endswith("the process that wrote it may be alive")
    assert amount == "0 things can be removed, 0 B"

    leave_outputs(store)
    assert "digits" in pipefit("gc", "--collection", "digits")
    assert pipefit("gc", "--collection", "other") == "0 things can be removed, 0 B\n"
    for words in ([], ["--dry-run"]):
        assert "1 thing can be removed, 80.1 kB\n" in pipefit("gc", *words)
    assert pipefit("gc").endswith("--yes removes it\n")
    assert pipefit("gc", "--yes").endswith("\n1 thing removed, 80.1 kB\n")
    assert "outputs" in pipefit("gc") and pipefit("gc").endswith("0 things can be removed, 0 B\n")
    assert run.status().step == 100


def test_garbage_is_removed_when_the_question_is_answered_so(environment, make_run, store):
    make_run("mlp")
    leave_outputs(store)
    for answer, left in (("n", 1), ("y", 0)):
        ours, theirs = pty.openpty()
        child = subprocess.Popen([*PIPEFIT, "gc"], env=environment, stdin=theirs, stdout=theirs)
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        while _read(ours):
            pass
        assert child.wait() == 0
        assert len(store.garbage("digits")) == left


def leave_outputs(store):
    """Outputs that no validation names, of a process that is dead."""
    pid = os.fork()
    if pid == 0:
        outputs = store.outputs_writer("digits", "mlp", "test")
        outputs.add({"x": np.zeros((10, 1000))})
        outputs.close()
        os._exit(0)
    os.waitpid(pid, 0)


def test_runs_go_to_another_store_in_one_file(pipefit, make_run, tmp_path, monkeypatch):
    make_run("mlp", steps=100)
    make_run("cnn", steps=200)
    file = str(tmp_path / "all.tar")
    told = pipefit("export", "--collection", "digits", file)
    sha256 = hashlib.sha256((tmp_path / "all.tar").read_bytes()).hexdigest()
    assert told.startswith(f"{file}: 2 runs, ") and told.endswith(f"kB, sha256 {sha256}\n")
    assert pipefit("export", "mlp", str(tmp_path / "one.tar")).split()[1:3] == ["1", "run,"]
    uri = (tmp_path / "elsewhere").as_uri()
    told = pipefit("import", str(tmp_path / "one.tar"), "--uri", uri)
    assert told == "digits/mlp imported\n"
    monkeypatch.setenv("OTHER", uri)
    told = pipefit("import", file, "--uri", "${OTHER}")
    assert told == "digits/mlp was there already\ndigits/cnn imported\n"
    assert pipefit("import", file).count("was there already") == 2
    assert len(open_store(uri).runs()) == 2


def test_what_cannot_be_exported_or_imported_is_an_error(pipefit, make_run, tmp_path):
    make_run("mlp")
    file = str(tmp_path / "a.tar")
    assert "nearest: mlp" in pipefit("export", "mpl", file, fails=True)
    error = pipefit("export", "--collection", "digit", file, fails=True)
    assert "no collection 'digit'" in error and "nearest: digits" in error
    pipefit("export", "mlp", file)
    assert "a.tar exists already" in pipefit("export", "mlp", file, fails=True)
    (tmp_path / "b.tar").write_bytes(Path(file).read_bytes()[:2000])
    assert "not a whole tar" in pipefit("import", str(tmp_path / "b.tar"), fails=True)
    for words in (["export", file], ["export", "a", "b", file], ["export"]):
        assert CliRunner().invoke(main, words).exit_code == 2
    error = pipefit("import", file, "--uri", "${NOT_SET}", fails=True)
    assert error.startswith("pipefit: error: --uri names the environment variable NOT_SET")
    away = "mongodb://me:hunter2@127.0.0.1:1/x?serverSelectionTimeoutMS=50"
    error = pipefit("import", file, "--uri", away, fails=True)
    assert "warning: everybody on this machine could see" in error and "hunter2" not in error


def test_the_experiment_of_a_run_comes_back_as_a_file(pipefit, make_run, tmp_path, store):
    spec = read_spec(ROOT / "configs" / "digits.toml", {"name": "x", "train.steps": 7})
    make_run("x", spec=spec.to_json(), identity=spec.identity)
    done = CliRunner().invoke(main, ["show", "x", "--toml"])
    assert done.exit_code == 0 and done.stderr == ""
    (tmp_path / "again.toml").write_text(done.stdout)

    again = read_spec(tmp_path / "again.toml")
    assert again == spec == Spec.of_document(store.run("x", "digits").document())
    assert again.identity == spec.identity == store.run("x", "digits").status().identity


def test_an_experiment_that_has_another_identity_by_now_is_told(pipefit, make_run):
    spec = read_spec(ROOT / "configs" / "digits.toml")
    make_run("x", spec=spec.to_json(), identity="of another version")
    done = CliRunner().invoke(main, ["show", "x", "--toml"])
    assert "another experiment" in done.stderr and "name =" in done.stdout
    make_run("y", spec="{}")
    assert "required" in pipefit("show", "y", "--toml", fails=True)


def test_a_name_that_somebody_stored_leads_nowhere(pipefit, make_run, store, environment):
    make_run("mlp")
    store.put_artifact("digits", "mlp", "report.html", 100, b"<p>")
    for part in ("runs", "records"):
        documents = store.connection.database[f"digits.{part}"]
        key = "_id" if part == "runs" else "run"
        for document in documents.find():
            documents.delete_one({"_id": document["_id"]})
            documents.insert_one({**document, key: "../../../evil"})
    assert "../../../evil" in pipefit("runs")
    assert "no run '../../../evil'" in pipefit("show", "../../../evil", fails=True)
    assert not list(Path(environment["PIPEFIT_HOME"]).parent.rglob("*.html"))


def test_a_name_in_several_collections_needs_the_collection(pipefit, make_run):
    make_run("mlp", "digits", steps=100)
    make_run("mlp", "other", steps=300)
    error = pipefit("show", "mlp", fails=True)
    assert (
        "several collections have a run 'mlp': digits, other; say which with --collection" in error
    )
    assert "300/300 steps" in pipefit("show", "mlp", "--collection", "other")


def test_an_unknown_name_gets_the_nearest(pipefit, make_run):
    make_run("digits-mlp")
    make_run("digits-cnn", "other")
    assert "the nearest: digits-mlp, digits-cnn" in pipefit("show", "digits-mpl", fails=True)
    assert "`pipefit runs` lists all" in pipefit("show", "zzzz", fails=True)
    assert "digits-cnn" in pipefit("show", "digits-cn", "--collection", "other", fails=True)


def test_a_guest_may_look_at_everything_and_change_nothing(
    pipefit, make_run, store, tmp_path, database_uri, environment, monkeypatch
):
    run = make_run("mlp", steps=100)
    store.rewind("digits", "mlp", 100)
    store.put_artifact("digits", "mlp", "report.html", 100, b"<p>")
    with pymongo.MongoClient(database_uri) as client:
        database = client.get_default_database()
        database.command("createUser", "guest", pwd="secret", roles=["read"])
        host = database_uri.rpartition("@")[2].partition("/")[0]
        uri = f"mongodb://guest:secret@{host}/{database.name}"
        monkeypatch.setenv("PIPEFIT_MONGO_URI", uri)
        looks = (["runs"], ["show", "mlp"], ["show", "mlp", "--lines"], ["gc"])
        told = [pipefit(*words) for words in looks]
        export = pipefit("export", "mlp", str(tmp_path / "a.tar"))
        make_run("other")
        leave_outputs(store)
        changes = (["rewind", "other", "--step", "100"], ["gc", "--yes"])
        refusals = [pipefit(*words, fails=True) for words in changes]
        database.command({"dropAllUsersFromDatabase": 1})

    assert "digits" in told[0] and "report" in told[1] and "1" in told[2] and "1 run" in export
    assert all("refuses access" in text for text in refusals)
    assert run.status().step == 100 and len(store.garbage()) == 1


def test_only_db_uri_prints_the_password(pipefit, make_run, database_uri):
    make_run()
    password = database_uri.split("@")[0].rpartition(":")[2]
    assert pipefit("db", "uri") == f"{database_uri}\n"
    for words in (["runs"], ["show", "mlp"], ["db", "status"]):
        assert password not in pipefit(*words)
    assert password not in pipefit("show", "other", fails=True)


def test_the_embedded_server_is_started_told_about_and_stopped(pipefit_home, monkeypatch):
    monkeypatch.delenv("PIPEFIT_MONGO_URI", raising=False)

    def call(*words: str) -> str:
        result = CliRunner().invoke(main, ["db", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert call("status").startswith("mongod is not running\n")
    started = call("start")
    assert " is running, pid " in started and "pipefit:***@127.0.0.1" in started
    assert f"  data  {pipefit_home}/mongod/data" in started
    assert call("status") == started == call("start")
    assert call("uri").startswith("mongodb://pipefit:")
    assert call("stop") == "stopped\n"
    assert call("stop") == "it was not running\n"
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "mongodb://elsewhere")
    assert "Pipefit uses another database" in call("status")


def process(
    words: list[str], environment: dict[str, str], **options
) -> subprocess.CompletedProcess:
    """Run the command as a process of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.run([*PIPEFIT, *words], env=environment, check=False, **options)


def test_an_unreachable_database_is_one_line_and_exit_code_1(environment):
    uri = "mongodb://user:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=50"
    done = process(["runs"], {**environment, "PIPEFIT_MONGO_URI": uri})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("pipefit: error: mongodb://127.0.0.1:1/pipefit cannot be reached")
    assert "Traceback" not in done.stderr and "hunter2" not in done.stderr


def test_a_wrong_luigi_cfg_is_an_error_without_traceback(tmp_path, environment):
    (tmp_path / "luigi.cfg").write_text("no section")
    environment.pop("PIPEFIT_MONGO_URI")
    done = process(["db", "uri"], environment, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("pipefit: error: luigi.cfg is not a valid Luigi configuration")


def test_a_closed_pipe_is_no_news(environment, make_run):
    make_run()
    reading, writing = os.pipe()
    os.close(reading)
    assert process(["runs"], environment, stdout=writing).stderr == ""
    os.close(writing)


def test_a_narrow_terminal_gets_a_table_that_fits(environment, make_run):
    make_run("a-run-with-a-name-of-some-length", state=RunState.FAILED, reason="long " * 40)
    ours, theirs = pty.openpty()
    environment["COLUMNS"] = "90"
    child = subprocess.Popen([*PIPEFIT, "runs"], env=environment, stdout=theirs)
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    assert child.wait() == 0
    lines = text.decode().splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 90 and "…" in lines[2]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux tells that the other side is closed
        return b""


def test_help_and_db_status_load_neither_the_driver_nor_pandas(pipefit_home):
    for words in (["--help"], ["db", "status"], ["db", "stop"]):
        code = f"""
import sys
from pipefit.cli import main
main({words!r}, standalone_mode=False)
loaded = {{"pymongo", "pandas", "numpy", "tensorflow", "luigi", "matplotlib"}} & set(sys.modules)
assert not loaded, loaded
"""
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_help_of_db_uri_warns_about_the_password():
    assert "PASSWORD" in CliRunner().invoke(main, ["db", "uri", "--help"]).stdout
