"""Reading tar archives, plain or compressed, forwards and counted.

`tarfile` parses and extracts. It is given a stream that cannot go backwards, counts what comes out
of the decompressor, and gives only so much to the headers of one member, so neither a bomb nor a
forged header costs more than the limits.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from pipefit.archives.inventory import Inventory

_CHUNK = 2**18
# Bytes of headers of one member: long names and attributes take some hundreds.
_HEADERS = 2**18
_ZEROS = bytes(tarfile.BLOCKSIZE)
_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
}
_DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
# Compressed too, but not unpacked here: zstd, compress.
_UNKNOWN = (b"\x28\xb5\x2f\xfd", b"\x1f\x9d")


def is_compressed(file: IO[bytes]) -> bool:
    """Whether a file is one of those that must be read from the start to reach anything in it."""
    return any(_starts(file, magic) for magic in (*_DECOMPRESSORS, *_UNKNOWN))


def scan(file: IO[bytes], inventory: Inventory) -> None:
    """Read the whole archive without writing, and add every member to the inventory.

    Args:
        file: the archive, seekable.
        inventory: refuses what must not be unpacked.

    Raises:
        ArchiveError: a member is refused, or a limit is exceeded.
        Exception: whatever tarfile and the decompressors raise on damaged archives.
    """
    stream = _Stream(file, inventory.check_bytes, _HEADERS)
    for _ in _checked(stream, inventory):
        pass
    stream.drain()


def index(file: IO[bytes], inventory: Inventory) -> dict[str, tuple[int, int]]:
    """Where the files of an archive that is not compressed lie, found by reading its headers.

    Args:
        file: the archive, seekable.
        inventory: refuses what must not be read.

    Returns:
        Offset and size in bytes of every file by its path.

    Raises:
        ArchiveError: a member is refused.
        Exception: whatever tarfile raises on damaged archives.
    """
    stream = _Stream(file, lambda _: None, _HEADERS)
    return {path: (member.offset_data, member.size) for path, member in _checked(stream, inventory)}


def extract(file: IO[bytes], folder: Path) -> None:
    """Write a scanned archive into `folder`; owners, times and modes are not taken over.

    Raises:
        OSError: a file cannot be written.
        Exception: whatever tarfile and the decompressors raise on damaged archives.
    """
    # Added to Python 3.11 in 3.11.4. A second opinion only: what it refuses, the scan has refused.
    checks: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    stream = _Stream(file, lambda _: None, sys.maxsize)
    tar = _open(stream)
    for member in _members(tar, stream):
        tar.extract(member, folder, set_attrs=False, **checks)


class _Stream:
    """The decompressed bytes of `file`, read forwards only; a plain tar's files are skipped unread.

    Args:
        file: the archive, seekable.
        check: called with the number of bytes so far; raises when they are too many.
        allowed: how many bytes may be *read* for one member; what is skipped does not count.

    Attributes:
        last: the result of the last read.
    """

    def __init__(self, file: IO[bytes], check: Callable[[int], None], allowed: int) -> None:
        openers = [_DECOMPRESSORS[magic] for magic in _DECOMPRESSORS if _starts(file, magic)]
        self._source = openers[0](file) if openers else file
        self._plain = not openers
        self._position = 0
        self._check = check
        self._allowed = allowed
        self._left = allowed
        self.last = b""

    def next_member(self) -> None:
        self._left = self._allowed

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"a member has more than {self._allowed} bytes of headers")
        self.last = self._source.read(size)
        self._advance(len(self.last))
        return self.last

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header points backwards")
        if self._plain:
            self._source.seek(position)
            self._advance(position - self._position)
            return
        while self._position < position:
            data = self._source.read(min(_CHUNK, position - self._position))
            if not data:
                raise tarfile.ReadError("unexpected end of data")
            self._advance(len(data))

    def drain(self) -> None:
        """Read to the end, where the decompressor compares its checksum."""
        while data := self._source.read(_CHUNK):
            self._advance(len(data))

    def _advance(self, count: int) -> None:
        self._position += count
        self._check(self._position)


def _starts(file: IO[bytes], magic: bytes) -> bool:
    file.seek(0)
    start = file.read(len(magic))
    file.seek(0)
    return start == magic


def _open(stream: _Stream) -> tarfile.TarFile:
    return tarfile.TarFile(fileobj=cast(IO[bytes], stream), encoding="utf-8", copybufsize=_CHUNK)


def _members(tar: tarfile.TarFile, stream: _Stream) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        cast(Any, tar).members.clear()  # kept for lookups by name, without a bound
        stream.next_member()
        yield member


def _checked(stream: _Stream, inventory: Inventory) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Add every member to the inventory; the files with their paths."""
    end = 0
    for member in _members(_open(stream), stream):
        if member.offset < end:
            raise tarfile.ReadError(f"member {member.name!r} lies inside the one before")
        path = _add(member, inventory)
        end = member.offset_data + (member.size if member.isreg() else 0)
        if path is not None:
            yield path, member
    # Without these zeros the archive was cut between two members, or a header is damaged: tarfile
    # takes both for the end.
    if stream.last != _ZEROS or stream.tell() < end:
        raise tarfile.ReadError("the end of the archive is missing")


def _add(member: tarfile.TarInfo, inventory: Inventory) -> str | None:
    """Add a member to the inventory; the path of a file, None for a folder."""
    # A sparse file claims any size for a few bytes, and its map is read into memory.
    if member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers):
        inventory.refuse(member.name, "is a sparse file")
    if member.isdir():
        inventory.add_folder(member.name)
        return None
    if member.isreg():
        return inventory.add_file(member.name, member.size)
    kind = _KINDS.get(member.type, f"of the unknown type {member.type!r}")
    inventory.refuse(member.name, f"is {kind}")
