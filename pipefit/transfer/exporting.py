"""Writing runs into an archive."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from pipefit.errors import ArchiveError, CheckpointCorrupt, NotFound
from pipefit.store import Store
from pipefit.store.content import Part, RunContent
from pipefit.store.documents import CHECKPOINT
from pipefit.store.jsontext import encode
from pipefit.transfer.archive import (
    FORMAT,
    MANIFEST,
    RECORDS,
    RUN,
    VERSION,
    Member,
    file_member,
    folder_of,
)

logger = logging.getLogger(__name__)

#: Bytes of records that are kept in memory before they go to a temporary file.
_IN_MEMORY = 16 * 2**20
_PIECE = 2**20

# Of a run that is trained meanwhile, checkpoints are removed while they are read: it is read again,
# but for the files that are in the archive already.
_PASSES = 20


@dataclass(frozen=True)
class Exported:
    """What an archive has: names of runs, bytes, and the sha256 of all of it."""

    runs: tuple[str, ...]
    size: int
    sha256: str


def export_runs(
    store: Store,
    path: Path,
    collection: str,
    names: Sequence[str] | None = None,
    *,
    strict: bool = False,
    tell: Callable[[str], None] = lambda name: None,
) -> Exported:
    """Write runs into an archive; whoever trains them is not disturbed.

    Args:
        store: where they are.
        path: of the archive; there must be no such file yet.
        collection: the collection.
        names: of the runs; None: all of the collection.
        strict: raise if a checkpoint is damaged. Otherwise it is left out, with a warning that
            names it; if it is the newest of its run, that goes on from the one before.
        tell: is called with the name of every run before it is written.

    Raises:
        NotFound: there is no such run, or no run at all.
        ArchiveError: the archive cannot be written; nothing is left of it.
        CheckpointCorrupt: something in the store is damaged.
    """
    if names is None:
        names = [str(name) for name in store.runs(collection)["name"]]
    if not names:
        raise NotFound(f"collection {collection!r} of {store.describe()} has no runs to export")
    with _new_file(path) as file:
        archive = _Archive(file, path.parent)
        for name in names:
            tell(name)
            archive.add_run(store, collection, name, strict=strict)
        archive.close()
        size = file.tell()
        return Exported(tuple(names), size, _sha256(file))


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the block ends well, and is removed when it does not."""
    if path.exists():
        raise ArchiveError(f"{path} exists already: remove it, or choose another name")
    _remove_drafts(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with draft.open("xb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be written: {error.strerror or error}; choose a folder that can be "
            "written and has enough space"
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def _remove_drafts(path: Path) -> None:
    """Remove what killed exports to this path have left: a lock ends with its process."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.draft"):
        with suppress(OSError), draft.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()


class _Damaged(CheckpointCorrupt):
    """The checkpoint of this id is damaged."""

    def __init__(self, message: str, checkpoint: str) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class _Archive:
    """An archive that is being written.

    Args:
        file: what it becomes.
        folder: where temporary files may be.
    """

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        self._tar = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)
        self._folder = folder
        self._members: dict[str, Member] = {}
        self._runs: list[dict[str, Any]] = []

    def add_run(self, store: Store, collection: str, name: str, *, strict: bool) -> None:
        """Write a run as it is now."""
        damaged: set[str] = set()
        failed, left = "", _PASSES
        while left:
            left -= 1
            try:
                self._add_content(store.export_run(collection, name, damaged))
                return
            except (NotFound, CheckpointCorrupt) as error:
                if str(error) == failed:  # so it is not that somebody has removed it
                    if strict or not isinstance(error, _Damaged):
                        raise
                    logger.warning("%s; it is left out", error)
                    damaged.add(error.checkpoint)
                    left = _PASSES
                failed = str(error)
        raise ArchiveError(
            f"run {name!r} changes faster than it can be read ({failed}): export it when it rests"
        )

    def _add_content(self, content: RunContent) -> None:
        folder = folder_of(len(self._runs) + 1)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(self._folder)) as lines:
            for record, parts in content.records():
                try:
                    self._add_parts(parts)
                except CheckpointCorrupt as error:
                    if record["kind"] != CHECKPOINT:
                        raise
                    raise _Damaged(str(error), record["name"]) from error
                lines.write(encode(record).encode("ascii") + b"\n")
            document, parts = content.document()
            self._add_parts(parts)
            size = lines.tell()
            lines.seek(0)
            self._add(f"{folder}/{RECORDS}", lines, size)
        text = encode(document).encode("ascii") + b"\n"
        self._add(f"{folder}/{RUN}", io.BytesIO(text), len(text))
        told = {"collection": content.collection, "name": content.name, "folder": folder}
        self._runs.append(told)

    def _add_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            name = file_member(part.sha256)
            if name not in self._members:
                data = part.read()
                self._add(name, _InMemory(data), len(data))

    def _add(self, name: str, data: Any, size: int) -> None:
        digest = hashlib.sha256()
        info = tarfile.TarInfo(name)
        info.size = size
        self._tar.addfile(info, _Hashed(data, digest))
        self._members[name] = Member(size, digest.hexdigest())

    def close(self) -> None:
        """Write the manifest, and the end of the archive."""
        members = {name: asdict(self._members[name]) for name in sorted(self._members)}
        told = {"format": FORMAT, "version": VERSION, "runs": self._runs, "members": members}
        text = encode(told).encode("ascii") + b"\n"
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(text)
        self._tar.addfile(info, io.BytesIO(text))
        self._tar.close()


class _InMemory(io.RawIOBase):
    """Reads bytes without a copy of all of them, which a checkpoint may be too large for."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._rest = memoryview(data)

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        end = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:end], self._rest[end:]
        return bytes(piece)


class _Hashed(io.RawIOBase):
    """Reads from another file, and hashes what it reads."""

    def __init__(self, file: IO[bytes], digest: Any) -> None:
        self._file, self._digest = file, digest

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._file.read(size)
        self._digest.update(data)
        return data
