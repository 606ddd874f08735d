"""The store in a folder: the contract, many processes, and how large and fast it is."""

import json
import multiprocessing
import os
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from actors import (
    COLLECTION,
    ELSEWHERE,
    PERMANENT,
    acquire,
    block,
    dead_process,
    images,
    living_process,
    reader,
    started,
    state,
    validation,
)
from contract import StoreContract

from pipefit.errors import LeaseLost, PipefitError, RunOwned
from pipefit.records import MetricBlock, RunState
from pipefit.store import open_store
from pipefit.store.local import disk
from pipefit.store.local.versions import Overtaken


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "results").as_uri())


class TestLocalStore(StoreContract):
    pass


def files_of(store, name="a"):
    return store._backend(COLLECTION).files_of(name)


def in_children(actions):
    """What forked children, which begin at the same time, return."""
    processes = multiprocessing.get_context("fork")
    barrier, answers = processes.Barrier(len(actions)), processes.SimpleQueue()

    def live(action):
        barrier.wait()
        try:
            answers.put(action())
        except PipefitError as error:
            answers.put(type(error).__name__)
        except BaseException:
            answers.put(traceback.format_exc())
        barrier.wait()  # an owner lives until all have asked

    children = [processes.Process(target=live, args=(action,)) for action in actions]
    for each in children:
        each.start()
    got = [answers.get() for _ in children]
    for each in children:
        each.join()
    return got


@pytest.mark.parametrize("exists", [False, True], ids=["new run", "run of a dead owner"])
def test_of_sixteen_processes_that_want_a_run_one_gets_it(store, exists):
    if exists:
        acquire(store, owner=dead_process(), ttl=3600.0)
    got = in_children([lambda: acquire(store).fence] * 16)

    assert sorted(map(str, got)) == [str(1 + exists)] + ["RunOwned"] * 15
    assert len(reader(store).attempts()) == 1 + exists


def test_processes_may_write_side_by_side(store):
    def train(name):
        writer = started(store, name)
        for step in range(10, 60, 10):
            writer.write_metrics(block(step - 9, step))
            writer.commit(step, state(step), PERMANENT)
        return len(reader(store, name).metrics())

    started(store).commit(10, state(10.0), PERMANENT)

    def report(number):
        for _ in range(5):
            store.put_artifact(COLLECTION, "a", "report", 10, str(number).encode() * 1000)
            store.commit_validation(
                COLLECTION, "a", reader(store).checkpoint(), validation(10, accuracy=number)
            )
        return 50

    names = ["a/b", "sweep/1", "sweep/2"]
    got = in_children([*(partial(train, n) for n in names), partial(report, 1), partial(report, 2)])

    assert got == [50] * 5
    assert sorted(store.runs()["name"]) == ["a", *names]
    assert reader(store).artifact("report") in (b"1" * 1000, b"2" * 1000)
    assert reader(store).validations()["accuracy"].item() in (1.0, 2.0)


def test_a_reader_sees_every_moment_whole(store):
    writer = started(store)
    writer.commit(10, state(10.0), PERMANENT)
    reader(store).metrics()  # pandas is loaded

    def write():
        for step in range(11, 61):
            writer.write_metrics(block(step, step))
            writer.note({"event": "step"})
            writer.commit(step, state(step), frozenset({"recent"}))
            writer.retain({writer.checkpoints()[1].id: frozenset({"recent"})})
        return "done"

    def read():
        run, looks = reader(store), 0
        while run.status().step < 60:
            step = int(run.weights()["step"])
            document = run.document()
            assert step <= document["committed"]["step"]
            assert len(document["history"]) >= document["committed"]["step"] - 10
            assert len(run.metrics()) >= step - 10
            assert 1 <= len(run.checkpoints()) <= 3
            looks += 1
        return "done" if looks else "too late"

    assert in_children([write, read, read]) == ["done"] * 3


def test_a_writer_carried_over_a_fork_writes_beside_its_parent(store):
    writer = started(store)
    writer.write_metrics(block(1, 10))
    child = partial(writer.write_metrics, block(11, 20, value=-1.0))
    assert in_children([child]) == [None]
    writer.write_metrics(block(21, 30))
    assert in_children([child, partial(writer.write_metrics, block(31, 40))]) == [None] * 2

    expected = [*range(1, 11), *[-1] * 10, *range(21, 41)]
    assert list(reader(store).metrics()["loss"]) == expected


def test_the_clock_of_the_files_decides_who_owns_a_run(store, monkeypatch):
    real = time.time
    acquire(store, owner=ELSEWHERE, ttl=30.0)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)  # the clock of this host is wrong
    with pytest.raises(RunOwned):
        acquire(store)
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    newest = files_of(store).versions.newest()
    path = files_of(store).place.document / f"{newest.number}.json"
    os.utime(path, (newest.written - 40, newest.written - 40))

    assert acquire(store).fence == 2


def test_an_owner_of_this_host_that_lives_keeps_its_run_until_its_lease_runs_out(store):
    with living_process() as (_, owner):
        writer = acquire(store, owner=owner, ttl=0.2)
        with pytest.raises(RunOwned):
            acquire(store)
        time.sleep(0.25)
        assert acquire(store).fence == 2
        with pytest.raises(LeaseLost, match="took it over"):
            writer.renew()


def test_a_number_that_is_free_again_gives_nobody_the_run(store):
    sleeper = started(store, owner=ELSEWHERE, ttl=0.05)
    versions = files_of(store).versions
    seen = versions.newest()
    time.sleep(0.1)
    successor = started(store)
    for _ in range(20):
        successor.renew()

    assert not (versions.folder / f"{seen.number + 1}.json").exists()
    with pytest.raises(Overtaken):
        versions.publish(seen, {**seen.document, "state": "FINISHED"})
    with pytest.raises(LeaseLost):
        sleeper.renew()
    assert reader(store).status().state is RunState.RUNNING
    successor.renew()


def test_an_answer_that_a_file_server_lost_does_not_matter(store, monkeypatch):
    writer = started(store)
    link = os.link

    def lost(source, target, **others):
        link(source, target, **others)
        link(source, target, **others)  # as NFS does it when it asks again

    monkeypatch.setattr(os, "link", lost)
    writer.commit(10, state(10.0), PERMANENT)

    assert reader(store).status().step == 10


def test_documents_stay_small_however_long_the_run(store):
    columns = ("loss", "accuracy", "rate", "norm", "time")
    start = -1
    for attempt in range(25):
        writer = started(store, start=start)
        first = start + 1
        steps = np.arange(first, first + 50_000, dtype=np.float64)
        writer.write_metrics(MetricBlock(first, dict.fromkeys(columns, steps)))
        writer.write_validation(validation(first + 40_000))
        start = first + 40_000
        writer.commit(start, state(attempt), PERMANENT)
        writer.end(RunState.INTERRUPTED, "asked to stop", start, "log " * 100_000)

    place = files_of(store).place
    for folder in (place.document, place.stories):
        assert max(path.stat().st_size for path in folder.iterdir()) < 20_000
    assert len(list(place.document.iterdir())) < 10
    assert len(list(place.stories.iterdir())) == 1
    table = reader(store).metrics()
    np.testing.assert_array_equal(table.index, np.arange(len(table)))
    np.testing.assert_array_equal(table["time"], table.index)
    assert [len(attempt.log_tail) for attempt in reader(store).attempts()] == [64_000] * 25


def test_logs_of_attempts_that_no_longer_count_are_removed(store):
    started(store).write_metrics(block(1, 10))
    for attempt in range(2, 6):
        again = acquire(store, owner=ELSEWHERE) if attempt < 2 else take(store)
        again.begin(-1)
        again.write_metrics(block(1, 10, value=attempt))
        again.write_validation(validation(10))

    assert len(list(files_of(store).place.logs.iterdir())) == 2
    assert set(reader(store).metrics()["loss"]) == {5.0}


def take(store):
    """The run, as after its owner has died."""
    versions = files_of(store).versions
    newest = versions.newest()
    versions.publish(newest, {**newest.document, "lease": None})
    return acquire(store)


def test_only_the_bytes_of_what_is_asked_for_are_read(store, monkeypatch):
    big = {f"layer{i}/kernel": np.full(262_144, i, np.float32) for i in range(8)}
    writer = started(store)
    writer.commit(7, big, PERMANENT)
    writer.write_metrics(images(1, 2000))  # 5 MB, in the log
    read = counted_reads(monkeypatch)

    found = reader(store).weights(include="^layer3/")
    np.testing.assert_array_equal(found["layer3/kernel"], big["layer3/kernel"])
    assert read() < 1.3e6
    assert reader(store).metrics().shape == (2000, 1)
    reader(store).checkpoints()
    store.runs()
    assert read() < 0.3e6


def counted_reads(monkeypatch):
    """How many bytes this process has read since it was asked last."""
    last = 0

    def total():
        text = Path("/proc/self/io").read_text()
        return int(text.split("rchar: ")[1].split()[0])

    def since():
        nonlocal last
        now = total()
        done, last = now - last, now
        return done

    since()
    return since


def test_a_million_steps_of_ten_metrics_are_a_table_in_seconds(store):
    writer = started(store)
    steps = np.arange(1, 1_000_001)
    columns = {f"m{i}": (steps * i).astype(np.float32 if i % 2 else np.int64) for i in range(10)}
    for first in range(0, 1_000_000, 50_000):
        part = {name: values[first : first + 50_000] for name, values in columns.items()}
        writer.write_metrics(MetricBlock(first + 1, part))

    begin = time.perf_counter()
    table = reader(store).metrics()
    seconds = time.perf_counter() - begin

    assert seconds < 5.0  # a quarter of a second on a machine that does nothing else
    np.testing.assert_array_equal(table.index, steps)
    for name, values in columns.items():
        np.testing.assert_array_equal(table[name], values)


def test_other_programs_can_read_what_is_stored(store):
    from safetensors.numpy import load_file

    writer = started(store)
    writer.renew({"loss": float("nan")})
    info = writer.commit(10, state(1.0), PERMANENT)
    writer.write_validation(validation(10, accuracy=0.5))

    place = files_of(store).place
    assert load_file(place.checkpoints / info.id)["step"] == 1
    newest = max(place.document.iterdir(), key=lambda path: int(path.stem))
    document = json.loads(newest.read_text(), parse_constant=pytest.fail)
    assert (document["state"], document["committed"]["step"]) == ("RUNNING", 10)
    (log,) = place.logs.glob("validation-*.log")
    assert json.loads(log.read_text().splitlines()[0])["metrics"] == {"accuracy": 0.5}


def test_a_file_system_without_hard_links_is_refused(store, monkeypatch):
    def refused(*arguments, **others):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(PipefitError, match=r"has no hard links .*keep the store on another one"):
        acquire(store)
    assert not [name for name in disk.names_in(store.root.path) if not name.startswith(".")]
