"""A server behind TLS: trusted by the authority that the URI names, and by no other."""

import socket
import subprocess
import sys
import time

import pytest
import trustme
from actors import COLLECTION, PERMANENT, started, state

from pipefit.errors import StoreError, StoreUnavailable
from pipefit.store import mongod, open_store

PASSWORD = "s3cret"

_GUARD = """
import os, signal, sys
sys.stdin.readline()  # a word from the tests, or the end of their process
os.kill(int(sys.argv[1]), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Who signs the certificate of the server, and an authority that has nothing to do with it."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        made = trustme.CA()
        made.cert_pem.write_to_path(str(folder / f"{name}.pem"))
        if name == "ca":
            server = made.issue_cert("127.0.0.1")
            server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
            client = made.issue_cert("client@example.org")
            client.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return folder


@pytest.fixture(scope="module")
def port(authority, tmp_path_factory):
    """Where a server listens that speaks TLS only."""
    folder = tmp_path_factory.mktemp("mongod")
    (folder / "data").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--bind_ip", "127.0.0.1", "--port", str(port), "--nounixsocket"]
    words += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
    words += ["--wiredTigerCacheSizeGB", "0.25", "--tlsMode", "requireTLS"]
    words += ["--tlsCertificateKeyFile", str(authority / "server.pem")]
    words += ["--tlsCAFile", str(authority / "ca.pem"), "--tlsAllowConnectionsWithoutCertificates"]
    mongod.launch(mongod.find_binary(folder), words, data=folder / "data", log=folder / "log")
    process = mongod.process_using(folder / "data")
    # It ends with the tests, even if they are killed.
    guard = subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(process.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    yield port
    guard.communicate(b"\n", timeout=30)
    process.wait(10)


def uri(port, *options):
    wait = "serverSelectionTimeoutMS=1000"
    return f"mongodb://127.0.0.1:{port}/x?{'&'.join([*options, wait])}"


def test_the_authority_in_the_uri_is_trusted(port, authority):
    store = open_store(uri(port, "tls=true", f"tlsCAFile={authority / 'ca.pem'}"))
    started(store).commit(10, state(10.0), PERMANENT)

    assert store.run("a", COLLECTION).weights()["step"] == 10
    assert store.describe() == f"mongodb://127.0.0.1:{port}/x"


def test_a_certificate_of_ones_own_may_be_shown(port, authority):
    names = [f"tlsCAFile={authority / 'ca.pem'}"]
    names += [f"tlsCertificateKeyFile={authority / 'client.pem'}"]
    assert open_store(uri(port, "tls=true", *names)).statuses(COLLECTION, ["b"]) == {}


@pytest.mark.parametrize("option", ["tlsCAFile=other.pem", "", "tlsCAFile=ca.pem localhost"])
def test_a_server_that_is_not_trusted_is_refused_at_once(port, authority, option):
    option, _, host = option.partition(" ")
    option = option.replace("=", f"={authority}/")
    given = uri(port, "tls=true", *filter(None, [option]))
    if host:
        given = given.replace("127.0.0.1", "localhost")
    store = open_store(given.replace("://", f"://me:{PASSWORD}@"))
    begin = time.monotonic()
    with pytest.raises(StoreError) as error:
        store.statuses(COLLECTION, ["a"])

    assert not isinstance(error.value, StoreUnavailable)  # waiting would not help
    message = str(error.value)
    assert message.startswith(f"mongodb://{host or '127.0.0.1'}:{port}/x is not trusted: ")
    assert "tlsCAFile" in message and PASSWORD not in message and "\n" not in message
    assert len(message) < 500 and time.monotonic() - begin < 10


def test_speaking_tls_with_a_server_that_does_not_is_told(database_uri):
    host = database_uri.rpartition("@")[2].partition("/")[0]
    store = open_store(f"mongodb://{host}/x?tls=true&serverSelectionTimeoutMS=1000")
    with pytest.raises(StoreError, match=r"handshake failed.*leave tls=true out of the URI"):
        store.statuses(COLLECTION, ["a"])


def test_a_file_that_is_not_there_is_named(authority):
    given = f"mongodb://me:{PASSWORD}@host/x?tls=true&tlsCAFile={authority}/nothing.pem"
    with pytest.raises(StoreError, match="cannot be read: The tlscafile file is not") as error:
        open_store(given)
    assert PASSWORD not in str(error.value)
    (authority / "text.pem").write_text("text")
    store = open_store(given.replace("nothing", "text"))
    with pytest.raises(
        StoreError, match=r"cannot be read: .*certificate.*check tlsCAFile"
    ) as error:
        store.statuses(COLLECTION, ["a"])
    assert PASSWORD not in str(error.value)
