"""Connections to MongoDB, and the one place where the driver's errors become Pipefit's.

    connection = Connection("mongodb://user:secret@db.example.org/pipefit")
    connection.shown                        # "mongodb://db.example.org/pipefit"
    connection.database["digits.runs"]      # connects when the first operation needs it

There is one client per process and URI. It is made when it is first needed, so a fork never
carries one over that is used, and it is closed when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

import bson.errors
import pymongo
from bson.codec_options import CodecOptions
from pymongo import errors
from pymongo.database import Database
from pymongo.read_concern import ReadConcern
from pymongo.synchronous import monitor
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from pipefit import settings
from pipefit.errors import StoreAccessDenied, StoreError, StoreFull, StoreUnavailable

Document = dict[str, Any]

DEFAULT_DATABASE = "pipefit"

#: Durable on a majority: what was acknowledged is never rolled back.
DURABLE = WriteConcern("majority", j=True, wtimeout=60_000)

#: The same without waiting for the disk; for bytes that only a later durable write makes visible.
REPLICATED = WriteConcern("majority", j=False, wtimeout=60_000)

#: Bytes free below which a disk is called full: mongod wants more for its journal.
_FULL = 64 * 2**20

_DEFAULTS = {
    "appName": "pipefit",
    "serverSelectionTimeoutMS": 10_000,
    "socketTimeoutMS": 120_000,
}
_TRIES = 3
_DENIED = {13, 18, 8000}  # Unauthorized, AuthenticationFailed, AtlasError
_NO_SPACE = {14031}  # OutOfDiskSpace
_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
_LOOPBACK = "mongodb://127.0.0.1:"
_NO_TLS = "SSL handshake failed"
_NO_TLS_ADVICE = "if the server does not speak TLS, leave tls=true out of the URI"
# When a connection breaks while it is made, the driver (from 4.17 on) repeats a write with a number
# that only replica sets take. A single server refuses it, so nothing was done.
_NUMBERED = 20, "does not support retryable writes"
# No majority within its timeout; and what a member answers that is no longer the primary, shuts
# down, or waits for an election, or takes longer than the URI lets it: later it may be done.
_NOT_NOW = {64, 6, 7, 50, 89, 91, 133, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Connection:
    """One database of one server, for whichever process asks.

    Args:
        uri: a mongodb:// or mongodb+srv:// URI; its path names the database.

    Raises:
        StoreError: the URI cannot be parsed.
    """

    def __init__(self, uri: str) -> None:
        self._address = _parse(uri)

    def __repr__(self) -> str:
        return f"<Connection {self.shown}>"

    @property
    def shown(self) -> str:
        """The URI without user, password and options."""
        return self._address.shown

    @property
    def database(self) -> Database[Document]:
        """The database, on this process's client: durable writes, reads that are never undone."""
        return _client(self._address).get_database(
            self._address.database,
            codec_options=CodecOptions(tz_aware=True, tzinfo=UTC),
            # Whatever the URI prefers: an old answer of a secondary would restart a finished run.
            read_preference=pymongo.ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=DURABLE,
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what the driver raises into Pipefit's errors."""
        try:
            yield
        except (
            *(errors.PyMongoError, bson.errors.BSONError),
            *(OverflowError, UnicodeEncodeError),  # numbers and texts that BSON cannot hold
        ) as error:
            raise _translated(error, self.shown) from error


class HasConnection(Protocol):
    """What `guarded` methods belong to."""

    @property
    def connection(self) -> Connection:
        """The connection the method uses."""


_S = TypeVar("_S", bound=HasConnection)
_Method = Callable[Concatenate[_S, _P], _T]


def guarded(method: _Method[_S, _P, _T]) -> _Method[_S, _P, _T]:
    """Decorate a method that may be repeated: lost connections are retried, errors translated."""

    @functools.wraps(method)
    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.connection.errors():
            return retrying()(method, self, *args, **kwargs)

    return call


def retrying() -> Retrying:
    """Repeats what a lost connection interrupted, at most twice.

    The driver itself repeats reads once, and writes only on replica sets. A server that cannot be
    found at all has been waited for already.
    """
    return Retrying(
        retry=retry_if_exception(_is_lost_connection),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )


def _is_lost_connection(error: BaseException) -> bool:
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return False
    # A server that was started again does not know the cursors of before.
    lost = errors.AutoReconnect | errors.CursorNotFound
    return isinstance(error, lost) or _is_numbered(error)


def _is_numbered(error: BaseException) -> bool:
    code, words = _NUMBERED
    return isinstance(error, errors.OperationFailure) and error.code == code and words in str(error)


def _translated(error: Exception, shown: str) -> StoreError:
    code, reason = _code(error), _reason(error)
    if code in _DENIED:
        return StoreAccessDenied(
            f"{shown} refuses access: {reason}; check the user, the password, authSource and the "
            "user's roles"
        )
    if code in _NO_SPACE or "No space left" in reason or "OutOfDiskSpace" in reason:
        return StoreFull(
            f"{shown} has no disk space left: {reason}; free some on the server, then type the "
            "same command again"
        )
    if _NOT_TRUSTED in reason:
        # Not "unavailable": to wait for it would not help.
        return StoreError(
            f"{shown} is not trusted: {reason}; if it is the right server, name the certificate of "
            "the authority that signed its own in the URI: tls=true&tlsCAFile=FILE"
        )
    if _is_numbered(error):
        reason = "connections broke while they were made"
    # Of a URI that has been read already only the name service can still be a configuration error.
    unreachable = errors.ConnectionFailure | errors.ConfigurationError | errors.CursorNotFound
    if isinstance(error, unreachable) or code in _NOT_NOW or _is_numbered(error):
        advice = _NO_TLS_ADVICE if _NO_TLS in reason else _advice(shown)
        return StoreUnavailable(f"{shown} cannot be reached: {reason}; {advice}")
    return StoreError(f"{shown} failed: {reason}")


def _advice(shown: str) -> str:
    """What to do about a server that does not answer; a mongod whose disk is full ends itself."""
    named, home = settings.mongo_uri(), settings.home()
    if named == settings.EMBEDDED and shown.startswith(_LOOPBACK):
        if home.is_dir() and shutil.disk_usage(home).free < _FULL:
            return f"the disk of {home} is full: free some space, then type the same command again"
        return (
            "start the server (Pipefit's own: pipefit db start; if it runs and does not answer, "
            "pipefit db stop first), or set PIPEFIT_MONGO_URI to another one"
        )
    if named.startswith("mongodb") and _parse(named).shown == shown:
        return "start the server, or set PIPEFIT_MONGO_URI to another one"
    return "start the server, or correct the address where it is written"


def _code(error: Exception) -> int | None:
    if isinstance(error, errors.BulkWriteError):
        code: int | None = _first_failure(error).get("code")
        return code
    return getattr(error, "code", None)


def _reason(error: Exception) -> str:
    """The first words of the driver's message, without its topology dump and command document."""
    words = str(error)
    if isinstance(error, errors.BulkWriteError):
        words = _first_failure(error).get("errmsg", words)
    text = " ".join(words.split())
    for noise in (" (configured timeouts", ", Timeout: ", ", Topology Description", ", full error"):
        text = text.partition(noise)[0]
    return text[:300] or type(error).__name__


def _first_failure(error: errors.BulkWriteError) -> Mapping[str, Any]:
    failures = [*error.details.get("writeErrors", []), *error.details.get("writeConcernErrors", [])]
    return failures[0] if failures else {}


@dataclass(frozen=True)
class _Address:
    """A connection string, read: `server` is the URI to connect to, with all its secrets."""

    server: str
    database: str
    shown: str
    options: frozenset[str]

    def __repr__(self) -> str:
        return self.shown


def _parse(uri: str) -> _Address:
    scheme, _, rest = uri.partition("://")
    location, _, query = rest.partition("?")
    authority, _, path = location.partition("/")
    # A password with an unescaped slash can leave "host:port/rest-of-it@host" and be well formed.
    database = _database_name(uri) if "@" not in path else None
    if database is None or "." in path:
        raise _unreadable(uri)
    options = frozenset(key.lower() for key, _ in parse_qsl(query))
    return _Address(
        # The users are those of authSource, else of the database; so several databases of a server
        # can share one client.
        server=f"{scheme}://{authority}/?{query}" if "authsource" in options else uri,
        database=database,
        shown=f"{scheme}://{authority.rpartition('@')[2]}/{database}",
        options=options,
    )


def _database_name(uri: str) -> str | None:
    """The database the URI names, or the default; None if the driver cannot read the URI."""
    try:
        # As a plain URI, because for mongodb+srv:// the driver asks the name service right here.
        parsed = parse_uri(uri.replace("mongodb+srv://", "mongodb://", 1), warn=False)
    except OSError as error:  # of TLS: a file is not there
        raise _unusable_file(error) from None
    except (errors.PyMongoError, ValueError, TypeError):
        return None
    return parsed["database"] or DEFAULT_DATABASE


def _unreadable(uri: str) -> StoreError:
    """The error for a URI; as the driver quotes what it cannot read, it never sees the password."""
    reason = ""
    try:
        parse_uri("mongodb://" + uri.partition("://")[2].rpartition("@")[2], warn=False)
    except (errors.PyMongoError, ValueError, TypeError) as error:
        reason = f" ({_reason(error)})"
    return StoreError(
        f"the MongoDB connection string cannot be read{reason}: write "
        "mongodb://USER:PASSWORD@HOST:PORT/DATABASE, and any of / : @ ? % in the user's name or "
        "the password as %2F %3A %40 %3F %25"
    )


_clients: dict[tuple[int, str], pymongo.MongoClient[Document]] = {}
_inherited: list[pymongo.MongoClient[Document]] = []
_lock = threading.Lock()


def _client(address: _Address) -> pymongo.MongoClient[Document]:
    """The client of this process for a server."""
    defaults: dict[str, Any] = {
        key: value for key, value in _DEFAULTS.items() if key.lower() not in address.options
    }
    key = (os.getpid(), address.server)
    with _lock:
        if key not in _clients:
            try:
                _clients[key] = pymongo.MongoClient(address.server, **defaults)
            except OSError as error:  # ssl.SSLError is one
                raise _unusable_file(error) from None
        return _clients[key]


def _unusable_file(error: OSError) -> StoreError:
    return StoreError(
        f"a file that the MongoDB connection string names cannot be read: {error.strerror or error}"
        "; check tlsCAFile and tlsCertificateKeyFile: certificates and keys as PEM, absolute paths"
    )


def _forget_clients() -> None:
    """In the child of a fork: the parent's clients are kept, so that nothing touches them."""
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()
    _inherited.extend(_clients.values())
    _clients.clear()


def _close_clients() -> None:
    """At exit: close this process's clients, and do not wait for their sleeping threads."""
    ours = list(_clients.values())
    _clients.clear()
    # Closing tells the server to end the sessions; a server that is gone is not waited for.
    with pymongo.timeout(0.5):
        for client in ours:
            client.close()
    # The driver's own hook joins its monitor threads, which notice the end only after a sleep of
    # up to 0.5 s. They are daemons and their client is closed, so nothing is lost by not waiting,
    # unless somebody else's client is still open.
    others = getattr(pymongo.MongoClient, "_clients", None)
    hook = getattr(monitor, "_shutdown_resources", None)
    known = {id(client) for client in (*ours, *_inherited)}
    if hook and others is not None and all(id(other) in known for other in others.values()):
        atexit.unregister(hook)


os.register_at_fork(after_in_child=_forget_clients)
atexit.register(_close_clients)
