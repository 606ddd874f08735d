"""Copies of checkpoints on this machine, so that what is read again need not be fetched again.

    <PIPEFIT_HOME>/cache/checkpoints/<id>-<sha256>              a copy
    <PIPEFIT_HOME>/cache/checkpoints/.<id>-<sha256>.used        was written when it was last read
    <PIPEFIT_HOME>/cache/checkpoints/.<id>-<sha256>.reading-*   somebody reads it
    <PIPEFIT_HOME>/cache/checkpoints/.draft-*                   is being written

A copy is published by one rename and never changed. It is compared with its sha256 whenever all of
it is read, and before the first time that a process reads a part of it; one that is damaged is
thrown away and fetched again. Beyond the limit those go that were not read for longest, but none
that is being read. Nothing here needs locks, owners or times that are set: the folder may be on
network storage and be shared by hosts. The cache is only a shortcut: whatever it cannot do, such as
write to a full disk, is done without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit import settings
from pipefit.errors import CheckpointCorrupt, SettingsError, StoreError
from pipefit.store.backend import Files, StoredFile, undamaged

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.codec import TensorIndex

logger = logging.getLogger(__name__)

#: Gigabytes of copies unless luigi.cfg says otherwise.
DEFAULT_GIGABYTES = "5"

_USED, _READING, _DRAFT = ".used", ".reading-", ".draft-"
#: Seconds after which whoever wrote a draft, or reads, is taken to be dead.
_PATIENCE = 3600.0
_PIECE = 2**20

# What this process has compared with its sha256: path, and what the system says of the file.
_verified: set[tuple[Path, int, int, int]] = set()


def configured() -> CheckpointCache | None:
    """The cache that the settings ask for: `[cache] checkpoint_gigabytes`; None for 0.

    Raises:
        SettingsError: that is no number, or a negative one.
    """
    text = settings.value("cache", "checkpoint_gigabytes", DEFAULT_GIGABYTES)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < 1e9:
        raise SettingsError(
            f"[cache] checkpoint_gigabytes = {text}: must be a number, 0 (no cache) or more"
        )
    folder = settings.home() / "cache" / "checkpoints"
    return CheckpointCache(folder, int(gigabytes * 1e9)) if gigabytes else None


class CheckpointCache:
    """The copies in one folder.

    Args:
        folder: made when it is needed.
        limit: bytes of all copies together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def read_tensors(
        self, source: Files, file: StoredFile, include: str | None = None
    ) -> dict[str, np.ndarray]:
        """The tensors of a checkpoint; of what is read whole a copy is kept.

        Args:
            source: where the checkpoint is.
            file: the checkpoint.
            include: as in `Files.read_tensors`.

        Raises:
            CheckpointCorrupt: it is gone from there, or damaged there.
        """
        name = f"{file.id}-{file.sha256}"
        copy = StoredFile(name, file.size, file.sha256, f"the copy of {file.label}")
        with self._used(copy):
            found = self._read(copy, include)
        if found is not None:
            return found
        if include is not None:
            return source.read_tensors(file, include)
        data = source.read(file)
        self._keep(copy, data)
        from pipefit.store import codec

        with undamaged(file):
            return codec.decode_tensors(memoryview(data))

    def _read(self, copy: StoredFile, include: str | None) -> dict[str, np.ndarray] | None:
        """The tensors of a copy; None if it is not there, or of no use."""
        from pipefit.store.local.files import Folder

        path = self.folder / copy.id
        if not path.exists():
            return None
        try:
            if include is not None:
                self._verify(path, copy)
            return Folder(self.folder, str(self.folder)).read_tensors(copy, include)
        except CheckpointCorrupt as error:
            logger.warning("%s; it is fetched again", error)
            self._remove(path)
        except (StoreError, OSError) as error:
            logger.debug("%s cannot be read: %s", path, error)
        return None

    def _verify(self, path: Path, copy: StoredFile) -> None:
        """Raise `CheckpointCorrupt` unless the copy has its sha256; asked once per process."""
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            known = (path, facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if known in _verified:
                return
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if (facts.st_size, digest) != (copy.size, copy.sha256):
            raise CheckpointCorrupt(f"{copy.label}, {path}, is damaged")
        _verified.add(known)

    def _keep(self, copy: StoredFile, data: bytes | bytearray) -> None:
        """Write a copy, if there is room for it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if copy.size > min(self.limit, shutil.disk_usage(self.folder).free // 2):
                return
            self._make_room(copy.size)
            self._write(self.folder / copy.id, data)
        except OSError as error:
            logger.debug("no copy of %s is kept: %s", copy.id, error)

    def _write(self, path: Path, data: bytes | bytearray) -> None:
        draft = self.folder / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            with draft.open("xb") as file:
                file.write(data)
            # Not flushed to the disk: what a power failure damages is found by its sha256.
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _used(self, copy: StoredFile) -> Iterator[None]:
        """Say that the copy is being read, and when it was."""
        marker = self.folder / f".{copy.id}{_READING}{secrets.token_hex(8)}"
        with suppress(OSError):  # as if nobody had read it
            if (self.folder / copy.id).exists():
                marker.open("xb").close()
        try:
            yield
        finally:
            with suppress(OSError):
                marker.replace(self.folder / f".{copy.id}{_USED}")

    def _make_room(self, size: int) -> None:
        """Remove what was not read for longest until so many bytes fit."""
        now = self._now()
        names = {path.name for path in self.folder.iterdir()}
        copies = [self.folder / name for name in names if not name.startswith(".")]
        for name in names:
            path = self.folder / name
            if name.startswith(_DRAFT) and _age(path, now) > _PATIENCE:
                self._remove(path)
            if name.endswith(_USED) and name[1:].removesuffix(_USED) not in names:
                self._remove(path)
        sizes = {path: _size(path) for path in copies}
        total = sum(sizes.values())
        for path in sorted(copies, key=self._last_use):
            if total + size <= self.limit:
                return
            if self._evicted(path, now):
                total -= sizes[path]

    def _evicted(self, path: Path, now: float) -> bool:
        """Remove a copy unless somebody reads it."""
        aside = self.folder / f"{_DRAFT}{secrets.token_hex(8)}"
        with suppress(OSError):
            # Who opens it from now on does not find it; who had opened it before has said so.
            path.replace(aside)
            markers = self.folder.glob(f".{path.name}{_READING}*")
            if any(_age(marker, now) < _PATIENCE for marker in markers):
                aside.replace(path)
                return False
            aside.unlink()
            for rest in self.folder.glob(f".{path.name}.*"):
                self._remove(rest)
            return True
        return False

    def _last_use(self, path: Path) -> float:
        used = self.folder / f".{path.name}{_USED}"
        return max(_time(path), _time(used))

    def _now(self) -> float:
        """The time by the clock that stamps the files, which is a server's on network storage."""
        draft = self.folder / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            with draft.open("xb") as file:
                return os.fstat(file.fileno()).st_mtime
        finally:
            draft.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()


class CachedFiles:
    """`pipefit.store.backend.Files` with copies of what is read as tensors."""

    def __init__(self, files: Files, cache: CheckpointCache) -> None:
        self._files = files
        self._cache = cache

    def put(
        self, data: bytes | bytearray, filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write the bytes; no copy is kept."""
        return self._files.put(data, filename, metadata)

    def put_tensors(
        self, tensors: Mapping[str, np.ndarray], filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write tensors; no copy is kept."""
        return self._files.put_tensors(tensors, filename, metadata)

    def read(self, file: StoredFile) -> bytes | bytearray:
        """All bytes of a file, from where it is."""
        return self._files.read(file)

    def read_tensors(self, file: StoredFile, include: str | None = None) -> dict[str, np.ndarray]:
        """The tensors of a checkpoint, from its copy if there is one."""
        return self._cache.read_tensors(self._files, file, include)

    def read_index(self, file: StoredFile) -> TensorIndex:
        """What lies where in a file of tensors, from where it is."""
        return self._files.read_index(file)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove files; copies of them go when there is no room."""
        self._files.remove(ids)


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _age(path: Path, now: float) -> float:
    """Seconds since it was written; 0 if it is gone."""
    return now - (_time(path) or now)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
