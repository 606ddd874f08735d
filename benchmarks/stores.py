"""What benchmarks of the store share: an own store of each kind, and how much memory was used."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipefit.records import RunOrder
from pipefit.store import RunWriter, Store, open_store, server, this_process

COLLECTION, RUN = "benchmarks", "run"


@contextmanager
def addresses() -> Iterator[dict[str, str]]:
    """An empty store of each kind, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pipefit-benchmark-"))
    os.environ["PIPEFIT_HOME"] = str(folder / "home")
    try:
        yield {"mongodb": server.ensure_running(), "folder": (folder / "results").as_uri()}
    finally:
        server.stop()
        shutil.rmtree(folder)


def begun(store: Store, steps: int) -> RunWriter:
    """The owner's handle on a run that begins."""
    order = RunOrder(COLLECTION, RUN, "0", {}, "{}", steps)
    writer = store.acquire(order, this_process(), ttl=600.0)
    writer.begin(-1)
    return writer


def opened(address: str) -> Store:
    """The store, without copies of what is read."""
    return open_store(address, cache=False)


def memory() -> int:
    """The most memory that this process has had so far, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
