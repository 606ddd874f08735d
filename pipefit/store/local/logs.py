"""Logs: records one after the other, which only one process appends to.

What was appended exists from the moment at which the run's document names it, with the size the log
has then. So of a process that was killed or is no longer the owner nothing half written, or too
late, is ever read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipefit.errors import StoreError
from pipefit.store.backend import Document
from pipefit.store.local import blocks, disk
from pipefit.store.local.columns import with_values
from pipefit.store.local.places import file_in
from pipefit.store.local.versions import Version

# Of most logs the blocks are small and all of them are read.
_BUFFER = 256 * 1024


class LogWriter:
    """The logs of one attempt in this process.

    Args:
        folder: of the run's logs.
        fence: of the attempt.
    """

    def __init__(self, folder: Path, fence: int) -> None:
        self._folder = folder
        self._fence = fence
        self._names: dict[tuple[int, str], str] = {}

    def append(self, logs: list[Document], kind: str, written: Iterable[bytes]) -> None:
        """Write blocks, and note in what is to be the run's document that they are there.

        Raises:
            StoreError: what makes the first block refuses something; nothing is written.
        """
        others = iter(written)
        first = next(others, None)  # or it raises, before there is a file
        if first is None:
            return
        mine = self._mine(logs, kind)
        written = itertools.chain([first], others)
        mine["size"] = disk.append(file_in(self._folder, mine["file"]), mine["size"], written)

    def _mine(self, logs: list[Document], kind: str) -> Document:
        # A forked child has logs of its own.
        key = (os.getpid(), kind)
        name = self._names.setdefault(key, f"{kind}-{self._fence}-{disk.token()}.log")
        for log in logs:
            if log["file"] == name:
                return log
        logs.append({"kind": kind, "file": name, "size": 0})
        return logs[-1]


def read_logs(folder: Path, version: Version, kind: str, *, values: bool) -> list[Document]:
    """All records of a kind that a version of the run's document names, by step.

    A later one replaces an earlier one of the same attempt, name and step.

    Args:
        folder: of the run's logs.
        version: of its document.
        kind: of the records.
        values: with the bytes of their small columns.

    Raises:
        FileNotFoundError: a log is gone, so the version is no longer the newest.
        StoreError: one is damaged.
    """
    found: dict[tuple[int, str, int], Document] = {}
    written = itertools.count()
    for log in version.document["inside"]["logs"]:
        if log["kind"] == kind:
            for record in read_log(file_in(folder, log["file"]), log["size"], values=values):
                key = (record["fence"], record["name"], record["step"])
                # What was brought in from another store says it itself.
                found[key] = {"written": next(written), **record}
    return sorted(found.values(), key=lambda record: record["step"])


def read_log(path: Path, size: int, *, values: bool = False) -> Iterator[Document]:
    """The records of one log up to a size, as they were written; see `read_logs`."""
    try:
        with path.open("rb", buffering=_BUFFER) as file:
            line = 0
            for record, begin in blocks.scan(file, size):
                place = {"_file": str(path), "_line": line, "_begin": begin}
                line = begin + record.get("bytes", 0)
                yield {**(with_values(record, file, begin) if values else record), **place}
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
