"""Addresses, errors of the connection, and the end of a process."""

import socket
import subprocess
import sys
import time

import pymongo.errors
import pytest
from actors import COLLECTION, order, reader, started

from pipefit.errors import StoreAccessDenied, StoreError, StoreFull, StoreUnavailable
from pipefit.store import client, open_store, this_process

PASSWORD = "s3cret"


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("mongodb://db.example.org", "mongodb://db.example.org/pipefit"),
        (f"mongodb://me:{PASSWORD}@host:27018/mine?authSource=admin", "mongodb://host:27018/mine"),
        (f"mongodb://me:{PASSWORD}@a,b:2/x?replicaSet=r", "mongodb://a,b:2/x"),
        (f"mongodb+srv://me:{PASSWORD}@c.example.org/x?w=1", "mongodb+srv://c.example.org/x"),
        ("mongodb://host?w=1", "mongodb://host/pipefit"),
        (f"mongodb://me:%40{PASSWORD}%2F@[::1]:27017/x", "mongodb://[::1]:27017/x"),
    ],
)
def test_an_address_is_shown_without_user_and_password(uri, shown):
    store = open_store(uri)

    assert store.describe() == shown
    assert repr(store) == f"<MongoStore {shown}>"
    assert repr(store.connection) == f"<Connection {shown}>"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "localhost",
        f"http://me:{PASSWORD}@host/x",
        f"mongodb://me:{PASSWORD}/x@host/db",
        f"mongodb://me:1/{PASSWORD}@host",
        f"mongodb://me:@{PASSWORD}@host/db",
        f"mongodb://me:{PASSWORD}?x@host/db",
        f"mongodb://me:{PASSWORD}%x@host/db",
        f"mongodb://me:{PASSWORD}:x@host/db",
        f"mongodb://me:{PASSWORD}@host:port/db",
        f"mongodb://me:{PASSWORD}@host/db?tsl=true",
        f"mongodb://me:{PASSWORD}@host/db.collection",
        f"mongodb://me:{PASSWORD}@host/a b",
    ],
)
def test_an_address_that_cannot_be_read_is_not_shown(uri):
    with pytest.raises(StoreError, match="connection string cannot be read") as error:
        open_store(uri)

    assert PASSWORD not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None


def test_a_server_that_is_not_there_is_named(database_uri):
    port = closed_port()
    options = "serverSelectionTimeoutMS=200"
    store = open_store(f"mongodb://me:{PASSWORD}@127.0.0.1:{port}/mine?{options}")

    for ask in (
        lambda: store.run("a", COLLECTION),
        lambda: store.statuses(COLLECTION, ["a"]),
        lambda: store.committed(COLLECTION, [("a", 1)]),
        lambda: store.validated(COLLECTION, [("a", "test", 1)]),
        lambda: store.summary(COLLECTION, "a", 1),
        lambda: store.lease(COLLECTION, "a"),
        store.collections,
        lambda: store.acquire(order(), this_process(), 1.0),
    ):
        with pytest.raises(StoreUnavailable) as error:
            ask()
        message = str(error.value)
        assert message.startswith(
            f"mongodb://127.0.0.1:{port}/mine cannot be reached: 127.0.0.1:{port}: [Errno 111] "
            "Connection refused; start the server (Pipefit's own: pipefit db start"
        )
        assert len(message) < 300


@pytest.mark.parametrize(
    ("named", "advice"),
    [
        ("mongodb://me:secret@far.example.org/x", "or set PIPEFIT_MONGO_URI to another one"),
        ("mongodb://near.example.org/x", "or correct the address where it is written"),
        ("file:/somewhere", "or correct the address where it is written"),
        ("embedded", "or correct the address where it is written"),
    ],
)
def test_what_to_do_depends_on_where_the_address_is_written(monkeypatch, named, advice):
    monkeypatch.setenv("PIPEFIT_MONGO_URI", named)
    connection = client.Connection("mongodb://far.example.org/x")
    raised = pytest.raises(StoreUnavailable, match=f"; start the server, {advice}$")
    with raised, connection.errors():
        raise pymongo.errors.AutoReconnect("gone")


def test_a_wrong_password_is_refused_and_not_shown(database_uri):
    scheme, _, rest = database_uri.partition("://")
    user = rest.partition(":")[0]
    store = open_store(f"{scheme}://{user}:{PASSWORD}@{rest.rpartition('@')[2]}")

    with pytest.raises(StoreAccessDenied, match="refuses access: Authentication failed") as error:
        store.statuses(COLLECTION, ["a"])
    assert PASSWORD not in str(error.value)
    assert PASSWORD not in str(error.value.__cause__)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (pymongo.errors.OperationFailure("out", 14031), StoreFull, "no disk space left: out"),
        (pymongo.errors.CursorNotFound("cursor id 7 not found", 43), StoreUnavailable, "cursor id"),
        (
            pymongo.errors.WriteError("WT_SESSION: No space left on device", 8),
            StoreError,
            "no disk space left",
        ),
        (
            pymongo.errors.BulkWriteError(
                {"writeErrors": [{"code": 14031, "errmsg": "available disk space is low"}]}
            ),
            StoreError,
            "no disk space left: available disk space is low",
        ),
        (
            pymongo.errors.BulkWriteError(
                {"writeConcernErrors": [{"code": 64, "errmsg": "waiting timed out"}]}
            ),
            StoreUnavailable,
            "cannot be reached: waiting timed out",
        ),
        (
            pymongo.errors.BulkWriteError(
                {"writeErrors": [{"code": 11602, "errmsg": "operation was interrupted"}]}
            ),
            StoreUnavailable,
            "cannot be reached: operation was interrupted",
        ),
        (pymongo.errors.ExecutionTimeout("too slow", 50), StoreUnavailable, "cannot be reached"),
        (pymongo.errors.BulkWriteError({}), StoreError, "failed: batch op errors"),
        (
            pymongo.errors.OperationFailure(
                "This MongoDB deployment does not support retryable writes. Please add ...", 20
            ),
            StoreUnavailable,
            "cannot be reached: connections broke while they were made",
        ),
        (pymongo.errors.WTimeoutError("waiting", 64), StoreUnavailable, "cannot be reached"),
        (pymongo.errors.NotPrimaryError("no primary"), StoreUnavailable, "cannot be reached"),
        (pymongo.errors.ConfigurationError("no such DNS name"), StoreUnavailable, "DNS name"),
        (pymongo.errors.DocumentTooLarge("17 MB"), StoreError, "failed: 17 MB"),
        (pymongo.errors.InvalidOperation("after close"), StoreError, "failed: after close"),
        (OverflowError("MongoDB can only handle up to 8-byte ints"), StoreError, "8-byte ints"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_no_error_of_the_driver_escapes(raised, kind, said):
    connection = client.Connection("mongodb://host/x")
    with pytest.raises(kind, match=f"^mongodb://host/x .*{said}") as error, connection.errors():
        raise raised
    assert error.value.__cause__ is raised


def test_values_that_mongodb_refuses_are_a_store_error(store):
    writer = started(store)
    for progress in ({"step": 2**70}, {"a\0b": 1}):
        with pytest.raises(StoreError):
            writer.renew(progress)


def test_reading_goes_on_while_connections_are_cut(store, proxy):
    started(store)
    far = open_store(proxy.uri)
    for sent in (1, 200, 400):
        proxy.cut_after = sent
        assert reader(far).status().name == "a"


def test_writing_goes_on_when_a_connection_breaks_while_it_is_made(store, proxy):
    writer = started(open_store(proxy.uri))
    refused = []

    def refuse_the_first(piece, sent):
        if b"saslSupportedMechs" in piece and not refused:  # not one of the driver's monitors
            refused.append(sent)
            raise ConnectionResetError

    proxy.watch = refuse_the_first
    proxy.cut_all()
    writer.renew({"step": 7})

    assert refused
    assert reader(store).document()["progress"]["step"] == 7


_SCRIPT = """
import atexit, sys, time
from pipefit.store import open_store
start = time.perf_counter()
open_store(sys.argv[1]).collections()
atexit.register(lambda: print("asked in", time.perf_counter() - start, flush=True))
"""


def script(*arguments, code=_SCRIPT):
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_ends_without_waiting_and_without_a_word(database_uri):
    process = script(database_uri)
    assert process.stdout.readline().startswith("asked in")
    asked = time.perf_counter()
    _, errors = process.communicate()

    assert (process.returncode, errors) == (0, "")
    # The driver's own hook alone would take about 0.5 s, a server that is gone 10 s.
    assert time.perf_counter() - asked < 5.0


def test_a_process_ends_without_waiting_for_a_server_that_is_gone(proxy):
    code = _SCRIPT.replace("flush=True)", "flush=True) or sys.stdin.readline()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, proxy.uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("asked in")
    proxy.down()
    asked = time.perf_counter()
    process.communicate("\n")

    assert process.returncode == 0
    assert time.perf_counter() - asked < 5.0  # server selection would take 10 s


def test_the_hook_of_other_clients_is_left_alone(database_uri):
    code = """
import atexit, sys
import pymongo
from pymongo.synchronous import monitor
from pipefit.store import client, open_store
other = pymongo.MongoClient(sys.argv[1])
other.admin.command("ping")
open_store(sys.argv[1]).collections()
left = []
client.atexit.unregister = left.append
client._close_clients()
assert left == [], left
other.close()
del other
open_store(sys.argv[1]).collections()
client._close_clients()
assert left == [monitor._shutdown_resources], left
"""
    process = script(database_uri, code=code)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_importing_the_store_leaves_pandas_and_tensorflow_out():
    code = "import sys, pipefit.store; print({'pandas', 'keras', 'tensorflow'} & set(sys.modules))"
    output, errors = script(code=code).communicate()

    assert (output.strip(), errors) == ("set()", "")
