"""The place of one round: a database, a way to it, a home, and the command as a user types it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from pipefit.store import Store, open_store, server
from tests.faults.variants import LEASE, Variant
from tests.store.proxy import Proxy

ROOT = Path(__file__).parent.parent.parent
_LUIGI = Path(sys.executable).parent / "luigi"
_MARK = "PIPEFIT_FAULTS_ROUND"
_WORKER = "pipefit.execution.worker"

#: Short, so that an outage of some seconds is not all waiting.
_TIMEOUTS = "&serverSelectionTimeoutMS=3000&socketTimeoutMS=3000"


class Bench:
    """Nothing of it is shared with another round, and nothing of it outlives the context.

    Args:
        folder: holds everything.
        variant: which job is typed.

    Attributes:
        proxy: between the job and its database.
        uri: of the database itself.
        store: the database, not through the proxy and without copies of checkpoints.
        command: that was typed last.
        sent: the signals that it was sent.
    """

    command: subprocess.Popen[bytes]

    def __init__(self, folder: Path, variant: Variant):
        self.folder, self._variant = folder, variant
        os.environ["PIPEFIT_HOME"] = str(folder / "home")  # of `server`, too
        self._mark = uuid.uuid4().hex
        self._typed = 0
        self.sent: set[signal.Signals] = set()

    def __enter__(self) -> Bench:
        (self.folder / "luigi.cfg").write_text(f"[execution]\nlease_seconds = {LEASE}\n")
        try:
            self.uri = server.ensure_running()
            self.store: Store = open_store(self.uri, cache=False)
            self.proxy = Proxy(self.uri + _TIMEOUTS)
        except BaseException:
            self.stop_mongod()
            raise
        return self

    def type(self) -> None:
        """Type the command; what it prints goes into a file of its own."""
        words = " ".join(f"{key}={value}" for key, value in self._variant.changes.items())
        command = [_LUIGI, "--module", "pipelines", "TrainAndValidate", "--local-scheduler"]
        command += ["--config", str(self._variant.config), *(["--set", words] if words else [])]
        self._typed += 1
        self.sent = set()
        with self._output.open("wb") as output:
            self.command = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PIPEFIT_MONGO_URI": self.proxy.uri,
                    "LUIGI_CONFIG_PATH": str(self.folder / "luigi.cfg"),
                    _MARK: self._mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _output(self) -> Path:
        return self.folder / f"command-{self._typed:02}.txt"

    @property
    def printed(self) -> str:
        """By the command that was typed last."""
        return self._output.read_text("utf-8", "replace")

    def is_there(self, who: str) -> bool:
        """Whether there is somebody to be struck; see `Kind.needs`."""
        if who == "trainer":
            return self._trainer() is not None
        return who != "luigi" or self._output.stat().st_size > 0

    def signal_luigi(self, number: signal.Signals) -> None:
        """To the command that was typed last, unless it has ended."""
        if self.command.poll() is None:
            self.sent.add(number)
            self.command.send_signal(number)

    def signal_trainer(self, number: signal.Signals) -> None:
        """To the worker process of that command, whatever it does, unless it has ended."""
        trainer = self._trainer()
        with contextlib.suppress(psutil.NoSuchProcess):
            if trainer is not None:
                trainer.send_signal(number)

    def _trainer(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.command.pid).children(recursive=True):
                if _WORKER in " ".join(child.cmdline()):
                    return child
        return None

    def signal_mongod(self, number: signal.Signals) -> None:
        """To the server, unless it has ended; waits for the end of one that is killed."""
        pid = server.status().pid
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None:
                mongod = psutil.Process(pid)
                mongod.send_signal(number)
                if number is signal.SIGKILL:
                    mongod.wait(30)

    def stop_mongod(self) -> None:
        """Shut the server down as its owner does."""
        self.signal_mongod(signal.SIGCONT)  # or it would not hear of it
        server.stop()

    def start_mongod(self) -> None:
        """Start the server again; its old port may be somebody else's by now."""
        self.uri = server.ensure_running()
        self.proxy.server = ("127.0.0.1", server.status().port)

    def heal(self) -> None:
        """Undo whatever a fault may have left."""
        self.proxy.watch = self.proxy.cut_after = self.proxy.cut_answers_after = None
        self.proxy.delay = 0.0
        self.proxy.up()
        self.signal_mongod(signal.SIGCONT)
        self.start_mongod()
        self.continue_all()

    def processes(self) -> Iterator[psutil.Process]:
        """All that descend from commands typed here, whoever their parents are by now."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    yield process

    def continue_all(self) -> None:
        """Let those that are stopped go on."""
        self._send(signal.SIGCONT)

    def left_running(self, seconds: float) -> list[str]:
        """What does not end by itself within this time."""
        deadline = time.monotonic() + seconds
        while left := [f"{p.pid} {' '.join(p.cmdline())[:100]}" for p in self.processes()]:
            if time.monotonic() > deadline:
                return left
            time.sleep(0.1)
        return []

    def spooled(self) -> list[str]:
        """What runs have kept in a folder because their database was away."""
        folder = self.folder / "home" / "spool"
        return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def __exit__(self, *exception: object) -> None:
        self._send(signal.SIGKILL)
        self.proxy.close()
        self.stop_mongod()
