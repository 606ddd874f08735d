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
    end = 0
    for member in _members(_open(stream), stream):
        if member.offset < end:
            raise tarfile.ReadError(f"member {member.name!r} lies inside the one before")
        _add(member, inventory)
        end = member.offset_data + (member.size if member.isreg() else 0)
    # Without these zeros the archive was cut between two members, or a header is damaged: tarfile
    # takes both for the end.
    if stream.last != _ZEROS or stream.tell() < end:
        raise tarfile.ReadError("the end of the archive is missing")
    stream.drain()


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
    """The decompressed bytes of `file`, read forwards only.

    Args:
        file: the archive, seekable.
        check: called with the number of bytes so far; raises when they are too many.
        allowed: how many bytes may be *read* for one member; what is skipped does not count.

    Attributes:
        last: the result of the last read.
    """

    def __init__(self, file: IO[bytes], check: Callable[[int], None], allowed: int) -> None:
        file.seek(0)
        start = file.read(8)
        file.seek(0)
        openers = [opener for magic, opener in _DECOMPRESSORS.items() if start.startswith(magic)]
        self._source = openers[0](file) if openers else file
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
        self._advance(self.last)
        return self.last

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header points backwards")
        while self._position < position:
            data = self._source.read(min(_CHUNK, position - self._position))
            if not data:
                raise tarfile.ReadError("unexpected end of data")
            self._advance(data)

    def drain(self) -> None:
        """Read to the end, where the decompressor compares its checksum."""
        while data := self._source.read(_CHUNK):
            self._advance(data)

    def _advance(self, data: bytes) -> None:
        self._position += len(data)
        self._check(self._position)


def _open(stream: _Stream) -> tarfile.TarFile:
    return tarfile.TarFile(fileobj=cast(IO[bytes], stream), encoding="utf-8", copybufsize=_CHUNK)


def _members(tar: tarfile.TarFile, stream: _Stream) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        cast(Any, tar).members.clear()  # kept for lookups by name, without a bound
        stream.next_member()
        yield member


def _add(member: tarfile.TarInfo, inventory: Inventory) -> None:
    # A sparse file claims any size for a few bytes, and its map is read into memory.
    if member.issparse() or any(key.startswith("GNU.sparse") for key in member.pax_headers):
        inventory.refuse(member.name, "is a sparse file")
    if member.isdir():
        inventory.add_folder(member.name)
    elif member.isreg():
        inventory.add_file(member.name, member.size)
    else:
        kind = _KINDS.get(member.type, f"of the unknown type {member.type!r}")
        inventory.refuse(member.name, f"is {kind}")
