"""Writing to the database what attempts could not write: see `pipefit.execution.spool`.

A replay may be killed at any point and repeated: what is written again replaces, and the folder
goes only after all is committed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from pipefit.errors import IdentityMismatch, LeaseLost, NotFound, ReplayRefused
from pipefit.execution import spool
from pipefit.execution.heartbeat import Heartbeat
from pipefit.execution.spool import Checkpoint, Spool
from pipefit.store import RunWriter, Store, this_process

logger = logging.getLogger("pipefit.run")

_LOOPBACK = re.compile(r"^(mongodb://(?:127\.0\.0\.1|localhost|\[::1\])):\d+/")


def belongs_to(store: Store, left: Spool) -> bool:
    """Whether it was left for this database.

    The port of a server on this machine may change; the attempt itself is looked at anyway.
    """
    return _LOOPBACK.sub(r"\1/", left.store) == _LOOPBACK.sub(r"\1/", store.describe())


def replay(store: Store, left: Spool) -> None:
    """Write what was left to the database, and remove the folder.

    Raises:
        ReplayRefused: it was left for another database, or somebody has continued the run since.
        RunOwned: its process may still be alive, or another one is doing this.
        StoreUnavailable: the database is away; the folder stays.
    """
    if not belongs_to(store, left):
        raise ReplayRefused(
            f"{left.folder} was left for {left.store}, this is {store.describe()}: set "
            "PIPEFIT_MONGO_URI to that database"
        )
    try:
        if not _has_ended(store, left):
            _write(store, left)
    except (LeaseLost, IdentityMismatch, NotFound) as error:
        key = left.key
        raise ReplayRefused(
            f"{left.folder}, left by attempt {key.fence} ({key.owner}) of run {key.name!r} of "
            f"collection {key.collection!r}, is not used: {error}; if it is not needed, "
            f"pipefit replay --discard {left.folder} removes it"
        ) from error
    spool.clear(left.folder)


def replay_before(store: Store, collection: str, names: Sequence[str]) -> None:
    """Before runs are continued, write what was left of them; what is refused stays, with a word.

    Raises:
        StoreError: it cannot be written now.
    """
    for name in names:
        for left in spool.find(collection, name):
            if not belongs_to(store, left):
                continue
            try:
                replay(store, left)
            except ReplayRefused as error:
                logger.warning("%s", error)
            else:
                logger.info("wrote what attempt %d had left in %s", left.key.fence, left.folder)


def _has_ended(store: Store, left: Spool) -> bool:
    """Whether the attempt's end is stored: it comes last, so all is."""
    run = store.run(left.key.name, left.key.collection)
    newest = max(run.attempts(), key=lambda attempt: attempt.fence)
    mine = (newest.fence, newest.owner) == (left.key.fence, left.key.owner)
    return mine and newest.ended is not None


def _write(store: Store, left: Spool) -> None:
    writer = store.take_up(left.key, this_process(), left.ttl)
    lost: list[Exception] = []
    with Heartbeat(writer, lambda: None, lost.append):
        for entry in left.read():
            if lost:
                raise lost[0]
            if not (isinstance(entry, Checkpoint) and _is_behind(writer, entry)):
                spool.write_entry(writer, entry)


def _is_behind(writer: RunWriter, entry: Checkpoint) -> bool:
    """Whether a later step is committed: by an earlier replay, so this one was, too."""
    return any(checkpoint.step > entry.step for checkpoint in writer.checkpoints())
