"""What may go when an attempt begins: what was never published, or no longer counts.

Whoever wakes up too late must not remove what has been made since. So what may go is listed before
the attempt begins, and removed once it has: a process that may still publish something from then
on made its files later, and one that made them earlier is refused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pipefit.store import documents
from pipefit.store.backend import Document
from pipefit.store.local import disk
from pipefit.store.local.logs import read_log
from pipefit.store.local.places import file_in
from pipefit.store.local.runs import RunFiles
from pipefit.store.local.versions import Version


class Leftovers:
    """Files of a run that only its owners write, as they are at the beginning of a `with` block.

    Args:
        files: of the run.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        place = files.place
        self._folders = (place.stories, place.checkpoints, place.logs, place.attempts)
        self._there: list[Path] = []

    def __enter__(self) -> Leftovers:
        self._there = [folder / name for folder in self._folders for name in disk.names_in(folder)]
        document = self._files.place.document
        self._there += [document / name for name in disk.names_in(document) if disk.is_draft(name)]
        return self

    def __exit__(self, *exception: object) -> None:
        self._there = []

    def unnamed(self, version: Version) -> list[Path]:
        """Those of them that this version does not name.

        Raises:
            FileNotFoundError: it is not the newest any more.
        """
        named = _named(self._files, version)
        return [path for path in self._there if path not in named]

    def remove(self, version: Version) -> None:
        """Remove those of them that this version does not name; it was published since."""
        with suppress(FileNotFoundError):  # it has been replaced already
            for path in self.unnamed(version):
                disk.remove(path)


def _named(files: RunFiles, version: Version) -> set[Path]:
    place, inside = files.place, version.document["inside"]
    named = {place.stories / inside["story"]}
    named |= {place.logs / log["file"] for log in inside["logs"]}
    if inside["checkpoints"] is not None:
        named.add(place.checkpoints / inside["checkpoints"])
        named |= {place.checkpoints / record["name"] for record in files.checkpoints(version)}
    past = inside["past"]
    for attempt in files.attempts(version):
        if attempt["tail"] is not None:
            named.add(place.attempts / attempt["tail"])
        if past is not None:
            named.add(place.attempts / past)
        past = attempt.get("past")
    return named


def needed_logs(files: RunFiles, document: Document) -> list[dict[str, Any]]:
    """The logs that hold anything which counts in this document, or in a closed line of it."""

    def counts(record: Document) -> bool:
        return documents.counts(document, record) or documents.in_closed_line(document, record)

    return [
        log
        for log in document["inside"]["logs"]
        if any(map(counts, read_log(file_in(files.place.logs, log["file"]), log["size"])))
    ]
