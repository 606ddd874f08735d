"""What could not be written: kept whole, written later, once, and to the right run alone."""

import os
import resource
import stat
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from pipefit.errors import ReplayRefused, RunOwned, StoreError
from pipefit.execution import spool
from pipefit.execution.replay import replay, replay_before
from pipefit.execution.spool import Checkpoint, End
from pipefit.records import Best, Ended, MetricBlock, RunOrder, RunState, Validation
from pipefit.store import AttemptKey, open_store, this_process
from tests.store.actors import dead_process, living_process

PIPEFIT = [sys.executable, "-c", "from pipefit.cli import main; main(prog_name='pipefit')"]
KEY = AttemptKey("digits", "../a/b", "1", 3, this_process())
BEST = Best("test/accuracy", "max", 0.9, 20)
STATE = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nan": np.array([np.nan, -0.0]),
    "half": np.ones(3, ml_dtypes.bfloat16),
    "step": np.asarray(20),
}
ENTRIES = [
    MetricBlock(11, {"loss": np.linspace(1, 0, 10), "image": np.ones((10, 30, 30), np.float32)}),
    MetricBlock(21, {"word": np.array(["a", "bcd"], object), "flags": np.ones((2, 2), bool)}),
    Validation("test", 20, {"accuracy": 0.5, "loss": np.nan}, 100, None, 1.5, {"name": "x"}),
    Checkpoint(20, STATE, frozenset({"recent", "best"}), BEST),
    End(RunState.FAILED, "away", 22, "last\nwords", Ended("early_stop", "{}", 22, "enough")),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@contextmanager
def files_of_at_most(size):
    """As on a disk that is full: this process writes no file beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_entry_comes_back_as_it_was(home):
    left = spool.read(spool.write("mongodb://host/x", KEY, 60.0, ENTRIES))
    block, words, validation, checkpoint, end = left.read()

    assert (left.store, left.key, left.ttl) == ("mongodb://host/x", KEY, 60.0)
    for found, given in ((block, ENTRIES[0]), (words, ENTRIES[1])):
        assert (found.first, list(found.columns)) == (given.first, list(given.columns))
        for name, values in given.columns.items():
            np.testing.assert_array_equal(found.columns[name], values)
            assert found.columns[name].dtype == values.dtype
    assert validation.values == {"name": "x"}
    assert str(replace(validation, values={})) == str(replace(ENTRIES[2], values={}))
    assert (checkpoint.step, checkpoint.kinds, checkpoint.best) == (20, {"recent", "best"}, BEST)
    for name, array in STATE.items():
        assert checkpoint.tensors[name].dtype == array.dtype
        assert checkpoint.tensors[name].tobytes() == array.tobytes()
    assert end == ENTRIES[4]


def test_only_its_user_may_read_it_and_no_name_leads_elsewhere(home):
    folder = spool.write("mongodb://host/x", KEY, 60.0, ENTRIES)

    assert folder.parent.parent == home / "spool" / "digits"
    assert folder.name.startswith("3-")
    for path in (home / "spool", *(home / "spool").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600)
    assert [left.folder for left in spool.find("digits", "../a/b")] == [folder]
    assert spool.find("digits", "a/b") == spool.find("letters") == []


def test_on_a_full_disk_nothing_half_written_is_left(home):
    large = Checkpoint(20, {"w": np.zeros(10**6)}, frozenset({"recent"}), None)
    with (
        files_of_at_most(10**6),
        pytest.raises(StoreError, match=rf"the disk of {home} is full \(File too large\)"),
    ):
        spool.write("mongodb://host/x", KEY, 60.0, [*ENTRIES, large])

    assert [path for path in (home / "spool").rglob("*") if path.name != "digits"][1:] == []
    assert spool.find() == []


def test_what_is_damaged_is_not_used(home):
    folder = spool.write("mongodb://host/x", KEY, 60.0, ENTRIES)
    [state] = folder.glob("*.safetensors")
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with pytest.raises(StoreError, match=rf"damaged .*safetensors.*--discard {folder}"):
        list(spool.read(folder).read())
    (folder / "spool.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        spool.find()
    assert pipefit("replay", "--discard", folder).returncode == 0
    assert spool.find() == [] and not folder.exists()


def test_what_killed_processes_left_half_done_goes_with_the_next_one():
    first, second = (spool.write("mongodb://host/x", KEY, 60.0, ENTRIES) for _ in "ab")
    gone = first.rename(first.with_name(f".gone-{first.name}"))
    fresh, old = first.with_name(".draft-4-b"), first.with_name(".draft-4-a")
    for draft in (fresh, old):
        draft.mkdir()
    os.utime(old, (0, 0))
    assert [left.folder for left in spool.find()] == [second]
    spool.remove(second)
    assert (gone.exists(), old.exists(), second.exists(), fresh.exists()) == (0, 0, 0, 1)


def left_behind(store, entries, name="a"):
    """A run whose first attempt died after step 10, and what it left in a folder."""
    owner = dead_process()
    order = RunOrder("digits", name, "1", {}, "{}", steps=22)
    writer = store.acquire(order, owner, 3600.0)
    writer.begin(-1)
    writer.write_metrics(MetricBlock(1, {"loss": np.linspace(2, 1, 10)}))
    writer.commit(10, STATE, frozenset({"recent"}))
    key = AttemptKey("digits", name, "1", writer.fence, owner)
    return spool.read(spool.write(store.describe(), key, 60.0, entries))


def told(store, name="a"):
    """All that a reader sees of the run, but for times and ids."""
    run = store.run(name, "digits")
    [attempt] = run.attempts()
    return {
        "metrics": run.metrics().to_csv(),
        "image": len(run.values("image")),
        "validations": run.validations().to_csv(),
        "checkpoints": run.checkpoints()[["step", "kinds", "sha256"]].to_dict("list"),
        "attempt": (attempt.state, attempt.reason, attempt.step, attempt.log_tail),
        "best": run.document()["best"],
        "lease": store.lease("digits", name),
    }


AGAIN = Checkpoint(15, STATE, frozenset({"recent"}), None)


def test_a_replay_that_is_killed_anywhere_and_repeated_writes_all_once(store, monkeypatch):
    entries = [*ENTRIES[:3], AGAIN, *ENTRIES[3:]]
    once = left_behind(store, entries, "once")
    replay(store, once)
    expected = told(store, "once")
    assert expected["checkpoints"]["step"] == [10, 15, 20]
    assert not once.folder.exists()

    left = left_behind(store, entries)
    for at in range(2 * len(entries) + 1):
        pid = os.fork()
        if pid == 0:
            dying_at(at)
            replay(store, left)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert left.folder.exists()
    replay(store, left)
    assert told(store) == expected
    assert not left.folder.exists()


def dying_at(at):
    """End this process before, or after, it writes an entry; in the end before it tidies up."""
    write, count = spool.write_entry, iter(range(1000))

    def die_or(act, *arguments):
        for do in (lambda: None, lambda: act(*arguments)):
            if next(count) == at:
                os._exit(9)
            do()

    spool.write_entry = lambda *arguments: die_or(write, *arguments)
    spool.clear = lambda folder: os._exit(9)


def test_of_a_run_that_somebody_has_continued_nothing_is_changed(store, caplog):
    left = left_behind(store, ENTRIES)
    order = RunOrder("digits", "a", "1", {}, "{}", steps=22)
    successor = store.acquire(order, this_process(), 60.0)
    successor.begin(10)
    with pytest.raises(ReplayRefused) as refused:
        replay(store, left)

    message = str(refused.value)
    assert f"left by attempt 1 ({left.key.owner})" in message
    assert f"{this_process()} took it over" in message and "as attempt 2" in message
    assert f"pipefit replay --discard {left.folder}" in message
    replay_before(store, "digits", ["a"])  # who continues the run is told, and goes on
    assert message in caplog.text
    assert left.folder.exists() and len(store.run("a", "digits").metrics()) == 10
    successor.renew()


def test_in_another_database_nothing_is_changed(store, tmp_path):
    left = left_behind(store, ENTRIES)
    other = open_store((tmp_path / "other").as_uri())
    with pytest.raises(ReplayRefused, match=r"was left for mongodb://.*, this is file://.*/other"):
        replay(other, left)
    replay_before(other, "digits", ["a"])
    assert left.folder.exists() and other.collections() == []


def test_while_its_process_lives_it_waits(store):
    left = left_behind(store, ENTRIES)
    with living_process() as (child, owner):
        store.take_up(left.key, owner, 3600.0)
        with pytest.raises(RunOwned, match=f"pid {child.pid}"):
            replay_before(store, "digits", ["a"])
    replay_before(store, "digits", ["a"])
    assert not left.folder.exists()


def pipefit(*words):
    return subprocess.run([*PIPEFIT, *map(str, words)], capture_output=True, text=True, check=False)


def test_by_hand(store, database_uri, monkeypatch, home):
    monkeypatch.setenv("PIPEFIT_MONGO_URI", database_uri)
    assert pipefit("replay").stdout == "nothing waits to be written\n"
    refused, left = left_behind(store, ENTRIES, "b"), left_behind(store, ENTRIES)
    store.rewind("digits", "b", 10)
    elsewhere = spool.write("mongodb://elsewhere/x", KEY, 60.0, ENTRIES)
    done = pipefit("replay")

    assert done.returncode == 1
    assert f"{left.folder}: run digits/a, attempt 1, left " in done.stdout
    assert "UTC, checkpoints of the steps 20; 5 pieces\n  written\n" in done.stdout
    assert "  waits for mongodb://elsewhere/x\n" in done.stdout
    assert "rewound to step 10" in done.stderr and str(refused.folder) in done.stderr
    assert store.run("a", "digits").status().step == 20
    assert [left.folder for left in spool.find()] == [elsewhere, refused.folder]

    assert pipefit("replay", elsewhere).returncode == 1
    assert "name the folders" in pipefit("replay", "--discard").stderr
    done = pipefit("replay", "--discard", refused.folder, elsewhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert spool.find() == [] and not (home / "spool" / "digits").exists()
    assert "it stays" in pipefit("replay", "--discard", home).stderr and home.exists()
