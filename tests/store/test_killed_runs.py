"""A run whose process was killed is INTERRUPTED, at once on its host and after the lease elsewhere.

Whoever asks, and however: the commands, the tables, the states that Luigi's tasks look at.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from actors import COLLECTION, EARLY, ELSEWHERE, acquire, reader, started
from click.testing import CliRunner

from pipefit.cli import main
from pipefit.records import RunState
from pipefit.store import open_store

TRAINER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from actors import *
from pipefit.store import open_store
writer = started(open_store(sys.argv[1]), ttl=3600.0)
writer.write_metrics(block(1, 10))
writer.commit(10, state(1.0), PERMANENT)
print("trains", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["database", "folder"])
def uri(request, tmp_path):
    if request.param == "folder":
        return (tmp_path / "results").as_uri()
    return request.getfixturevalue("database_uri")


@pytest.fixture
def store(uri):
    return open_store(uri)


@pytest.fixture
def told(store, uri, monkeypatch, tmp_path):
    """What is told of the run, in every way there is: (state, reason) by where it is told."""
    monkeypatch.setenv("PIPEFIT_MONGO_URI", uri)
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))

    def ask():
        run, row = reader(store), store.runs().iloc[0]
        status, document, attempt = run.status(), run.document(), run.attempts()[-1]
        [same] = store.statuses(COLLECTION, ["a"]).values()
        assert same == status
        listed = CliRunner().invoke(main, ["runs"]).stdout.splitlines()[-1]
        shown = CliRunner().invoke(main, ["show", "a"]).stdout
        return {
            "status": (str(status.state), status.reason),
            "runs": (row["state"], row["reason"]),
            "document": (document["state"], document["reason"]),
            "attempt": (str(attempt.state), attempt.reason),
            "pipefit runs": (listed.split()[2], listed.partition("ended without")[1] or None),
            "pipefit show": (
                shown.split()[1],
                "ended" * ("nobody knows when" in shown) or None,
            ),
        }

    return ask


def all_say(told, state, reason):
    for where, (its_state, its_reason) in told.items():
        assert its_state == state, where
        if reason is None:
            assert its_reason is None, where
        else:
            assert reason.startswith(its_reason) or its_reason.startswith(reason), where


def test_kill_9_is_seen_at_once(store, uri, told):
    command = [sys.executable, "-c", TRAINER, uri, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "trains\n"
        all_say(told(), "RUNNING", None)
        trainer.kill()
    gone = f"ended without a word, nobody knows when: pid {trainer.pid} on "
    all_say(told(), "INTERRUPTED", gone)
    assert store.lease(COLLECTION, "a") is None
    (attempt,) = reader(store).attempts()
    assert (attempt.ended, attempt.step, attempt.owner.pid) == (None, None, trainer.pid)
    assert " unknown " in CliRunner().invoke(main, ["show", "a"]).stdout.splitlines()[-1]

    started(store, start=10)
    first, second = reader(store).attempts()
    assert first.reason.startswith("ended without a word, succeeded by") and first.ended
    assert second.state is RunState.RUNNING
    all_say(told(), "RUNNING", None)


def test_a_host_that_is_gone_is_seen_when_its_lease_has_run_out(store, told):
    writer = started(store, owner=ELSEWHERE, ttl=1.0)
    began = time.monotonic()
    all_say(told(), "RUNNING", None)
    time.sleep(max(0.0, began + 1.05 - time.monotonic()))
    silent = "ended without a word, nobody knows when: pid 1 on elsewhere renews its lease no more"
    all_say(told(), "INTERRUPTED", silent)
    writer.renew()  # it was only cut off
    all_say(told(), "RUNNING", None)


@pytest.mark.parametrize("before", [RunState.FAILED, RunState.FINISHED, RunState.INTERRUPTED])
def test_one_that_is_taken_again_is_running_and_never_what_it_was(store, told, before):
    started(store).end(before, "no GPU", None, "", EARLY if before is RunState.FINISHED else None)
    acquire(store, owner=ELSEWHERE, ttl=0.6)
    began = time.monotonic()
    all_say(told(), "RUNNING", None)
    time.sleep(max(0.0, began + 0.65 - time.monotonic()))
    all_say(told(), "INTERRUPTED", "ended without a word, nobody knows when: pid 1 on elsewhere")
