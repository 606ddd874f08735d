"""One background thread that does the writes, so that saving does not stop training."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipefit.records import MetricBlock

Work = Callable[[], None]

#: So often whoever waits looks whether it is in vain, seconds.
_LOOK_SECONDS = 0.1


class _Piece(NamedTuple):
    work: Work
    heavy: bool


class BackgroundWriter:
    """Does pieces of work one after the other, in the order they were put.

    The first failure is kept: nothing after it is done, and `put`, `check` and `close` raise it,
    with its own traceback, in the thread that calls them. What was not done is `left`.

    Whoever waits here waits for what is queued, which is bounded. Each piece ends: by the limits
    of the store (`Patience`), or because `hurry` calls it off. A training that waits for longer
    than `train.step_timeout` is ended by the watchdog.

    Args:
        depth: how many pieces may wait; `put` blocks beyond that, so memory stays bounded.
        heavy: how many heavy pieces (they hold a copy of all state) may wait or be at work.
        hurry: is asked by whoever waits or checks; what it returns is the failure then. It must
            not call this object.
    """

    def __init__(
        self,
        depth: int = 1000,
        heavy: int = 2,
        hurry: Callable[[], BaseException | None] = lambda: None,
    ):
        self._depth, self._heavy, self._hurry = depth, heavy, hurry
        # The first one is at work; it stays until it is done.
        self._pieces: deque[_Piece] = deque()
        self._put_so_far = self._done = 0
        self._error: BaseException | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pipefit-writer", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Queue a piece of work. Raises the first failure so far, and it is `left` then."""
        self._put(_Piece(work, heavy=False), lambda: len(self._pieces) <= self._depth)

    def put_heavy(self, work: Work) -> None:
        """Queue a piece of work that holds much memory until it is done."""
        self._put(_Piece(work, heavy=True), lambda: self._count_heavy() < self._heavy)

    def check(self) -> None:
        """Raise the first failure so far."""
        with self._changed:
            self._look()
            if self._error is not None:
                raise self._error

    def drain(self) -> None:
        """Wait until everything put so far is done. Raises the first failure."""
        with self._changed:
            last = self._put_so_far
            self._wait(lambda: self._done >= last)
            self.check()

    def fail(self, error: BaseException) -> None:
        """Make `put`, `check` and `close` raise this, unless something failed before."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until everything is done. Raises the first failure."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._wait(lambda: not self._pieces)
            self.check()

    def left(self) -> list[Work]:
        """What was not done after a failure, in its order; it is forgotten here.

        The first piece may still be at work, if `hurry` or `fail` have called it off.
        """
        with self._changed:
            pieces = [piece.work for piece in self._pieces]
            self._pieces.clear()
            return pieces

    def _put(self, piece: _Piece, has_room: Callable[[], bool]) -> None:
        with self._changed:
            self._wait(has_room)
            self._pieces.append(piece)
            self._put_so_far += 1
            self._changed.notify_all()
            self.check()

    def _count_heavy(self) -> int:
        return sum(piece.heavy for piece in self._pieces)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Until something is so, or has failed."""
        while not condition() and self._error is None:
            if not self._changed.wait(_LOOK_SECONDS):
                self._look()

    def _look(self) -> None:
        if self._error is None:
            self._error = self._hurry()

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                piece.work()
            except BaseException as error:
                self.fail(error)
                return
            with self._changed:
                # Unless it was called off, and is `left`.
                if self._pieces and self._pieces[0] is piece:
                    self._pieces.popleft()
                self._done += 1
                self._changed.notify_all()

    def _next(self) -> _Piece | None:
        """The piece to do now; None: there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._error or self._closing)
            return self._pieces[0] if self._pieces and self._error is None else None


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
