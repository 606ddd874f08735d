"""One background thread that does the writes, so that saving does not stop training."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipefit.records import MetricBlock

Work = Callable[[], None]


class _Piece(NamedTuple):
    work: Work
    heavy: bool


class BackgroundWriter:
    """Does pieces of work one after the other, in the order they were put.

    The first failure is kept: everything after it is dropped, and `put`, `check` and `close` raise
    it, with its own traceback, in the thread that calls them.

    Whoever waits here waits for what is queued, which is bounded. Each piece ends: by the limits
    of the store (`Attempt.patiently`), or because an earlier one has failed. A training that waits
    for longer than `train.step_timeout` is ended by the watchdog.

    Args:
        depth: how many pieces may wait; `put` blocks beyond that, so memory stays bounded.
        heavy: how many heavy pieces (they hold a copy of all state) may wait or be at work.
    """

    def __init__(self, depth: int = 1000, heavy: int = 2):
        self._queue: queue.Queue[_Piece | None] = queue.Queue(maxsize=depth)
        self._heavy = threading.BoundedSemaphore(heavy)
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pipefit-writer", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Queue a piece of work. Raises the first failure so far."""
        self.check()
        self._queue.put(_Piece(work, heavy=False))

    def put_heavy(self, work: Work) -> None:
        """Queue a piece of work that holds much memory until it is done."""
        self.check()
        self._heavy.acquire()
        self._queue.put(_Piece(work, heavy=True))

    def check(self) -> None:
        """Raise the first failure so far."""
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Wait until everything put so far is done. Raises the first failure."""
        done = threading.Event()
        self._queue.put(_Piece(done.set, heavy=False))
        while not done.wait(0.1):
            self.check()
        self.check()

    def fail(self, error: BaseException) -> None:
        """Make `put`, `check` and `close` raise this, unless something failed before."""
        with self._lock:
            if self._error is None:
                self._error = error

    def close(self) -> None:
        """Wait until everything is done. Raises the first failure."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self.check()

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            try:
                if self._error is None:
                    piece.work()
            except BaseException as error:
                self.fail(error)
            finally:
                # Dropped pieces too, or whoever waits to put one would wait for ever.
                if piece.heavy:
                    self._heavy.release()


def joined(blocks: Sequence[MetricBlock]) -> list[MetricBlock]:
    """Blocks that follow each other as few ones: those whose columns are alike become one."""
    together = []
    for _, group in itertools.groupby(blocks, key=_columns_of):
        first, *others = group
        columns = {
            name: np.concatenate([values, *(other.columns[name] for other in others)])
            for name, values in first.columns.items()
        }
        together.append(MetricBlock(first.first, columns) if others else first)
    return together


def _columns_of(block: MetricBlock) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, kind and shape per step: columns of texts, say, may differ in the length of texts."""
    arrays = {name: np.asarray(values) for name, values in block.columns.items()}
    return sorted((name, array.dtype.kind, array.shape[1:]) for name, array in arrays.items())
