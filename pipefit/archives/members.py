"""The files of an archive, read where they lie in it; for many small files, which unpack slowly.

    members = archives.open_members(Path("photos.tar"))
    members.names[:2], members.read("cats/1.jpg")

A compressed tar cannot be read in place: unpack it.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from pipefit.archives import tars, zips
from pipefit.archives.facts import remembered
from pipefit.archives.inventory import Inventory, Limits
from pipefit.errors import ArchiveError

_PIECE = 2**20
# Before a member of a zip archive; of it only the lengths of its name and extra field are asked.
_LOCAL_HEADER = struct.Struct("<26xHH")

# Nothing is unpacked, so the archive's own size is the limit; `zips` refuses what expands too much.
_NO_LIMITS = Limits(members=sys.maxsize, total_bytes=sys.maxsize, ratio=math.inf)


class Members(Protocol):
    """The files of an archive; several threads may read at once.

    Attributes:
        path: of the archive.
        names: of its files, "/" between folders, sorted.
    """

    path: Path
    names: tuple[str, ...]

    def read(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            ArchiveError: they cannot be read.
            KeyError: there is no such file.
        """

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, a megabyte at a time; otherwise as `read`."""

    def place(self, name: str) -> tuple[int, int] | None:
        """Offset and size of a file's bytes in the archive; None if they are compressed.

        Raises:
            ArchiveError: the archive is damaged.
            KeyError: there is no such file.
        """

    def close(self) -> None:
        """Close the archive; nothing can be read afterwards."""


def open_members(path: Path) -> Members:
    """Open a tar or zip archive to read its files in place.

    What `unpack` refuses is refused here too: links, devices, names that lead outside. The headers
    of a tar are read once and its index kept in the cache of PIPEFIT_HOME until the file changes.

    Raises:
        ArchiveError: it is compressed as a whole, damaged, refused or cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) in zips.MAGIC
            if not is_zip and tars.is_compressed(file):
                raise ArchiveError(
                    f"{path} is compressed as a whole, so no file in it can be read without all "
                    "before it; unpack it (in the experiment file: no unpack = false), or make it "
                    "a plain tar or a zip archive"
                )
        return _Zip(path) if is_zip else _Tar(path)
    except ArchiveError:
        raise
    except OSError as error:
        raise ArchiveError(f"archive {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # tarfile and zipfile have a dozen types for damage
        raise ArchiveError(f"{path} is not a whole tar or zip archive: {error}") from error


class _Tar:
    def __init__(self, path: Path) -> None:
        self.path = path
        text = remembered("indexes", {path.name: path}, lambda: json.dumps(_index(path)))
        self._places: Mapping[str, tuple[int, int]] = json.loads(text)
        self.names = tuple(sorted(self._places))
        self._file = path.open("rb", buffering=0)

    def read(self, name: str) -> bytes:
        return self._read_at(name, *self._places[name])

    def _read_at(self, name: str, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), size, offset)
            while len(data) < size:  # a signal, or more than 2 GiB
                more = os.pread(self._file.fileno(), size - len(data), offset + len(data))
                if not more:
                    raise ArchiveError(f"{self.path}: {name!r} ends early: the archive has changed")
                data += more
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, name, error) from error
        return data

    def pieces(self, name: str) -> Iterator[bytes]:
        offset, size = self._places[name]
        for at in range(0, size, _PIECE):
            yield self._read_at(name, offset + at, min(_PIECE, size - at))

    def place(self, name: str) -> tuple[int, int] | None:
        return self._places[name]

    def close(self) -> None:
        self._file.close()


class _Zip:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Opened here: a file that zipfile opened itself is closed by a count that threads upset.
        self._file = path.open("rb")
        try:
            self._zip = zipfile.ZipFile(self._file)
            size = path.stat().st_size
            self._infos = zips.index(self._zip, Inventory(str(path), size, _NO_LIMITS))
        except BaseException:
            self._file.close()
            raise
        self.names = tuple(sorted(self._infos))

    def read(self, name: str) -> bytes:
        info = self._infos[name]
        try:
            return self._zip.read(info)
        except Exception as error:  # zipfile and zlib have several types for damage
            raise _unreadable(self.path, name, error) from error

    def pieces(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._infos[name]) as file:
                while piece := file.read(_PIECE):
                    yield piece
        except Exception as error:  # likewise
            raise _unreadable(self.path, name, error) from error

    def place(self, name: str) -> tuple[int, int] | None:
        info = self._infos[name]
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        # The directory says where the member begins, not how long its own header is.
        header = os.pread(self._file.fileno(), _LOCAL_HEADER.size, info.header_offset)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(zips.MAGIC[0]):
            raise _unreadable(self.path, name, "it is not where the directory says")
        offset = info.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header))
        if offset + info.file_size > os.fstat(self._file.fileno()).st_size:
            raise _unreadable(self.path, name, "it ends early")
        return offset, info.file_size

    def close(self) -> None:
        self._zip.close()
        self._file.close()


def _index(path: Path) -> dict[str, tuple[int, int]]:
    with path.open("rb") as file:
        return tars.index(file, Inventory(str(path), path.stat().st_size, _NO_LIMITS))


def _unreadable(path: Path, name: str, error: object) -> ArchiveError:
    return ArchiveError(f"{path}: {name!r} cannot be read: {error}")
