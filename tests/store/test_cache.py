"""Copies of checkpoints: used, bounded, verified, and never needed."""

import hashlib
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, reader, started
from recorder import RECORDER

from pipefit.errors import CheckpointCorrupt, NotFound, SettingsError, StoreError
from pipefit.store import cache, open_store
from pipefit.store.backend import StoredFile
from pipefit.store.cache import CheckpointCache
from pipefit.store.codec import encode_tensors

SIZE = 100_000


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An own PIPEFIT_HOME; the folder of the copies in it."""
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "cache" / "checkpoints"


def tensors(value):
    return {"w": np.full(SIZE // 4, value, np.float32), "step": np.asarray(value)}


def committed(store, *steps, name="a"):
    writer = started(store, name)
    for step in steps:
        writer.commit(step, tensors(step), PERMANENT)
    return reader(store, name)


def copies(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def fetched(read):
    """What was read, and how many chunks came from the database."""
    with RECORDER.recording() as seen:
        found = read()
    batches = [
        reply["cursor"].get("firstBatch", reply["cursor"].get("nextBatch"))
        for command, reply in seen
        if command in ("find", "getMore")
    ]
    return found, len([document for batch in batches for document in batch if "data" in document])


class Source:
    """Files that are counted when they are read."""

    def __init__(self):
        self.files = {}
        self.reads = []

    def add(self, value):
        data = encode_tensors(tensors(value))
        name = f"{value:024x}"
        self.files[name] = data
        return StoredFile(name, len(data), hashlib.sha256(data).hexdigest(), f"number {value}")

    def read(self, file):
        self.reads.append(file.id)
        return bytearray(self.files[file.id])

    def read_tensors(self, file, include=None):
        self.reads.append((file.id, include))
        return {"w": None}


def test_what_was_read_whole_is_not_fetched_again(home, store):
    run = committed(store, 10)
    first, chunks = fetched(run.weights)
    assert chunks == 1 and copies(home) == [f"{run.checkpoint().id}-{run.checkpoint().sha256}"]
    again, chunks = fetched(lambda: reader(store).weights(10))

    assert chunks == 0
    assert again.keys() == first.keys()
    for name, array in again.items():
        assert array.dtype == first[name].dtype and array.tobytes() == first[name].tobytes()
        array[...] = 7  # it is one's own
    assert reader(store).weights()["step"] == 10


def test_parts_come_from_the_copy_if_there_is_one(home, store):
    run = committed(store, 10)
    _, chunks = fetched(lambda: run.weights(include="step"))
    assert chunks == 1 and not home.exists()
    run.weights()
    found, chunks = fetched(lambda: run.weights(include="^w$"))
    assert chunks == 0 and found.keys() == {"w"} and found["w"].sum() == 10 * SIZE // 4
    with pytest.raises(StoreError, match=r"include '\(' is not a regular expression"):
        run.weights(include="(")


def test_another_process_uses_the_copy(home, store, database_uri):
    run = committed(store, 10)
    run.weights()
    store.connection.database[f"{COLLECTION}.checkpoints.chunks"].delete_many({})
    code = f"""
import sys
from pipefit.store import open_store
print(open_store(sys.argv[1]).run("a", {COLLECTION!r}).weights()["step"])
"""
    command = [sys.executable, "-c", code, database_uri]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "10\n"
    with pytest.raises(CheckpointCorrupt, match="step 10 of run 'a' is damaged"):
        open_store(database_uri, cache=False).run("a", COLLECTION).weights()


@pytest.mark.parametrize("damage", ["bit", "short", "long", "empty", "folder"])
@pytest.mark.parametrize("include", [None, "^w$"])
def test_a_damaged_copy_is_thrown_away_and_fetched_again(
    home, store, damage, include, caplog, monkeypatch
):
    run = committed(store, 10)
    run.weights()
    [name] = copies(home)
    data = (home / name).read_bytes()
    (home / name).unlink()
    if damage == "folder":
        (home / name).mkdir()
    else:
        new = {"bit": data[:-1] + bytes([data[-1] ^ 1]), "short": data[:-1], "long": data + b"x"}
        (home / name).write_bytes(new.get(damage, b""))
    monkeypatch.setattr(cache, "_verified", set())

    with caplog.at_level(logging.WARNING):
        found, chunks = fetched(lambda: run.weights(include=include))
    assert found["w"].sum() == 10 * SIZE // 4 and chunks >= 1
    if damage != "folder":
        assert "the copy of the checkpoint of step 10 of run 'a'" in caplog.text
        run.weights()
        assert (home / name).read_bytes() == data


def test_a_checkpoint_that_was_replaced_has_another_copy(home, store):
    run = committed(store, 10)
    assert run.weights()["w"][0] == 10
    started_again = started(store, "b")
    started_again.commit(10, tensors(1), PERMANENT)
    assert reader(store, "b").weights()["w"][0] == 1
    started_again.commit(10, tensors(2), PERMANENT)
    assert reader(store, "b").weights()["w"][0] == 2
    started_again.commit(20, tensors(3), PERMANENT)
    started_again.retain({})
    with pytest.raises(NotFound):
        reader(store, "b").weights(10)
    assert len(copies(home)) == 3


def test_there_are_never_more_bytes_than_the_limit(home, store, monkeypatch):
    Path("luigi.cfg").write_text("[cache]\ncheckpoint_gigabytes = 0.00035\n")
    run = committed(store, *range(1, 21))
    few = open_store_like(store)
    for step in range(1, 21):
        few.run("a", COLLECTION).weights(step)
        assert sum(path.stat().st_size for path in home.iterdir()) <= 350_000
    ids = run.checkpoints().set_index("step")["id"]
    assert {name.partition("-")[0] for name in copies(home)} == set(ids[-3:])
    assert len(list(home.iterdir())) == 3 + 0


def open_store_like(store):
    """The same store, with the settings as they are now."""
    again = open_store("mongodb://host/x")
    again.connection = store.connection
    return again


@pytest.mark.parametrize("value", ["many", "-1", "nan", ""])
def test_the_setting_is_checked(home, value):
    Path("luigi.cfg").write_text(f"[cache]\ncheckpoint_gigabytes = {value}\n")
    if value == "":
        assert cache.configured().limit == 5_000_000_000
        return
    with pytest.raises(SettingsError, match=rf"\[cache\] checkpoint_gigabytes = {value}: must be"):
        open_store("mongodb://host/x")


def test_no_gigabytes_are_no_cache(home, store):
    Path("luigi.cfg").write_text("[cache]\ncheckpoint_gigabytes = 0\n")
    committed(store, 10)
    open_store_like(store).run("a", COLLECTION).weights()
    assert not home.exists()


def test_those_go_first_that_were_not_read_for_longest(tmp_path):
    source, kept = Source(), CheckpointCache(tmp_path, 3 * SIZE + 3000)
    files = [source.add(value) for value in range(5)]
    for number in (0, 1, 2, 0, 3, 0, 4):
        kept.read_tensors(source, files[number])
        tick(tmp_path)

    assert {name.partition("-")[0] for name in copies(tmp_path)} == {
        files[number].id for number in (0, 3, 4)
    }
    assert source.reads == [files[number].id for number in (0, 1, 2, 3, 4)]


def tick(folder):
    """Wait until the clock of the file system has moved."""
    probe = folder / ".probe"
    probe.write_text("")
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.write_text("")
    probe.unlink()


def test_what_is_being_read_is_not_removed(tmp_path, monkeypatch):
    source, kept = Source(), CheckpointCache(tmp_path, 2 * SIZE)
    files = [source.add(value) for value in range(6)]
    kept.read_tensors(source, files[0])
    opened, go_on = threading.Event(), threading.Event()
    read = CheckpointCache._read

    def slowly(self, copy, include):
        if threading.current_thread() is slow:
            opened.set()
            go_on.wait(10)
        return read(self, copy, include)

    monkeypatch.setattr(CheckpointCache, "_read", slowly)
    found = []
    slow = threading.Thread(target=lambda: found.append(kept.read_tensors(source, files[0])))
    slow.start()
    opened.wait(10)
    for file in files[1:]:
        kept.read_tensors(source, file)
    assert any(name.startswith(files[0].id) for name in copies(tmp_path))
    go_on.set()
    slow.join()

    assert found[0]["step"] == 0 and source.reads.count(files[0].id) == 1
    kept.read_tensors(source, files[1])
    kept.read_tensors(source, files[2])
    assert not any(name.startswith(files[0].id) for name in copies(tmp_path))


def test_readers_that_died_hold_nothing_for_ever(tmp_path, monkeypatch):
    source, kept = Source(), CheckpointCache(tmp_path, SIZE + 1000)
    one, two = source.add(1), source.add(2)
    kept.read_tensors(source, one)
    [name] = copies(tmp_path)
    (tmp_path / f".{name}.reading-dead").write_text("")
    (tmp_path / ".draft-dead").write_bytes(b"x" * 1000)
    kept.read_tensors(source, two)
    assert name in copies(tmp_path)
    monkeypatch.setattr(cache, "_PATIENCE", 0.0)
    tick(tmp_path)
    kept.read_tensors(source, source.add(3))

    assert name not in copies(tmp_path)
    assert not list(tmp_path.glob("*dead"))


def test_a_checkpoint_that_is_larger_than_the_limit_is_not_kept(tmp_path):
    source = Source()
    file = source.add(1)
    assert CheckpointCache(tmp_path, SIZE).read_tensors(source, file)["step"] == 1
    assert copies(tmp_path) == []


def test_where_nothing_can_be_written_it_is_read_all_the_same(tmp_path):
    source = Source()
    (tmp_path / "file").write_text("")
    kept = CheckpointCache(tmp_path / "file" / "cache", 10**9)
    for _ in range(2):
        assert kept.read_tensors(source, source.add(1))["step"] == 1
    assert len(source.reads) == 2


def test_a_copy_that_can_only_be_read_is_used(tmp_path):
    """As by a guest, or from a read-only mount; root may do anything, so the calls are refused."""
    source, kept = Source(), CheckpointCache(tmp_path, 10**9)
    file = source.add(1)
    kept.read_tensors(source, file)
    code = """
import os, pathlib, sys
def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith(sys.argv[1]):
        if arguments[2] & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "read-only", arguments[0])
sys.addaudithook(refuse)
from pipefit.store.backend import StoredFile
from pipefit.store.cache import CheckpointCache
kept = CheckpointCache(pathlib.Path(sys.argv[1]), 10**9)
print(kept.read_tensors(None, StoredFile(sys.argv[2], int(sys.argv[3]), sys.argv[4]))["step"])
"""
    words = [sys.executable, "-c", code, tmp_path, file.id, str(file.size), file.sha256]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.fixture
def network_storage(monkeypatch):
    """Refuses what some network storage refuses: owners, times and modes that are set, locks."""
    import fcntl

    def refused(*arguments, **others):
        raise OSError(95, "Operation not supported")

    for name in ("utime", "chown", "lchown", "fchown", "chmod", "fchmod", "link", "fsync"):
        monkeypatch.setattr(os, name, refused)
    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, refused)


@pytest.mark.usefixtures("network_storage")
def test_neither_owners_nor_times_nor_locks_are_asked_for(tmp_path):
    source, kept = Source(), CheckpointCache(tmp_path, 2 * SIZE + 2000)
    files = [source.add(value) for value in range(4)]
    for file in [*files, *files[-2:]]:
        kept.read_tensors(source, file)

    assert len(source.reads) == 4 and len(copies(tmp_path)) == 2


def use(folder, seed):
    """Read checkpoints in some order; all must be right."""
    source, kept = Source(), CheckpointCache(folder, 3 * SIZE)
    files = [source.add(value) for value in range(8)]
    for value in np.random.default_rng(seed).integers(0, 8, 60).tolist():
        found = kept.read_tensors(source, files[value])
        assert found["step"] == value and found["w"][-1] == value


@pytest.mark.usefixtures("network_storage")
def test_many_processes_share_it_on_network_storage(tmp_path):
    processes = multiprocessing.get_context("fork")
    users = [processes.Process(target=use, args=(tmp_path, seed)) for seed in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()

    assert [user.exitcode for user in users] == [0] * 4
    assert not list(tmp_path.glob(".draft-*"))
    use(tmp_path, 9)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * SIZE
