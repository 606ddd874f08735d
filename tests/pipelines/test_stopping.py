"""However the luigi command is ended, its worker ends too, and the same command continues."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time

import psutil
import pytest

from tests.pipelines.conftest import ROOT, kill

STEPS = {"train.steps": 20_000, "save.validate_every": 1000, "save.recent_every": 50}

# In place of TensorFlow, so that a worker hangs; it has a child as well.
HANGING = """
import os, pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["HANGS"]).touch()
while True:
    time.sleep(1)
"""


def processes_of(process):
    luigi = psutil.Process(process.pid)
    children = luigi.children(recursive=True)
    return [luigi, *(p for p in children if p.status() != psutil.STATUS_ZOMBIE)]


def assert_gone(processes, seconds):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive


def status_of(job):
    return job.store.statuses("jobs", [job.changes["name"]])[job.changes["name"]]


def test_with_two_luigi_processes_a_worker_ends_with_them_and_the_next_command_continues(
    shared_job,
):
    job = shared_job(name="two", **STEPS)
    warned = "error:MongoClient opened before fork"
    job.environment = {**job.environment, "PYTHONWARNINGS": warned}
    two = ("Train", "--workers", "2")

    process = job.start(*two)
    job.wait_for_step(50, process)
    everybody = processes_of(process)
    assert len(everybody) == 3
    kill(process)
    assert_gone(everybody, 10)
    process.stdout.close()
    first = status_of(job)
    assert first.state == "INTERRUPTED" and "scheduling process is gone" in first.reason

    process = job.start(*two)
    job.wait_for_step(first.step + 50, process)
    everybody = processes_of(process)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 75, output
    assert "Traceback" not in output
    assert "type the same command to continue" in output
    assert_gone(everybody, 0)
    stopped = status_of(job)
    assert stopped.state == "INTERRUPTED" and stopped.reason.endswith("as asked: SIGTERM")

    steps = stopped.step + 50
    job.run(*two, **{"train.steps": steps})
    assert status_of(job).state == "FINISHED"
    assert job.reader.metrics().index.tolist() == list(range(1, steps + 1))


class Terminal:
    """A process on a terminal of its own, which it controls."""

    def __init__(self, words, cwd, environment):
        self._terminal, slave = pty.openpty()
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)
        self.output = ""

    def wait_for(self, pattern, seconds=90):
        """Until this was printed since the last time."""
        deadline = time.monotonic() + seconds
        begin = len(self.output)
        while not re.search(pattern, self.output[begin:]):
            assert time.monotonic() < deadline and self.process.poll() is None, self.output
            self._read(0.2)

    def type(self, text):
        os.write(self._terminal, text.encode())

    def finish(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.output
            self._read(0.1)
        while self._read(0):
            pass
        os.close(self._terminal)
        return self.process.returncode

    def _read(self, seconds):
        if not select.select([self._terminal], [], [], seconds)[0]:
            return False
        try:
            self.output += os.read(self._terminal, 65536).decode()
        except OSError:  # its last process has ended
            return False
        return True


def test_on_a_terminal_there_is_one_bar_and_control_c_checkpoints(shared_job):
    job = shared_job(name="seen", **{**STEPS, "save.validate_every": 50})
    terminal = Terminal(job.words("Train"), job.cwd, job.environment)
    terminal.wait_for(r"\rjobs/seen: +\d+%\|.*/20000 \[.*, loss [\d.]+, [\d,]+ examples/s\]")
    terminal.type("\x03")
    code = terminal.finish()

    assert code == 75, terminal.output
    stopped = status_of(job)
    assert stopped.state == "INTERRUPTED" and "SIGINT" in stopped.reason
    assert "Traceback" not in terminal.output
    lines = terminal.output.replace("\r\n", "\n").split("\n")
    # A log line stands alone: the bar was cleared before it and is drawn anew below.
    said = [re.split(r"\r|\x1b\[A", line)[-1] for line in lines if ": test: loss" in line]
    assert said and all(line.startswith("INFO: jobs/seen step ") for line in said), said
    # The bar is drawn over and over on one line, which ends when it is closed.
    ended = [line for line in lines if line.rstrip().endswith("examples/s]")]
    assert len(ended) == 1, ended
    assert "step 1/" not in terminal.output  # no plain lines as well


@pytest.mark.parametrize(
    ("how", "workers"), [("control-C", "1"), ("control-C", "2"), ("SIGTERM", "2")]
)
def test_a_worker_that_hangs_is_killed_by_the_second_signal(job, tmp_path, how, workers):
    (tmp_path / "tensorflow.py").write_text(HANGING)
    config = tmp_path / "my.toml"
    config.write_text((ROOT / "configs/digits_mlp.toml").read_text())
    archive = ROOT / "configs/archives/optdigits.tar.gz"
    hung = job(str(config), **{"archives.digits.url": archive})
    hung.environment = {**hung.environment, "HANGS": str(tmp_path / "hangs")}
    terminal = Terminal(hung.words("Train", "--workers", workers), hung.cwd, hung.environment)
    terminal.wait_for("running   Train")
    while not (tmp_path / "hangs").exists():
        time.sleep(0.05)  # until the timeout of the test
    everybody = processes_of(terminal.process)
    assert len(everybody) == 3 + (workers == "2")

    stop = (lambda: terminal.type("\x03")) if how == "control-C" else terminal.process.terminate
    stop()
    terminal.wait_for("asked to checkpoint and stop")
    begin = time.monotonic()
    stop()
    code = terminal.finish(10)

    assert code == 75, terminal.output
    assert "Traceback" not in terminal.output
    assert_gone(everybody, 2)
    assert time.monotonic() - begin < 5
