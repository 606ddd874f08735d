"""Fixtures of all tests: an own home, a real MongoDB, an empty database.

Nothing here touches the home of whoever runs the tests, and no server outlives them, even if they
are killed: a guard process waits for their end and stops it.
"""

import gc
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Traced functions are many objects that stay: to look for garbage among them after every few
# hundred costs a tenth of the time of all tests in one process.
gc.set_threshold(100_000, 10, 10)

_GUARD = """
import shutil, sys
sys.stdin.readline()  # a word from the tests, or the end of their process
from pipefit.store import server
try:
    server.stop()
finally:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
"""

_PERSONAL = ("PIPEFIT_MONGO_URI", "LUIGI_CONFIG_PATH", "XDG_DATA_HOME", "XDG_CACHE_HOME")


@contextmanager
def _guarded_folder() -> Iterator[Path]:
    """A temporary folder to serve as PIPEFIT_HOME; its server and itself go away for certain."""
    folder = Path(tempfile.mkdtemp(prefix="pipefit-tests-"))
    guard = subprocess.Popen(
        [sys.executable, "-c", _GUARD, folder],
        stdin=subprocess.PIPE,
        env={**os.environ, "PIPEFIT_HOME": str(folder / "pipefit")},
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        guard.communicate(b"\n", timeout=120)
        assert guard.returncode == 0, "the guard could not stop the server"


@pytest.fixture(scope="session", autouse=True)
def _own_home() -> Iterator[Path]:
    """For the whole session HOME and PIPEFIT_HOME are in a temporary folder."""
    with _guarded_folder() as folder, pytest.MonkeyPatch.context() as patch:
        for name in _PERSONAL:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(folder))
        patch.setenv("PIPEFIT_HOME", str(folder / "pipefit"))
        yield folder


@pytest.fixture(scope="session")
def mongo_uri(_own_home: Path) -> str:
    """The embedded server of this session (of each worker, under xdist): a URI with a password."""
    from pipefit.store import server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPEFIT_HOME", str(_own_home / "pipefit"))
        return server.ensure_running()


@pytest.fixture
def database_uri(mongo_uri: str) -> Iterator[str]:
    """The URI of a database that is empty and is dropped afterwards."""
    import pymongo

    from pipefit.store import server

    name = f"test-{uuid.uuid4().hex}"
    yield mongo_uri.replace(f"/{server.DATABASE}?", f"/{name}?")
    with pymongo.MongoClient(mongo_uri) as client:
        client.drop_database(name)


@pytest.fixture
def store(database_uri: str):
    """A store on an empty database."""
    from pipefit.store import open_store

    return open_store(database_uri)


@pytest.fixture
def make_run(store):
    """A function that writes a run the way a worker does, and returns its reader."""
    import numpy as np

    from pipefit.records import Best, MetricBlock, RunOrder, RunState, Validation
    from pipefit.store.owner import this_process

    def make(
        name="mlp",
        collection="digits",
        *,
        steps=100,
        state=RunState.FINISHED,
        reason=None,
        log_tail="",
        metrics=None,
        sets=("test",),
        progress=None,
        spec="{}",
        identity="same",
        program=None,
        notes=(),
        model=None,
        artifacts=None,
        ended=None,
    ):
        order = RunOrder(
            collection, name, identity, {"seed": 0}, spec, steps=steps, program=program or {}
        )
        writer = store.acquire(order, this_process(), ttl=600)
        writer.begin(-1)
        if metrics is None:
            metrics = {"loss": np.linspace(2.3, 0.1, steps), "learning_rate": np.full(steps, 0.1)}
        writer.write_metrics(MetricBlock(1, metrics))
        for step in (steps // 2, steps):
            for set_name in sets:
                values = {"accuracy": 0.9 + step / steps / 20, "loss": 0.2}
                writer.write_validation(Validation(set_name, step, values, examples=297))
        if progress is not None:
            writer.renew(progress)
        for note in notes:
            writer.note(note)
        if model is not None:
            writer.describe(model, artifacts or {})
        best = Best("test/accuracy", "max", 0.95, steps)
        writer.commit(steps, {"w": np.zeros(10, "float32")}, frozenset({"permanent"}), best)
        if state is not RunState.RUNNING:
            writer.end(state, reason, steps, log_tail, ended)
        return store.run(name, collection)

    return make


@pytest.fixture
def pipefit_home(monkeypatch) -> Iterator[Path]:
    """An own PIPEFIT_HOME for this test; a server that is started in it is stopped afterwards."""
    with _guarded_folder() as folder:
        monkeypatch.setenv("PIPEFIT_HOME", str(folder / "pipefit"))
        yield folder / "pipefit"


@pytest.fixture
def environment(database_uri: str, tmp_path: Path, monkeypatch) -> dict[str, str]:
    """The variables for child processes: the database of `store`, and a home of their own.

    They are set in this process too.
    """
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "pipefit-home"))
    monkeypatch.setenv("PIPEFIT_MONGO_URI", database_uri)
    return dict(os.environ)
