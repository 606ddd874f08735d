"""The database goes away while a run is trained: nothing is lost, and nothing waits for ever."""

import re
import stat
import time
from pathlib import Path

from pipefit.records import RunState
from pipefit.store import open_store
from tests.execution.lab_runs import Worker, assert_same, builder, carry_out, changed, experiment
from tests.store.proxy import Proxy

VALIDATION = {"test": {"data": builder("points", n=10, seed=1, batch_size=8)}}
SAVE = {"recent_every": 5, "metrics_every": 3, "validate_every": 5}
#: A step takes so long then, in seconds: training goes on while the database is away.
SLOWLY = {"LAB_SECONDS": "0.1"}


def run_of(name, steps=40):
    """An experiment with dropout and batch normalisation."""
    spec = experiment(
        name=name, save=SAVE, validation=VALIDATION, model=builder("net"), loss=builder("plain")
    )
    return changed(spec, train={"steps": steps, "metrics": {}})


def wait_for_step(store, name, step):
    deadline = time.monotonic() + 60
    while (store.statuses("lab", [name]).get(name, None) or no_run).step in (None, *range(step)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


class no_run:
    step = None


def test_gone_for_good_the_run_ends_and_the_same_command_loses_nothing(database_uri, pipefit_home):
    store = open_store(database_uri)
    proxy = Proxy(f"{database_uri}&serverSelectionTimeoutMS=500")
    worker = Worker(run_of("cut"), proxy.uri, SLOWLY, lease_seconds=2.0)
    wait_for_step(store, "cut", 10)
    proxy.down()
    begin = time.monotonic()
    code, outcome = worker.end()

    assert time.monotonic() - begin < 2.0 + 30.0
    assert (code, outcome["error"]) == (1, "StoreUnavailable")
    folder = Path(re.search(r"pipefit replay (\S+)$", outcome["message"])[1])
    assert f"is kept in {folder}; the same command writes it" in outcome["message"]
    assert folder.is_relative_to(pipefit_home / "spool" / "lab")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert store.run("cut", "lab").status().state is RunState.INTERRUPTED

    proxy.up()
    lines = carry_out(run_of("cut"), database_uri)
    assert any(line == f"wrote what attempt 1 had left in {folder}" for line in lines)
    assert not (pipefit_home / "spool" / "lab").exists()
    first, second = store.run("cut", "lab").attempts()
    assert first.state is RunState.FAILED and "cannot be reached" in first.reason
    # Training had gone on; where it was then, it goes on now.
    assert second.start == first.step > 10
    carry_out(run_of("whole"), database_uri)
    assert_same(store.run("cut", "lab"), store.run("whole", "lab"))
