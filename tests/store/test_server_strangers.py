"""What another user of this machine can do to the embedded server, and to whoever starts one.

As root the other user is a process with another uid. Who is not root cannot become anybody else:
then what protects from others is looked at, the modes of files.
"""

import functools
import itertools
import os
import socket
import stat
import traceback
from pathlib import Path

import psutil
import pymongo
import pytest
from pymongo.errors import OperationFailure

from pipefit.errors import ServerError
from pipefit.store import server

NOBODY = 65534
ROOT = os.geteuid() == 0


def as_stranger(look):
    """What `look` returns (a text) in a process of another user; only root can do this."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            told = look()
        except BaseException:
            told = traceback.format_exc()
        os.write(writing, told.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return told


def refused(*deeds):
    """The names of what was not refused to this process."""
    done = []
    for name, deed in deeds:
        try:
            deed()
        except (PermissionError, ServerError):
            continue
        done.append(name)
    return done


def listed(folder):
    return list(folder.iterdir())


@pytest.fixture
def running(pipefit_home):
    """The URI of a server whose folder lies where everybody may go."""
    uri = server.ensure_running()
    pipefit_home.parent.chmod(0o755)
    return uri


def test_another_user_gets_at_nothing_of_a_running_server(running, pipefit_home):
    process = psutil.Process(server.status().pid)
    root = pipefit_home / "mongod"
    files = list(root.rglob("*"))
    folders = {root, *(path for path in files if path.is_dir())}
    opened = [
        (str(path), functools.partial(listed, path) if path in folders else path.read_bytes)
        for path in [root, *files]
    ]
    assert {"password", "mongod.log", "state.json", "WiredTiger"} <= {path.name for path in files}
    # Nobody else enters the folder, and that is enough.
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert not any(path.is_symlink() for path in files)
    assert root.stat().st_uid == os.geteuid() == process.uids().effective

    def look():
        deeds = [
            *opened,
            ("write", lambda: (root / "x").write_text("x")),
            ("rename", lambda: root.rename(root.with_name("taken"))),
            ("plant", (pipefit_home / "x").mkdir),
            ("environment", Path(f"/proc/{process.pid}/environ").read_bytes),
            ("memory", Path(f"/proc/{process.pid}/mem").read_bytes),
            ("files", functools.partial(listed, Path(f"/proc/{process.pid}/fd"))),
            ("kill", lambda: os.kill(process.pid, 15)),
            ("stop", server.stop),
            ("uri", server.ensure_running),
            ("status", server.status),
        ]
        return repr(refused(*deeds))

    if ROOT:
        assert as_stranger(look) == "[]"
    assert process.is_running()


def test_another_user_reads_no_password_where_everybody_may_read(running):
    password = running.split("@")[0].rpartition(":")[2]
    pid = server.status().pid

    def look():
        shown = []
        for place in Path("/proc").iterdir():
            for name in ("cmdline", "environ", "status", "comm"):
                try:
                    shown.append((place / name).read_bytes().decode("latin-1"))
                except OSError:
                    continue
        for path in Path("/tmp").iterdir():
            try:
                shown.append(path.read_bytes().decode("latin-1") if path.is_file() else "")
            except OSError:
                continue
        text = "\n".join(shown)
        return f"{'--auth' in text}, {password in text}"

    assert (as_stranger(look) if ROOT else look()) == "True, False"
    own = "\n".join([*psutil.Process(pid).cmdline(), *psutil.Process(pid).environ().values()])
    assert password not in own


def test_another_user_may_knock_and_is_not_let_in(running):
    status = server.status()
    process = psutil.Process(status.pid)
    listening = [c.laddr for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN]
    assert [tuple(address) for address in listening] == [("127.0.0.1", status.port)]
    with socket.socket() as outside:
        outside.settimeout(1)
        # Another address of this machine, as seen from elsewhere.
        assert outside.connect_ex(("127.0.0.2", status.port)) != 0
    with pymongo.MongoClient("127.0.0.1", status.port) as client:
        for database, command in (
            *itertools.product(("admin", "pipefit", "local"), ("listCollections", "usersInfo")),
            ("admin", "shutdown"),
            ("admin", "serverStatus"),
        ):
            with pytest.raises(OperationFailure, match="requires authentication"):
                client[database].command(command)
    wrong = running.replace("pipefit:", "pipefit:x")
    with pymongo.MongoClient(wrong) as client, pytest.raises(OperationFailure, match="Auth"):
        client.admin.command("ping")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A PIPEFIT_HOME that does not exist, and in which nothing is ever started."""
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("folder", ["home", "mongod"])
def test_a_folder_of_another_user_is_refused(home, monkeypatch, folder):
    place = home if folder == "home" else home / "mongod"
    place.mkdir(parents=True)
    if ROOT:
        os.chown(place, NOBODY, NOBODY)
    else:
        me = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: me)
    for call in (server.ensure_running, server.status, server.stop):
        with pytest.raises(ServerError, match=r"belongs to another user.*PIPEFIT_HOME"):
            call()
    assert [path for path in place.rglob("*") if path.is_file()] == []


def test_a_link_that_another_user_has_laid_is_refused(home, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    home.symlink_to(mine)
    server.status()  # one's own link is fine
    if ROOT:
        os.lchown(home, NOBODY, NOBODY)
        with pytest.raises(ServerError, match="belongs to another user"):
            server.ensure_running()
    home.unlink()
    # A link in the place of the folder of the server leads to whatever its maker likes.
    home.mkdir()
    (home / "mongod").symlink_to(mine)
    if ROOT:
        os.lchown(home / "mongod", NOBODY, NOBODY)
        with pytest.raises(ServerError, match="belongs to another user"):
            server.ensure_running()
    assert list(mine.iterdir()) == []


def test_a_home_that_is_no_folder_is_refused_without_advice_to_change_it(monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", "/dev/null")
    with pytest.raises(ServerError, match=r"^/dev/null is no folder: set PIPEFIT_HOME to one"):
        server.ensure_running()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
@pytest.mark.parametrize("folder", ["home", "mongod"])
def test_a_folder_to_which_others_may_write_is_refused(home, monkeypatch, folder, mode):
    monkeypatch.setattr(server, "_is_own_group", lambda group: False)
    place = home if folder == "home" else home / "mongod"
    place.mkdir(parents=True)
    place.chmod(mode)
    with pytest.raises(ServerError, match=rf"others may write to .*mode {mode:o}.*chmod go-w"):
        server.ensure_running()
    assert list(place.iterdir()) == []
    place.chmod(0o700)
    assert not server.status().running


def test_the_group_of_one_user_is_no_stranger():
    import grp
    import pwd

    name = pwd.getpwuid(os.geteuid()).pw_name
    alone = [group.gr_gid for group in grp.getgrall() if group.gr_name == name]
    assert all(server._is_own_group(group) for group in alone)
    assert not server._is_own_group(2**31 - 2)  # which nobody has
    others = [group.gr_gid for group in grp.getgrall() if group.gr_name != name]
    assert not any(server._is_own_group(group) for group in others)
