"""Sets of files by name: a folder, or a tar or zip archive that is read in place.

    files = open_files(Path("photos.tar"))
    files.names[:2], files.read("cats/1.jpg")

`open_files("photos.tar/train")` opens a folder inside an archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pipefit.archives import Members, open_members
from pipefit.data.digests import combined_digest, file_digest, files_digest
from pipefit.data.places import shortened
from pipefit.errors import DataError


class FileSet(Protocol):
    """Files by name; several threads may read at once.

    Attributes:
        names: "/" between folders, sorted.
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        """Where the files are, for messages."""

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            DataError: it is not there or cannot be read.
        """

    def digest(self, names: Sequence[str]) -> str:
        """A digest of at least these files, see `pipefit.data.content_digest`."""

    def close(self) -> None:
        """Called when nothing is read any more."""


def open_files(path: str | Path) -> FileSet:
    """The files of a folder, of a plain tar or zip archive, or of a folder inside an archive.

    Raises:
        DataError: there is no such place.
        ArchiveError: the archive is compressed as a whole, damaged, or holds links, devices or
            names that lead outside.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return Folder(place)
    for outer in (place, *place.parents):
        if outer.is_file():
            return Packed(open_members(outer), place.relative_to(outer).as_posix())
    raise DataError(f"{place}: there is no such folder, tar or zip archive")


class Folder:
    """The files of a folder and of those in it; links are followed."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.names = tuple(sorted(_walk(path, "", ())))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self.path / name}: cannot be read: {error.strerror}") from error

    def digest(self, names: Sequence[str]) -> str:
        """The sha256 of these names and contents; kept while no size or time changes."""
        return files_digest({name: self.path / name for name in names})

    def close(self) -> None:
        """There is nothing to close."""


class Packed:
    """The files of an archive, or of a folder inside it, read in place."""

    def __init__(self, members: Members, inside: str = "."):
        self._members = members
        self._inside = inside
        self._start = "" if inside == "." else f"{inside}/"
        self.names = tuple(
            name.removeprefix(self._start) for name in members.names if name.startswith(self._start)
        )
        if self._start and not self.names:
            top = sorted({name.partition("/")[0] for name in members.names})
            members.close()
            raise DataError(
                f"{members.path}: holds no folder {inside!r}; at its top there is {shortened(top)}"
            )

    def __str__(self) -> str:
        return str(self._members.path / self._inside)

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        try:
            return self._members.read(self._start + name)
        except KeyError:
            raise DataError(f"{self}: there is no file {name!r}") from None

    def digest(self, names: Sequence[str]) -> str:
        """The sha256 of the whole archive, read once and kept until it changes."""
        whole = file_digest(self._members.path)
        return combined_digest({self._inside: whole}) if self._start else whole

    def close(self) -> None:
        """Close the archive."""
        self._members.close()


def _walk(folder: Path, name: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    facts = folder.stat()
    here = (facts.st_dev, facts.st_ino)
    if here in above:  # a link to a folder that it lies in
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            inside = f"{name}{entry.name}"
            if entry.is_dir():
                yield from _walk(folder / entry.name, f"{inside}/", (*above, here))
            elif entry.is_file():
                yield inside
