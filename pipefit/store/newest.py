"""The newest checkpoint that is whole: alike for whoever continues a run and whoever reads it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipefit.errors import CheckpointCorrupt
from pipefit.records import CheckpointInfo

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def newest_whole(
    run: str,
    checkpoints: Sequence[CheckpointInfo],
    read: Callable[[CheckpointInfo], _T],
    *,
    strict: bool = False,
    log: logging.Logger | logging.LoggerAdapter[Any] = logger,
) -> tuple[CheckpointInfo, _T]:
    """The newest checkpoint that can be read, and what was read.

    Args:
        run: its name.
        checkpoints: of the run, newest step first; at least one.
        read: reads one, and raises `CheckpointCorrupt` if it is damaged.
        strict: raise if the newest is damaged, instead of reading the one before.
        log: is warned of each that is damaged.

    Raises:
        CheckpointCorrupt: the newest is damaged, and this is strict; or all are.
    """
    for checkpoint in checkpoints:
        try:
            return checkpoint, read(checkpoint)
        except CheckpointCorrupt as error:
            if strict:
                raise
            log.warning("%s; falling back to the one before", error)
    raise CheckpointCorrupt(
        f"run {run!r}: none of its {len(checkpoints)} checkpoints can be read; restore the store "
        "from a backup, or train it again under another name"
    )
