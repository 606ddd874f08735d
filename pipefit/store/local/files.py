"""Files of a run: written under a fresh name, verified, read whole or in parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import CheckpointCorrupt, StoreError
from pipefit.store.backend import Source, StoredFile, Whole, undamaged
from pipefit.store.local import disk
from pipefit.store.local.disk import guarded
from pipefit.store.local.places import file_name, is_file_name

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.codec import TensorIndex

_PIECE = 4 * 2**20


class Folder:
    """`pipefit.store.backend.Files` in a folder; a file's id is its name.

    Args:
        path: the folder.
        shown: that of the store, for people.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self.path = path
        self.shown = shown

    def put(
        self, data: bytes | bytearray, filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write the bytes under a fresh name that resembles the wanted one, and read them back.

        Raises:
            CheckpointCorrupt: what came back is not what was written.
        """
        return self._put(Whole(data), filename)

    def put_tensors(
        self, tensors: Mapping[str, np.ndarray], filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write tensors in the safetensors layout, without a copy of all of them; as `put`."""
        from pipefit.store.codec import TensorFile

        return self._put(TensorFile(tensors), filename)

    @guarded
    def _put(self, source: Source, filename: str) -> StoredFile:
        disk.make_folders(self.path)
        name = file_name(filename)
        digest = hashlib.sha256()
        draft = disk.write(self.path, _digested(source, digest))
        try:
            with draft.open("rb") as file:
                _forget(file)
                if not _holds(file, source):
                    raise CheckpointCorrupt(
                        f"{filename} came back from {self.path} otherwise than it was written, so "
                        "it is not kept: check the disk, then type the same command again"
                    )
        except BaseException:
            disk.remove(draft)
            raise
        disk.move(draft, self.path / name)
        return StoredFile(name, source.size, digest.hexdigest())

    @guarded
    def read(self, file: StoredFile) -> bytearray:
        """All bytes of a file, verified.

        Raises:
            CheckpointCorrupt: it is gone, or its length or sha256 differ.
        """
        buffer = bytearray(file.size)
        view = memoryview(buffer)
        digest = hashlib.sha256()
        at = 0
        with self._opened(file) as stored:
            while at < file.size and (done := stored.readinto(view[at : at + _PIECE])):
                digest.update(view[at : at + done])
                at += done
            at += len(stored.read(1))
        self._check(file, at, digest.hexdigest())
        return buffer

    def _check(self, file: StoredFile, size: int, sha256: str) -> None:
        if (size, sha256) != (file.size, file.sha256):
            raise CheckpointCorrupt(
                f"{file.label} is damaged: {self.path / file.id} holds {size} bytes with sha256 "
                f"{sha256}, its record says {file.size} bytes and {file.sha256}; use an earlier one"
            )

    @guarded
    def read_tensors(self, file: StoredFile, include: str | None = None) -> dict[str, np.ndarray]:
        """The tensors whose name matches `include`; None: all, and the whole file is verified.

        Raises:
            CheckpointCorrupt: the file is gone or damaged.
        """
        from pipefit.store import codec

        with undamaged(file):
            if include is not None:
                return self._read_some(file, include)
            return codec.decode_tensors(memoryview(self.read(file)))

    def _read_some(self, file: StoredFile, include: str) -> dict[str, np.ndarray]:
        from pipefit.store import codec

        with self._opened(file) as stored:
            index = _index_of(stored, file)
            found = {}
            for name, entry in index.matching(include).items():
                data = bytearray(max(0, entry.end - entry.begin))
                stored.seek(index.start + entry.begin)
                if stored.readinto(data) != len(data):
                    raise ValueError("its index points beyond its end")
                found[name] = codec.tensor(entry, memoryview(data))
        return found

    @guarded
    def read_index(self, file: StoredFile) -> TensorIndex:
        """What lies where in a file of tensors, of which nothing else is read.

        Raises:
            CheckpointCorrupt: the file is gone or damaged.
        """
        with undamaged(file), self._opened(file) as stored:
            return _index_of(stored, file)

    def _opened(self, file: StoredFile) -> BufferedReader:
        if not is_file_name(file.id):
            raise StoreError(f"{file.id!r} is not the id of a file: it is a name in a folder")
        try:
            return (self.path / file.id).open("rb")
        except FileNotFoundError:
            raise CheckpointCorrupt(
                f"{file.label} is gone from {self.path} ({file.id}); use an earlier one"
            ) from None

    def remove(self, ids: Iterable[str]) -> None:
        """Remove files; those that are gone already do not matter."""
        for name in ids:
            if is_file_name(name) or disk.is_draft(name):
                disk.remove(self.path / name)


def _digested(source: Source, digest: hashlib._Hash) -> Iterator[memoryview]:
    for piece in source.pieces():
        for at in range(0, len(piece), _PIECE):
            digest.update(piece[at : at + _PIECE])
            yield piece[at : at + _PIECE]


def _index_of(stored: BufferedReader, file: StoredFile) -> TensorIndex:
    from pipefit.store import codec

    if os.fstat(stored.fileno()).st_size != file.size:
        raise ValueError("it has another length than its record says")
    begin = stored.read(8)
    length = codec.header_length(begin)
    if 8 + length > file.size:
        raise ValueError("its header points beyond its end")
    return codec.read_index(codec.header_text(begin + stored.read(length)))


def _forget(file: BufferedReader) -> None:
    """Let what is read next come from the disk, where that can be asked for."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _holds(file: BufferedReader, source: Source) -> bool:
    """Whether a file has these bytes and no others."""
    for piece in source.pieces():
        for at in range(0, len(piece), _PIECE):
            expected = piece[at : at + _PIECE]
            back = bytearray(len(expected))  # two memoryviews would be compared byte by byte
            if file.readinto(back) != len(expected) or back != expected:
                return False
    return not file.read(1)
