"""Three real servers on this machine that elect a primary, one of which can be killed."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress

import pymongo

from pipefit.store import mongod

_OPTIONS = [
    "--bind_ip", "127.0.0.1", "--nounixsocket", "--replSet", "pipefit", "--oplogSize", "64",
    "--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false",
]  # fmt: skip
_QUICK = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200}
_PR_SET_PDEATHSIG = 1


def _end_with_the_tests():
    """In the child: whatever ends the tests ends it, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ReplicaSet:
    """As a context; its folders are below `folder`."""

    def __init__(self, folder):
        self._folder = folder
        self._binary = mongod.find_binary(folder)
        self._processes = {}

    def __enter__(self):
        with ExitStack() as listeners:
            taken = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "abc"]
            self.ports = [listener.getsockname()[1] for listener in taken]
        for port in self.ports:
            self._start(port)
        members = [{"_id": i, "host": f"127.0.0.1:{port}"} for i, port in enumerate(self.ports)]
        config = {"_id": "pipefit", "members": members, "settings": _QUICK}
        with self._client(self.ports[0]) as first:
            first.admin.command("replSetInitiate", config)
        self.heal()
        return self

    def __exit__(self, *exception):
        for process in self._processes.values():
            process.kill()
            process.wait()

    def uri(self, database):
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"mongodb://{hosts}/{database}?replicaSet=pipefit"

    def kill_primary(self):
        """kill -9; the others elect another one."""
        with pymongo.MongoClient(self.uri("admin")) as client:
            client.admin.command("ping")
            port = client.primary[1]
        process = self._processes.pop(port)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def heal(self):
        """Start who is dead, and wait until there is a primary with two secondaries."""
        for port in set(self.ports) - self._processes.keys():
            self._start(port)
        deadline = time.monotonic() + 120
        with pymongo.MongoClient(self.uri("admin")) as client:
            while self._states(client) != ["PRIMARY", "SECONDARY", "SECONDARY"]:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def _states(self, client):
        with suppress(pymongo.errors.PyMongoError):
            found = client.admin.command("replSetGetStatus")["members"]
            return sorted(member["stateStr"] for member in found)

    def _start(self, port):
        data = self._folder / str(port)
        data.mkdir(exist_ok=True)
        words = ["--port", str(port), "--dbpath", data, "--logpath", data / "log", "--logappend"]
        self._processes[port] = subprocess.Popen(
            [self._binary, *_OPTIONS, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_the_tests,  # noqa: PLW1509  # it only makes a system call
        )
        with self._client(port) as client:
            client.admin.command("ping")  # waits for it

    def _client(self, port):
        return pymongo.MongoClient("127.0.0.1", port, directConnection=True)
