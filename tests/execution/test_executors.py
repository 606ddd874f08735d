"""What happens on this side of the boundary to the worker process."""

import os
import signal
import threading
import time

import psutil
import pytest

from pipefit.errors import DeviceError, Interrupted, NotFound, PipefitError, WorkerFailed
from pipefit.execution import InlineExecutor, LocalExecutor, Signalled, executor, log_path
from pipefit.spec import Spec

#: Waits for ever, but can be interrupted.
WAITING = "import time\nprint('waiting', flush=True)\nwhile True:\n    time.sleep(0.05)\n"

#: Cannot even be interrupted.
DEAF = """
import time
told = False
while True:
    try:
        if not told:
            told = True
            print('waiting', flush=True)
        time.sleep(1)
    except BaseException:
        pass
"""


def carry_out(order, on_event=lambda event: None, should_stop=lambda: None):
    """Carry out an order locally; the log lines that came back."""
    lines = []

    def see(event):
        if event.kind == "log":
            lines.append(event.values["message"])
        on_event(event)

    LocalExecutor().run(order, see, should_stop)
    return lines


def test_an_unknown_executor_is_refused_with_the_known_ones():
    with pytest.raises(PipefitError, match=r"executor = slurm: .* local, inline"):
        executor("slurm")


@pytest.mark.parametrize("kind", [LocalExecutor, InlineExecutor])
def test_errors_raised_on_purpose_come_back_as_they_were(order, kind):
    mixed = order(changes={"model.devices": ["cpu:0", "GPU-1"]})
    with pytest.raises(DeviceError, match="GPUs and CPUs cannot be mixed") as raised:
        kind().run(mixed, lambda event: None, lambda: None)
    assert "\n" not in str(raised.value)
    with pytest.raises(NotFound, match="'mlp'"):
        kind().run(order(kind="validate", step=3), lambda event: None, lambda: None)


def test_everything_else_is_a_failed_worker_with_its_traceback(order):
    with pytest.raises(WorkerFailed) as raised:
        carry_out(order("def f():\n    raise KeyError('no such thing')\nf()"))
    first, *rest = str(raised.value).splitlines()
    assert first == "the worker failed with KeyError: 'no such thing'"
    assert rest[0] == "Traceback (most recent call last):"
    assert any("tensorflow.py" in line for line in rest) and "in f" in "".join(rest)


def test_code_that_exits_is_a_failed_worker(order):
    with pytest.raises(WorkerFailed, match="failed with SystemExit: 3\n"):
        carry_out(order("import sys\nsys.exit(3)"))


@pytest.mark.parametrize(
    ("last", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed by SIGKILL \(by hand, or because"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("os._exit(3)", "ended with exit code 3"),
    ],
)
def test_a_worker_that_dies_leaves_its_last_words_in_the_log(order, last, how):
    dying = order(f"import os, signal\nos.write(2, b'last words\\n')\n{last}")
    log = log_path(dying)
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier worker\n")
    with pytest.raises(WorkerFailed, match=how) as raised:
        carry_out(dying)
    first, *tail = str(raised.value).splitlines()
    assert "type the same command to continue" in first and first.endswith(str(log))
    assert "of an earlier worker" not in tail
    # Of a crash in native code it tells where it was.
    assert tail[0] == "last words" or any("tensorflow.py" in line for line in tail)


def test_a_worker_that_is_killed_while_it_writes_an_event(order):
    writing = order(
        "import os, signal, stat\n"
        "for fd in range(3, 50):\n"
        "    try:\n"
        "        if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        '            os.write(fd, b\'{"event": "lo\')\n'
        "    except OSError:\n"
        "        pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(WorkerFailed, match="was killed by SIGKILL"):
        carry_out(writing)


def test_what_is_printed_becomes_log_lines_and_never_events(order):
    talking = order(
        "import os\n"
        "print('one', 'line')\n"
        'print(\'{"event": "outcome", "error": null}\')\n'
        "os.write(1, b'native output\\n')\n"
        "os.system('echo of a program')\n"
        "input()\n"
    )
    lines = []
    with pytest.raises(WorkerFailed, match="EOFError"):
        carry_out(talking, lambda event: lines.append(event.values.get("message")))
    assert lines == ["one line", '{"event": "outcome", "error": null}']
    log = log_path(talking).read_text()
    assert "native output\n" in log and "of a program\n" in log


def test_of_20_megabytes_of_log_nothing_is_lost(order):
    talking = order(
        "import sys\n"
        "for number in range(2000):\n"
        "    print(f'{number} ' + 'x' * 10_000)\n"
        "raise KeyError('over')\n"
    )
    lines = []
    with pytest.raises(WorkerFailed, match="KeyError"):
        carry_out(talking, lambda event: lines.append(event.values.get("message")))
    kept = log_path(talking).with_name("run.log").read_text().splitlines()
    expected = [f"{number} {'x' * 10_000}" for number in range(2000)]
    assert lines[:2000] == expected
    assert [line.split(" INFO: ", 1)[1] for line in kept[:2000]] == expected
    # A full disk, say, stops nothing.
    log_path(talking).with_name("run.log").unlink()
    log_path(talking).with_name("run.log").mkdir()
    with pytest.raises(WorkerFailed, match="KeyError"):
        carry_out(order("print('one line')\nraise KeyError('over')"))


def test_processes_that_the_worker_leaves_neither_hold_us_up_nor_stay(order, tmp_path):
    leaving = order(
        "import os, pathlib, subprocess, sys, time\n"
        "sleeping = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "started = [subprocess.Popen(sleeping).pid, os.fork()]\n"
        "if not started[1]:\n"
        "    time.sleep(600)\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(' '.join(map(str, started)))\n"
        "os._exit(3)\n"
    )
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match="exit code 3"):
        carry_out(leaving)
    assert time.monotonic() - begin < 30
    left = [
        psutil.Process(int(pid))
        for pid in (tmp_path / "pids").read_text().split()
        if psutil.pid_exists(int(pid))
    ]
    deadline = time.monotonic() + 5
    while [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_that_is_asked_for_is_handed_on_with_its_reason(validation):
    waiting = threading.Event()
    with pytest.raises(Interrupted, match="nothing of it is stored: lunch") as raised:
        carry_out(
            validation(WAITING),
            lambda event: waiting.set(),
            lambda: "lunch" if waiting.is_set() else None,
        )
    assert not isinstance(raised.value, Signalled)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_stop_and_the_handlers_come_back(validation, number):
    before = signal.getsignal(number)
    sent = []

    def send_once(event):
        if not sent:
            sent.append(os.kill(os.getpid(), number))

    with pytest.raises(Signalled, match=signal.Signals(number).name):
        carry_out(validation(WAITING), send_once)
    assert signal.getsignal(number) == before


def test_the_second_signal_does_not_wait_for_a_deaf_worker(validation):
    workers = []

    def send(event):
        workers[:] = [p for p in psutil.Process().children() if "worker" in " ".join(p.cmdline())]
        os.kill(os.getpid(), signal.SIGINT)

    begin = time.monotonic()
    # The first event is what it prints, the second that it is asked to stop.
    with pytest.raises(Signalled, match="SIGINT again: ended at once"):
        carry_out(validation(DEAF), send)
    assert time.monotonic() - begin < 30
    assert len(workers) == 1 and not workers[0].is_running()


def test_what_fails_where_events_are_shown_ends_the_worker(validation):
    def fail(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        carry_out(validation(WAITING), fail)
    assert not [p for p in psutil.Process().children() if "worker" in " ".join(p.cmdline())]


def test_a_signal_while_the_worker_ends_well_is_not_forgotten(order, make_run, store):
    make_run(steps=100)
    done = order(changes={"train.steps": 100})
    # The run is the one of this experiment, so there is nothing left to do for the worker.
    identity = Spec.from_json(done.spec).identity
    runs = store.connection.database["digits.runs"]
    runs.update_one({"_id": "mlp"}, {"$set": {"identity": identity}})
    carry_out(done)

    sent = []

    def send_once():
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(Signalled, match="SIGTERM"):
        LocalExecutor().run(done, lambda event: None, send_once)


def test_it_works_in_a_thread_that_cannot_have_signals(order):
    raised = []

    def run():
        try:
            carry_out(order("import os\nos._exit(4)"))
        except WorkerFailed as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert "exit code 4" in raised[0]


def test_a_log_that_cannot_be_written_is_told(order, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "file"))
    with pytest.raises(WorkerFailed, match=r"worker\.log: the worker's log cannot be written"):
        carry_out(order())


def test_the_password_is_in_no_command_line(validation, database_uri):
    password = database_uri.partition("@")[0].rpartition(":")[2]
    seen = []

    def look(event):
        for process in psutil.Process().children(recursive=True):
            seen.extend(process.cmdline())

    stops = iter([None, None, "seen"])
    with pytest.raises(Interrupted):
        carry_out(validation(WAITING), look, lambda: next(stops, "seen") if seen else None)
    assert any("pipefit.execution.worker" in word for word in seen)
    assert not [word for word in seen if password in word]
