"""The worker process, driven by hand; and the pieces it is made of."""

import io
import json
import logging
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipefit.errors import IdentityMismatch, LeaseLost, StoreError
from pipefit.execution import Event, reached
from pipefit.execution.channel import Printed
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.reporter import Reporter
from pipefit.records import Owner, RunOrder
from pipefit.store import this_process
from tests.execution.test_executors import DEAF, WAITING


def start(order, code=None):
    words = ["-c", code] if code else ["-m", "pipefit.execution.worker"]
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(order.to_json() + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["message"] == "waiting"
    return process


def outcome(process):
    code = process.wait(30)  # before the end of its input becomes another reason to stop
    last = json.loads(process.stdout.read().splitlines()[-1])
    assert last["event"] == "outcome", process.stderr.read()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    return code, last["error"], last["message"]


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda process: print("stop for lunch", file=process.stdin, flush=True), "for lunch"),
        (lambda process: process.stdin.close(), "the process that gave the order is gone"),
        (lambda process: process.send_signal(signal.SIGTERM), "SIGTERM"),
        (lambda process: process.send_signal(signal.SIGINT), "SIGINT"),
    ],
    ids=["line", "end", "SIGTERM", "SIGINT"],
)
def test_every_way_to_ask_for_a_stop_breaks_off_a_validation_with_code_75(validation, ask, reason):
    process = start(validation(WAITING))
    ask(process)
    code, error, message = outcome(process)
    assert (code, error) == (75, "Interrupted")
    assert message == f"broken off, nothing of it is stored: {reason}"


def test_a_deaf_worker_whose_parent_is_gone_ends_by_itself(validation):
    hurried = (
        "from pipefit.execution import channel\nfrom pipefit.execution.worker import __main__\n"
        "channel.GRACE = 0.5\n__main__.main()\n"
    )
    process = start(validation(DEAF), hurried)
    process.stdin.close()
    assert process.wait(30) == 75
    process.stdout.close()
    process.stderr.close()


def printed(*texts):
    """What is logged when these texts are written."""
    stream = io.StringIO()
    logger = logging.Logger("printed")
    logger.addHandler(logging.StreamHandler(stream))
    out = Printed(logger)
    for text in texts:
        assert out.write(text) == len(text)
    out.finish()
    return stream.getvalue().splitlines()


def test_printed_text_is_logged_in_whole_lines():
    assert printed("a", " ", "b", "\n", "c\n\nd") == ["a b", "c", "d"]
    assert printed("1/3\r2/3\r3/3\n", "  indented\n") == ["3/3", "  indented"]
    assert printed() == []
    assert printed("100 %s\n") == ["100 %s"]


def test_lines_of_several_threads_are_not_mixed_up():
    lines = []

    class Log:
        def info(self, template, line):
            lines.append(line)

    out = Printed(Log())
    barrier = threading.Barrier(4)

    def write(word):
        barrier.wait()
        for _ in range(200):
            for letter in word:
                out.write(letter)
            out.write("\n")

    words = ["aaaa", "bbbb", "cccc", "dddd"]
    threads = [threading.Thread(target=write, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines) == sorted(words * 200)


def test_a_reporter_tells_at_which_step_something_was_logged_and_keeps_the_last_lines():
    events = []
    ours, theirs = logging.getLogger("pipefit.some.part"), logging.getLogger("of.a.user")
    parent = logging.getLogger("pipefit")
    screen = logging.StreamHandler(io.StringIO())
    parent.addHandler(screen)
    try:
        with Reporter(events.append) as reporter:
            ours.info("building")
            reporter.step = 7
            theirs.warning("%s is odd", "this")
            logging.getLogger("luigi-interface").warning("pinging")
            for i in range(300):
                ours.debug("not shown")
                ours.info("line %d", i)
        ours.info("afterwards")
        assert parent.handlers[-1] is screen
    finally:
        parent.removeHandler(screen)
    assert events[:2] == [
        Event("log", {"level": logging.INFO, "message": "building", "step": None}),
        Event("log", {"level": logging.WARNING, "message": "this is odd", "step": 7}),
    ]
    assert len(events) == 302
    lines = reporter.tail().splitlines()
    assert len(lines) == 200 and lines[-1] == "INFO step 7: line 299"


def run_order(identity="same", steps=100, allow_change=()):
    parts = {"seed": 0 if identity == "same" else 1}
    return RunOrder("digits", "mlp", identity, parts, "{}", steps, allow_change)


def test_a_goal_is_reached_by_the_committed_checkpoint_of_that_step_only(store, make_run):
    assert not reached(store, run_order())
    make_run(steps=100)
    assert reached(store, run_order())
    assert not reached(store, run_order(steps=150))
    with pytest.raises(StoreError, match=r"train.steps = 50: .* at step 100, .* to 100 or more"):
        reached(store, run_order(steps=50))


def test_the_goal_of_another_experiment_is_refused_or_not_reached(store, make_run):
    make_run(steps=100)
    with pytest.raises(IdentityMismatch, match="seed: 0 -> 1"):
        reached(store, run_order("other"))
    assert not reached(store, run_order("other", allow_change=("seed",)))


def test_the_lease_is_kept_and_its_loss_is_told_once(store):
    order = run_order()
    writer = store.acquire(order, this_process(), ttl=0.9)
    lost = []
    with Heartbeat(writer, lambda: {"step": 3}, lost.append):
        time.sleep(1.5)
        assert store.lease("digits", "mlp").fence == writer.fence
    assert lost == [] and store.run("mlp", "digits").document()["progress"] == {"step": 3}

    while store.lease("digits", "mlp"):
        time.sleep(0.1)
    store.acquire(order, Owner("elsewhere", "scope", 1, 0.0), ttl=60)
    with Heartbeat(writer, lambda: None, lost.append):
        deadline = time.monotonic() + 10
        while not lost and time.monotonic() < deadline:
            time.sleep(0.05)
    [error] = lost
    assert isinstance(error, LeaseLost)


def test_a_fault_of_ours_does_not_leave_a_run_without_its_lease(store):
    writer = store.acquire(run_order(), this_process(), ttl=0.3)
    failed = []
    with Heartbeat(writer, lambda: {"step": object()}, failed.append):
        deadline = time.monotonic() + 10
        while not failed and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(failed) == 1
