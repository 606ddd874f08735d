"""The embedded database: one mongod per user and PIPEFIT_HOME, started when it is first needed.

It is for one machine; several machines share a real MongoDB through PIPEFIT_MONGO_URI.

    uri = ensure_running()      # mongodb://pipefit:PASSWORD@127.0.0.1:PORT/pipefit?authSource=admin
    status().running            # True
    stop()                      # True: it ran

Everything is in the folder `mongod` of PIPEFIT_HOME, which only its owner can enter:

    data/          the database
    mongod.log     its log
    password       exists if and only if the user with that password exists in data/
    state.json     pid, port and version of the server that runs, or ran last
    lock           held while somebody starts or stops it

A start, under the lock:

    end a server that nobody recorded           # its starter was killed half way
    if there is no password yet:
        write password.new
        start on a unix socket in a private folder, without authentication
        create the user with that password, or set the password of the one that is there
        shut down
        rename password.new to password         # the commit
    start on 127.0.0.1 with authentication
    write state.json                            # from here on others find it

Whenever that is killed, the next call begins again and ends in the same state.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipefit import settings
from pipefit.errors import ServerError
from pipefit.store import mongod

USER = "pipefit"
DATABASE = "pipefit"

#: Seconds to wait for another process that starts or stops the server.
LOCK_TIMEOUT = mongod.START_TIMEOUT + mongod.STOP_TIMEOUT

_SOCKET = "mongod.sock"
_PORT_TRIES = 5
_PATIENCE = 5.0  # seconds; with a data folder that another server holds
_LOG_LIMIT = 20_000_000  # bytes; a longer log becomes mongod.log.1 at the next start

_OPTIONS = (
    *("--networkMessageCompressors", "disabled"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
    *("--wiredTigerCacheSizeGB", "0.5"),
    "--quiet",
    "--nounixsocket",
)
_WITH_AUTHENTICATION = (
    "--auth",
    *("--setParameter", "enableLocalhostAuthBypass=false"),
    *("--bind_ip", "127.0.0.1"),
)


@dataclass(frozen=True)
class ServerStatus:
    """What is known of the embedded server.

    Attributes:
        running: whether it runs.
        pid: its process, if it runs.
        port: its port on 127.0.0.1, if it runs.
        dbpath: the folder of its data.
        version: of mongod, if it runs.
        uri_redacted: its URI without the password, if it runs.
        log: its log file.
    """

    running: bool
    pid: int | None
    port: int | None
    dbpath: Path
    version: str | None
    uri_redacted: str | None
    log: Path


@dataclass(frozen=True)
class _State:
    pid: int
    port: int
    version: str


@dataclass(frozen=True)
class _Files:
    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.root / "mongod.log"

    @property
    def password(self) -> Path:
        return self.root / "password"

    @property
    def state(self) -> Path:
        return self.root / "state.json"


def ensure_running() -> str:
    """The URI, with the password, of the embedded server, which is started unless it runs.

    Raises:
        ServerError: there is no mongod, it cannot run here, or it ended at start; or somebody else
            owns the folder, or may write to it.
    """
    files = _files()
    state = _running(files)
    if state is None:
        with _exclusive(files):
            state = _running(files) or _start(files)
    return _uri(state.port, files.password.read_text(encoding="utf-8"))


def stop() -> bool:
    """Shut the server down cleanly; False if it did not run.

    Raises:
        ServerError: it does not end.
    """
    files = _files()
    if not files.root.exists():
        return False
    with _exclusive(files):
        return _end(files)


def status() -> ServerStatus:
    """Whether and where the server runs; starts nothing and writes nothing."""
    files = _files()
    state = _running(files)
    if state is None:
        return ServerStatus(False, None, None, files.data, None, None, files.log)
    uri = _uri(state.port, "***")
    return ServerStatus(True, state.pid, state.port, files.data, state.version, uri, files.log)


def _files() -> _Files:
    home = settings.home()
    # Resolved: the server is recognised by the path of its data, and that must be one path.
    files = _Files(home.resolve() / "mongod")
    for folder in (home, files.root):
        _refuse_foreign(folder)
    return files


def _uri(port: int, password: str) -> str:
    return f"mongodb://{USER}:{password}@127.0.0.1:{port}/{DATABASE}?authSource=admin"


def _running(files: _Files) -> _State | None:
    """The recorded server if it lives; no connection is made, so this is cheap."""
    state = _read_state(files)
    if state is None or not files.password.exists():
        return None
    return state if mongod.process_of(files.data, state.pid) else None


def _read_state(files: _Files) -> _State | None:
    try:
        return _State(**json.loads(files.state.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def _exclusive(files: _Files) -> Iterator[None]:
    """Make the folder and keep other processes from starting or stopping the server."""
    import filelock

    try:
        _prepare(files)
        with filelock.FileLock(files.root / "lock", timeout=LOCK_TIMEOUT):
            yield
    except filelock.Timeout as error:
        raise ServerError(
            f"another process holds {files.root / 'lock'} for over {LOCK_TIMEOUT:.0f} s; "
            "see what it waits for, or end it"
        ) from error
    except OSError as error:
        raise ServerError(_unusable(files.root, error)) from error


def _prepare(files: _Files) -> None:
    files.root.parent.mkdir(parents=True, exist_ok=True)
    # Nobody else may enter it, from its first moment on.
    files.root.mkdir(mode=0o700, exist_ok=True)
    files.root.chmod(0o700)
    files.data.mkdir(exist_ok=True)


def _refuse_foreign(folder: Path) -> None:
    """Raise `ServerError` if somebody else can change what is in this folder, or which it is.

    Root is no exception: whoever owns the folder of root's server could lead its files elsewhere.
    """
    me = os.geteuid()
    try:
        seen = os.lstat(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServerError(_unusable(folder, error)) from error
    target = folder.stat() if stat.S_ISLNK(seen.st_mode) and folder.exists() else seen
    if not stat.S_ISDIR(target.st_mode) and not stat.S_ISLNK(target.st_mode):
        raise ServerError(f"{folder} is no folder: set PIPEFIT_HOME to one, or to a new name")
    for owner in (seen.st_uid, target.st_uid):
        if owner != me:
            raise ServerError(
                f"{folder} belongs to another user (uid {owner}, you are {me}): set PIPEFIT_HOME "
                "to a folder of your own, or to one that does not exist yet"
            )
    writers = stat.S_IWOTH | (0 if _is_own_group(target.st_gid) else stat.S_IWGRP)
    if target.st_mode & writers:
        raise ServerError(
            f"others may write to {folder} (mode {stat.S_IMODE(target.st_mode):o}): "
            f"`chmod go-w {folder}`, or set PIPEFIT_HOME to a folder of your own"
        )


def _is_own_group(group: int) -> bool:
    """Whether it is the group that many systems make for one user alone."""
    import grp
    import pwd

    try:
        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _unusable(folder: Path, error: OSError) -> str:
    return (
        f"the embedded database cannot be kept in {folder} ({error.strerror or error}); "
        "set PIPEFIT_HOME to a folder that can be written, or PIPEFIT_MONGO_URI to a server"
    )


def _start(files: _Files) -> _State:
    _end(files)
    binary = mongod.find_binary(files.root)
    version = mongod.version(binary)
    if files.log.exists() and files.log.stat().st_size > _LOG_LIMIT:
        files.log.replace(files.log.with_name("mongod.log.1"))
    # Whoever deletes the data folder gets a new database; the old password is not in it.
    if not (files.password.exists() and (files.data / "WiredTiger").exists()):
        _set_up(binary, files)
    port = _start_on_tcp(binary, files)
    process = mongod.process_using(files.data)
    if process is None:
        raise ServerError(f"mongod ended right after its start; see {files.log}")
    state = _State(process.pid, port, version)
    _write_private(files.state, json.dumps(asdict(state)))
    return state


def _end(files: _Files) -> bool:
    """End the server, whether it is recorded or not."""
    process = mongod.process_using(files.data)
    if process is None:
        return False
    words = mongod.arguments_of(process)
    folders = [Path(word).parent for word in words if word.endswith(f"/{_SOCKET}")]
    mongod.terminate(process)
    for folder in folders:  # of a set-up that was killed
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _launch(binary: Path, files: _Files, *arguments: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            mongod.launch(binary, [*_OPTIONS, *arguments], data=files.data, log=files.log)
            return
        except mongod.ExitedAtStart as error:
            if error.code != mongod.FOLDER_IN_USE or time.monotonic() > deadline:
                raise
        # By a server that is just ending, or by one whose starter was killed a moment ago: that one
        # had not written its pid when we looked.
        _end(files)
        time.sleep(0.1)


def _start_on_tcp(binary: Path, files: _Files) -> int:
    """Start with authentication on a free port of the loopback interface; returns the port."""
    taken: ServerError | None = None
    for port in _ports(files):
        try:
            _launch(binary, files, *_WITH_AUTHENTICATION, "--port", str(port))
        except mongod.ExitedAtStart as error:
            if error.code != mongod.ADDRESS_IN_USE:
                raise
            taken = error  # by somebody who came between our look and mongod's
            continue
        return port
    raise ServerError(f"{_PORT_TRIES} free ports were taken before mongod had them") from taken


def _ports(files: _Files) -> Iterator[int]:
    """Ports to try; first the last one, so that clients of a server that died find it again."""
    last = _read_state(files)
    if last is not None and _free_port(last.port):
        yield last.port
    for _ in range(_PORT_TRIES):
        if port := _free_port(0):
            yield port


def _free_port(port: int) -> int | None:
    """`port` if it is free on the loopback interface; 0 stands for any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return None
        return int(probe.getsockname()[1])


def _set_up(binary: Path, files: _Files) -> None:
    """Create the user through a unix socket that nobody else can reach."""
    files.password.unlink(missing_ok=True)
    password = secrets.token_urlsafe(32)
    draft = files.root / "password.new"
    _write_private(draft, password)
    folder = Path(tempfile.mkdtemp(prefix="pipefit-", dir=_folder_for_sockets()))
    try:
        address = folder / _SOCKET
        _launch(binary, files, "--bind_ip", str(address))
        try:
            _set_password(address, password)
        finally:
            _end(files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    draft.replace(files.password)


def _folder_for_sockets() -> str:
    # A socket's path may have about 107 bytes, and mongod takes a comma for the end of an address.
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < 64 and "," not in usual else "/tmp"


def _set_password(address: Path, password: str) -> None:
    import pymongo
    from pymongo.errors import PyMongoError

    uri = f"mongodb://{quote(str(address), safe='')}"
    try:
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            known = client.admin.command("usersInfo", USER)["users"]
            command = "updateUser" if known else "createUser"
            client.admin.command(command, USER, pwd=password, roles=["root"])
    except PyMongoError as error:
        raise ServerError(f"the embedded mongod refuses to create its user: {error}") from error


def _write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
