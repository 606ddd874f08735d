"""What Luigi's web page shows of a running training, and the message it can send there."""

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.pipelines.conftest import kill, worker_of


class Page:
    """A luigid, asked as its page asks it."""

    def __init__(self, port: int):
        self.port = port

    def ask(self, method: str, **arguments: object):
        query = urllib.parse.urlencode({"data": json.dumps(arguments)})
        address = f"http://127.0.0.1:{self.port}/api/{method}?{query}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["response"]

    def running(self) -> dict[str, dict]:
        return self.ask("task_list", status="RUNNING", upstream_status="")


@pytest.fixture
def page(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    luigid = Path(sys.executable).parent / "luigid"
    words = [luigid, "--address", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "luigid.log").open("w") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield Page(port)
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_for(condition):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except OSError:  # luigid does not listen yet
            pass
        time.sleep(0.1)
    raise AssertionError("not in time")


@pytest.fixture
def training(page, job):
    """A training under this luigid that takes longer than any test, and its process."""
    wait_for(lambda: page.running() == {})
    trained = job(**{"train.steps": 1_000_000, "save.validate_every": 0})
    scheduler = ("--scheduler-host", "127.0.0.1", "--scheduler-port", str(page.port))
    process = trained.start("Train", *scheduler)
    try:
        yield trained, process
    finally:
        if process.poll() is None:
            kill(worker_of(process), process)


def test_the_page_shows_how_far_a_training_is_and_stops_it(page, training, environment):
    trained, process = training

    def shown():
        return {
            key: task
            for key, task in page.running().items()
            if task["name"] == "Train" and "left" in str(task.get("status_message"))
        }

    [(key, task)] = wait_for(shown).items()
    log = Path(environment["PIPEFIT_HOME"], "logs/jobs/run/worker.log")
    assert task["tracking_url"] == log.as_uri() and log.exists()
    assert "/1000000 (" in task["status_message"] and "examples/s" in task["status_message"]
    percent = page.ask("get_task_progress_percentage", task_id=key)["progressPercentage"]
    assert 0 < percent < 100
    assert task["accepts_messages"], "without this the page has no button for messages"

    def send(content: str) -> str:
        sent = {"worker": task["worker_running"], "task": key, "content": content}
        answer = {"task_id": key, **page.ask("send_scheduler_message", **sent)}
        return wait_for(lambda: page.ask("get_scheduler_message_response", **answer)["response"])

    assert send("go faster") == "'go faster' is not known; there is: stop"
    assert send("stop") == "checkpointing and stopping"
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 30, output
    status = trained.reader.status()
    assert status.state == "INTERRUPTED" and "page" in status.reason
    assert 0 < status.step < 1_000_000
    assert trained.reader.metrics().index.tolist() == list(range(1, status.step + 1))
