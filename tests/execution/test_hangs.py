"""Nothing hangs for ever, and what is slow but lives is left alone."""

import logging
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf

from pipefit.errors import DataError, StepTimeout
from pipefit.execution import InlineExecutor
from pipefit.execution.watchdog import Watchdog, stacks
from pipefit.training import Feed
from tests.execution.lab_runs import ROOT, Worker, builder, carry_out, experiment, order

#: Long enough for a step to be compiled on a busy machine.
LIMIT = 8.0


def hanging(name, **tables):
    return experiment(name=name, train={"step_timeout": LIMIT}, **tables)


def set_of(source):
    return {"test": {"data": {**source, "batch_size": 8}}}


HANGING = {
    # In `take`, after some batches; in a generator; in the loss; where a validation reads, in the
    # middle of a training or afterwards.
    "source": {"data": {"train": builder("points", hang_after=6, batch_size=8)}},
    "generator": {"data": {"train": builder("stream", hang_after=30, batch_size=8)}},
    "loss": {"loss": builder("growing", hang_at=3.0)},
    "validation": {
        "validation": set_of(builder("points", name="seen", hang_after=2)),
        "save": {"validate_every": 2, "recent_every": 1},
    },
    "validate": {"validation": set_of(builder("points", name="seen", hang_after=2))},
}


@pytest.fixture(scope="module")
def ends(mongo_uri):
    """How workers end that hang in different places: code, outcome, processes, run, seconds."""
    from pipefit.store import open_store
    from tests.pipelines.conftest import _new_database

    with _new_database(mongo_uri) as uri:
        store = open_store(uri)
        specs = {name: hanging(name, **tables) for name, tables in HANGING.items()}
        carry_out(specs["validate"], uri)
        details = {"validate": {"kind": "validate", "validation": "test", "step": 12}}
        workers = {n: Worker(spec, uri, **details.get(n, {})) for n, spec in specs.items()}
        family = {
            name: [p := psutil.Process(worker.process.pid), *p.children(recursive=True)]
            for name, worker in workers.items()
        }
        yield {
            name: (*worker.end(), family[name], store.run(name, "lab"))
            for name, worker in workers.items()
        }


@pytest.mark.parametrize("where", HANGING)
def test_what_hangs_ends_the_run_with_an_error_that_names_thread_and_stack(ends, where):
    code, outcome, processes, run = ends[where]
    assert code == 1 and outcome["error"] == "StepTimeout"
    first, *rest = outcome["message"].splitlines()
    assert first.startswith("no step was finished in the last ")
    assert f"train.step_timeout = {LIMIT:g}: something hangs" in first
    # The stack of the thread that hangs ends in the tests' own function.
    threads = "\n".join(rest).split("Thread ")
    hung, *_ = [thread for thread in threads if "lab.py" in thread]
    assert "in hang\n" in hung
    name = hung.splitlines()[0]
    assert name.startswith("data-reader-" if where != "loss" else "0x"), name
    assert any(thread.startswith("MainThread:") for thread in threads)

    assert not [process for process in processes if process.is_running()]
    status = run.status()
    if where == "validate":
        assert status.state == "FINISHED" and status.step == 12
        return
    assert status.state == "FAILED" and status.reason == first
    [attempt] = run.attempts()
    assert "in hang" in attempt.log_tail and attempt.ended is not None
    if where == "validation":
        assert status.step == 1  # what was saved before is there


def free_source(free):
    """What waits for a source is freed by closing it, and fails in its own way."""
    free.set()


def interrupted(free):
    """What waits in Python otherwise."""


@pytest.mark.parametrize("how", [free_source, interrupted])
def test_inline_it_is_an_error_as_well(database_uri, monkeypatch, how):
    """In a process that is not its own to end."""
    before = signal.getsignal(signal.SIGINT)
    free = threading.Event()

    def perform(order, reporter, should_stop, give_up):
        def hangs():
            give_up(StepTimeout("no step was finished"))
            how(free)

        threading.Thread(target=hangs, daemon=True).start()
        free.wait(20)
        raise DataError("closed while a batch was read")

    monkeypatch.setattr("pipefit.execution.executors._INTERRUPT_SECONDS", 0.2)
    monkeypatch.setattr("pipefit.execution.worker.perform", perform)
    begin = time.monotonic()
    with pytest.raises(StepTimeout, match="no step was finished"):
        InlineExecutor().run(order(experiment(), database_uri), lambda event: None, lambda: None)
    assert time.monotonic() - begin < 10
    assert signal.getsignal(signal.SIGINT) == before


class TestWatchdog:
    """With a limit of a fraction of a second, and no training."""

    def watched(self, work, limit=0.4, **options):
        """What it gave up with, if it did."""
        given_up = []
        done = threading.Event()

        def give_up(error):
            given_up.append(error)
            done.set()

        with Watchdog(limit, give_up, **options) as watchdog:
            work(watchdog, done)
        return given_up

    def test_as_long_as_work_goes_on_it_may_take_much_longer_than_the_limit(self):
        def work(watchdog, done):
            for _ in range(20):
                assert not done.wait(0.05)
                watchdog.alive()

        assert self.watched(work) == []

    def test_work_that_it_is_not_told_of_is_seen_by_its_pulse(self):
        skipped = []

        def work(watchdog, done):
            for i in range(20):
                assert not done.wait(0.05)
                skipped.append(i)

        assert self.watched(work, pulse=lambda: len(skipped)) == []

    def test_it_gives_up_once(self):
        def work(watchdog, done):
            assert done.wait(5)
            time.sleep(0.5)

        [error] = self.watched(work, limit=0.1, pulse=lambda: "always the same")
        assert isinstance(error, StepTimeout)
        assert "in test_it_gives_up_once" in str(error) and "Thread MainThread:" in str(error)

    def test_before_that_it_warns_of_what_takes_far_longer_than_usual(self, monkeypatch, caplog):
        monkeypatch.setattr("pipefit.execution.watchdog._LONG_SECONDS", 0.1)

        def work(watchdog, done):
            for _ in range(10):
                time.sleep(0.01)
                watchdog.alive()
            time.sleep(0.5)

        with caplog.at_level(logging.WARNING, "pipefit.run"):
            assert self.watched(work, limit=1.0) == []
        [record] = caplog.records
        first, *rest = record.getMessage().splitlines()
        assert first.startswith("no step was finished in the last 0 s, none took more than 0.")
        assert first.endswith("the run is ended after 1 s (train.step_timeout)")
        assert any("in test_before_that_it_warns" in line for line in rest)


def iterable(gate):
    class Gated:
        def __iter__(self):
            for i in range(40):
                if i == 12:
                    gate.wait(30)
                yield {"x": np.full(2, i, "float32")}

    return Gated()


def dataset(gate):
    def number(i):
        if i == 12:
            gate.wait(30)
        return np.float32(i)

    numbers = tf.data.Dataset.range(40).map(lambda i: tf.numpy_function(number, [i], tf.float32))
    return numbers.map(lambda x: {"x": tf.fill([2], tf.ensure_shape(x, []))})


@pytest.mark.parametrize("stream", [iterable, dataset])
def test_how_far_a_stream_is_skipped_is_seen_from_outside(stream):
    gate = threading.Event()
    feed = Feed(stream(gate), seed=0, batch_size=4)
    got = []
    reading = threading.Thread(
        target=lambda: got.append(next(feed.iterator(20))["x"].numpy()), daemon=True
    )
    reading.start()
    deadline = time.monotonic() + 20
    while feed.skipped < 12:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert feed.skipped == 12 and not got
    gate.set()
    reading.join(20)
    assert feed.skipped == 20 and got[0][:, 0].tolist() == [20, 21, 22, 23]
    feed.close()


def test_threads_of_others_are_shown_while_they_call_python():
    seen = []

    def look():
        return tf.numpy_function(lambda: seen.append(inside()) or 0, [], tf.int64)

    def inside():
        caught = []
        thread = threading.Thread(target=lambda: caught.append(stacks()), name="looking")
        thread.start()
        thread.join()
        return caught[0]

    tf.function(look)()
    assert "in inside" in seen[-1]


STUCK = """
import os, sys, threading, time
from pipefit.execution.worker import __main__ as worker

def perform(order, reporter, should_stop, give_up):
    print("waiting", flush=True)
    sys.stdin.close()
    # The giver of the order reads nothing any more, and a thread has filled the pipe.
    threading.Thread(target=lambda: [print("x" * 1000) for _ in range(1000)], daemon=True).start()
    time.sleep(0.5)
    threading.Thread(target=give_up, args=(worker.Interrupted("over"),)).start()
    time.sleep(600)

worker.perform = perform
worker._OUTCOME_SECONDS = 0.5
worker.main()
"""


def test_a_worker_ends_even_if_nobody_reads_what_it_tells(database_uri):
    worker = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    print(order(experiment(), database_uri).to_json(), file=worker.stdin, flush=True)
    try:
        assert worker.wait(30) == 75
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
