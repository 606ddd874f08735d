"""The document of a run as a row of numbered files, of which the highest is the document.

A document is changed by publishing its successor under the next number, which only one process
can do. So a change applies to exactly the document that was read, or not at all: whoever slept
meanwhile, for however long and at whatever point, finds the number taken.

    version = versions.newest()
    ... decide ...
    versions.publish(version, changed)         # None: somebody else was faster, read it again
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipefit.errors import StoreError
from pipefit.store.backend import Document
from pipefit.store.local import blocks, disk

_NUMBERED = re.compile(r"([1-9][0-9]*)\.json")
#: Versions before the newest that stay for those who are about to read them.
_KEPT = 4
# Every repetition means that the document was changed some times in between.
_TRIES = 100


class Overtaken(Exception):
    """Others have changed the document so often since that nobody knows whether this one did."""


@dataclass(frozen=True)
class Version:
    """A document as it was, and when that was (by the clock of the file system)."""

    number: int
    document: Document
    written: float


class Versions:
    """The document of one run.

    Args:
        folder: where its versions are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self) -> Version | None:
        """The document as it is now; None if there is none.

        Raises:
            StoreError: it is damaged.
        """
        for _ in range(_TRIES):
            numbers = self._numbers()
            if not numbers:
                return None
            with suppress(FileNotFoundError):  # changed so often since that it is gone
                return self._read(numbers[-1])
        raise StoreError(f"{self.folder} changes all the time: too many processes write there")

    def exists(self) -> bool:
        """Whether there is a document."""
        return bool(self._numbers())

    def publish(self, before: Version | None, document: Document) -> Version | None:
        """Put a document in the place of the one that was read.

        Args:
            before: what was read; None: there was none.
            document: plain values.

        Returns:
            What is there now; None, with nothing changed, if another process was faster.

        Raises:
            Overtaken: nobody knows, and it does not matter any more.
        """
        number = before.number + 1 if before else 1
        draft = disk.write(self.folder, [blocks.encode(document)])
        written = draft.stat().st_mtime
        if not disk.publish(draft, self._path(number)):
            return None
        numbers = self._numbers()
        if number < numbers[-1] - _KEPT:
            # This process has slept. Either the number was free because it had been taken and
            # removed again: then nobody has ever seen this file, because only the highest number
            # is looked at. Or it was the highest for a while.
            disk.remove(self._path(number))
            raise Overtaken
        for old in numbers:
            if old < number - _KEPT:
                disk.remove(self._path(old))
        return Version(number, document, written)

    def _numbers(self) -> list[int]:
        # The highest number at the time is always among them: it is the last to be removed.
        found = (_NUMBERED.fullmatch(name) for name in disk.names_in(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _read(self, number: int) -> Version:
        path = self._path(number)
        with path.open("rb") as file:
            data = file.read()
            written = os.fstat(file.fileno()).st_mtime
        try:
            return Version(number, blocks.decode(data), written)
        except ValueError as error:
            raise StoreError(
                f"{path} is damaged ({error}): restore it from a backup, or remove it, and the "
                f"document of the run is the one before"
            ) from error
