"""With a luigid: what its page shows of a run, and that the run can be stopped from there."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.pipelines.conftest import LUIGI

STEPS = {"train.steps": 20_000, "save.validate_every": 0, "save.recent_every": 100}


class Scheduler:
    """A luigid on the loopback interface, asked as its web page asks it."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.words = ("--scheduler-host", "127.0.0.1", "--scheduler-port", str(self.port))
        words = ["--address", "127.0.0.1", "--port", str(self.port)]
        words += ["--state-path", str(folder / "state.pickle"), "--logdir", str(folder)]
        self.process = subprocess.Popen(
            [LUIGI.with_name("luigid"), *words], cwd=folder, stderr=subprocess.DEVNULL
        )

    def ask(self, method, **values):
        data = urllib.parse.urlencode({"data": json.dumps(values)}).encode()
        address = f"http://127.0.0.1:{self.port}/api/{method}"
        with urllib.request.urlopen(address, data, timeout=10) as answer:
            return json.load(answer)["response"]

    def wait_until_ready(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.ask("task_list", status="RUNNING", upstream_status="")
            except urllib.error.URLError:
                assert time.monotonic() < deadline and self.process.poll() is None
                time.sleep(0.1)

    def wait_for_task(self, family, fulfils, status="RUNNING"):
        """The task of this family, once it fulfils a condition: its id and what is shown."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            tasks = self.ask("task_list", status=status, upstream_status="")
            for name, task in tasks.items():
                if task["name"] == family and fulfils(task):
                    return name, task
            time.sleep(0.1)
        raise AssertionError(f"no such task: {tasks}")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    running = Scheduler(tmp_path_factory.mktemp("luigid"))
    running.wait_until_ready()
    yield running
    running.process.terminate()
    running.process.wait(30)


def see_and_stop(job, scheduler, *command):
    """What the page shows of a run, and that it is stopped from there; its status then."""
    process = job.start(*command)
    name, shown = scheduler.wait_for_task(
        "Train",
        lambda task: "left" in (task["status_message"] or ""),
    )
    assert shown["accepts_messages"]
    told = re.fullmatch(
        rf"jobs/{job.changes['name']} step (\d+)/20000 \((\d+) %\), loss [\d.e-]+, "
        r"[\d,]+ examples/s, [\d:]+ left",
        shown["status_message"],
    )
    assert told, shown
    assert 0 < int(told[1]) < 20_000 and 0 < shown["progress_percentage"] < 100
    assert shown["tracking_url"].startswith("file://")
    assert Path(shown["tracking_url"].removeprefix("file://")).name == "worker.log"
    assert Path(shown["tracking_url"].removeprefix("file://")).exists()

    other = scheduler.ask(
        "send_scheduler_message", worker=shown["worker_running"], task=name, content="faster"
    )
    sent = scheduler.ask(
        "send_scheduler_message", worker=shown["worker_running"], task=name, content="stop"
    )
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 30, output
    assert "Traceback" not in output
    status = job.reader.status()
    assert status.state == "INTERRUPTED" and "stop was sent from" in status.reason
    assert status.reason in output
    assert job.reader.metrics().index.tolist() == list(range(1, status.step + 1))
    answers = [
        scheduler.ask("get_scheduler_message_response", task_id=name, message_id=m["message_id"])
        for m in (other, sent)
    ]
    assert "is not known" in answers[0]["response"]
    assert answers[1]["response"] == "checkpointing and stopping"
    return status


def test_the_page_shows_a_run_and_stops_it_and_the_same_command_finishes_it(shared_job, scheduler):
    job = shared_job(name="paged", **STEPS)
    command = ("Train", *scheduler.words)
    status = see_and_stop(job, scheduler, *command)

    steps = status.step + 50
    job.run(*command, **{"train.steps": steps})
    _, done = scheduler.wait_for_task(
        "Train", lambda task: str(steps) in task["params"]["set"], "DONE"
    )
    assert done["progress_percentage"] == 100
    assert job.reader.status().state == "FINISHED"
    assert [attempt.start for attempt in job.reader.attempts()] == [-1, status.step]


def test_so_it_does_a_run_of_two_luigi_processes(shared_job, scheduler):
    job = shared_job(name="paged2", **STEPS)
    see_and_stop(job, scheduler, "Train", "--workers", "2", *scheduler.words)


def test_a_scheduler_that_goes_away_stops_no_training(job, tmp_path):
    leaving = Scheduler(tmp_path)
    leaving.wait_until_ready()
    config = tmp_path / "luigi.cfg"
    config.write_text("[core]\nrpc-retry-attempts = 2\nrpc-retry-wait = 1\n")
    alone = job(**{**STEPS, "train.steps": 6000})
    alone.environment = {**alone.environment, "LUIGI_CONFIG_PATH": str(config)}
    process = alone.start("Train", "--scheduler-url", f"http://127.0.0.1:{leaving.port}/")
    alone.wait_for_step(100, process)
    leaving.process.kill()
    leaving.process.wait()
    output, _ = process.communicate(timeout=120)

    assert process.returncode != 0  # Luigi could not tell anybody that the task is done
    assert "remote scheduler" in output and "; the training goes on" in output
    assert alone.reader.status().state == "FINISHED"
    assert alone.reader.status().step == 6000
