"""What an attempt writes while it trains, by one background thread: see `Results`."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipefit.errors import (
    Diverged,
    StoreAccessDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.keeping import keep
from pipefit.execution.reporter import RunLog
from pipefit.execution.spool import Checkpoint, End, Entry, write_entry
from pipefit.execution.worker.patience import Patience
from pipefit.execution.writer import BackgroundWriter, Work, joined
from pipefit.records import Best, MetricBlock, Validation
from pipefit.store import RunWriter

if TYPE_CHECKING:
    import numpy as np

#: Says why to stop; None: go on.
ShouldStop = Callable[[], str | None]

#: Blocks of metrics that come faster than this are written together.
_METRICS_SECONDS = 0.5
#: Whenever so many bytes of values have come, training waits until they are written: a database
#: that is slow or away must not fill the memory.
_METRICS_BYTES = 256 * 2**20
#: Checkpoints that are no longer kept are removed at most this often, and at the end: that takes
#: the database longer than a new small one does.
_TIDY_SECONDS = 2.0


def is_away(error: BaseException | None) -> bool:
    """Whether the database is to blame, so that later it may take what it did not take now."""
    return isinstance(error, StoreUnavailable | StoreFull | StoreAccessDenied)


@dataclass(frozen=True)
class _Snapshot:
    """All state at a step, as the training gives it."""

    step: int
    tensors: Mapping[str, Any]
    kinds: frozenset[str]
    best: Best | None


class Results:
    """Writes what it is given in that order, in the background, and renews the lease meanwhile.

    Once the database has been away for too long nothing more is written. What comes then is kept
    with the rest, without an error: `check` raises it, at a point where nothing is half done.

    Args:
        writer: the owner's handle.
        should_stop: says why to stop.
        progress: how far it is, for the database; None: nothing yet.
        recent_keep: how many recent checkpoints are kept.
        log: for what is worth telling.

    Attributes:
        trainable: names of the arrays that must be finite in a checkpoint.
        patience: how long the database is waited for, by whoever asks it.
    """

    def __init__(
        self,
        writer: RunWriter,
        should_stop: ShouldStop,
        progress: Callable[[], Mapping[str, Any] | None],
        recent_keep: int,
        log: RunLog,
    ):
        self.trainable: frozenset[str] = frozenset()
        self._writer, self._recent_keep, self._log = writer, recent_keep, log
        self.patience = Patience(writer.ttl, should_stop)
        self._background = BackgroundWriter(hurry=self.patience.lost)
        self._blocks: deque[MetricBlock] = deque()
        self._bytes, self._last_metrics = 0, 0.0
        self._untidy, self._last_tidy = False, time.monotonic()
        self._best: Best | None = None
        self._closed = False
        self._heartbeat = Heartbeat(
            writer, progress, self._background.fail, self.patience.heard
        ).__enter__()

    # On the training thread.

    def metrics(self, block: MetricBlock) -> None:
        """Write metrics, together with others that come soon."""
        self._blocks.append(block)
        self._bytes += sum(values.nbytes for values in block.columns.values())
        if self._bytes >= _METRICS_BYTES:
            self._bytes = 0
            self._kept(self._background.put, self._write_metrics)
            self._kept(self._background.drain)
        elif time.monotonic() - self._last_metrics >= _METRICS_SECONDS:
            self.flush()

    def validation(self, validation: Validation) -> None:
        """Write a validation."""
        self._kept(self._background.put, functools.partial(self._write, validation))

    def save(
        self, step: int, tensors: Mapping[str, Any], kinds: frozenset[str], best: Best | None
    ) -> None:
        """Commit a checkpoint."""
        self.flush()  # once a checkpoint is committed, its steps are never run again
        snapshot = _Snapshot(step, tensors, kinds, best)
        self._kept(self._background.put_heavy, functools.partial(self._commit, snapshot))

    def flush(self) -> None:
        """Write the metrics that wait for others."""
        self._last_metrics = time.monotonic()
        self._kept(self._background.put, self._write_metrics)

    def check(self) -> None:
        """Raise what has failed."""
        self._background.check()

    def finish(self, end: End | None) -> None:
        """Wait until all is written, and in the end this. Raises what has failed.

        Once something has failed it only keeps the end with the rest.
        """
        self.flush()
        self._kept(self._background.put, self._tidy)
        if end is not None:
            self._kept(self._background.put, functools.partial(self._write, end))
        self._background.close()

    def soon(self, work: Callable[[], None]) -> None:
        """Do something that asks the database, once and not for longer than anybody waits."""
        apart = BackgroundWriter(hurry=self.patience.lost)
        apart.put(work)
        apart.close()

    def close(self) -> None:
        """Renew the lease no more; again does nothing."""
        if not self._closed:
            self._closed = True
            self._heartbeat.__exit__()

    def rest(self) -> Iterator[Entry]:
        """What was not written after a failure; it is forgotten here."""
        yield from joined(list(self._blocks))
        self._blocks.clear()
        for work in self._background.left():
            # What writes nothing that it was given tidies up.
            for given in work.args if isinstance(work, functools.partial) else ():
                if not isinstance(given, _Snapshot):
                    yield given
                    continue
                try:
                    yield Checkpoint(given.step, self._arrays(given), given.kinds, given.best)
                except Diverged as error:
                    self._log.error("not kept: %s", error)

    def _kept(self, put: Callable[..., None], *work: Work) -> None:
        """Put it; if the database is away, it is among the rest."""
        try:
            put(*work)
        except StoreError as error:
            if not is_away(error):
                raise

    # On the background thread.

    def _write(self, entry: Entry) -> None:
        self.patience(lambda: write_entry(self._writer, entry))

    def _write_metrics(self) -> None:
        blocks = list(self._blocks)
        for block in joined(blocks):
            self._write(block)
        for _ in blocks:
            self._blocks.popleft()

    def _commit(self, snapshot: _Snapshot) -> None:
        arrays, step = self._arrays(snapshot), snapshot.step
        self._write(Checkpoint(step, arrays, snapshot.kinds, snapshot.best))
        self._untidy, self._best = True, snapshot.best
        if time.monotonic() - self._last_tidy >= _TIDY_SECONDS:
            self._tidy()

    def _arrays(self, snapshot: _Snapshot) -> dict[str, np.ndarray]:
        from pipefit.training import not_finite, to_numpy

        arrays = to_numpy(snapshot.tensors)
        bad = not_finite({k: v for k, v in arrays.items() if k in self.trainable})
        if bad:
            raise Diverged(
                f"step {snapshot.step}: {bad[0]} holds NaN or infinity (and {len(bad) - 1} more "
                f"variables); checkpoints before it are kept: try a smaller learning rate or clip "
                f"under another name",
                snapshot.step,
            )
        return arrays

    def _tidy(self) -> None:
        """Remove the checkpoints that are no longer to be kept."""
        if self._untidy:
            self.patience(self._retain)
            self._untidy, self._last_tidy = False, time.monotonic()

    def _retain(self) -> None:
        kept = keep(
            self._writer.checkpoints(),
            recent_keep=self._recent_keep,
            best_step=self._best.step if self._best else None,
        )
        self._writer.retain(kept)
