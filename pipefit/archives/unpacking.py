"""Unpacking an archive of the cache: scan, extract elsewhere, verify, publish by one rename."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import IO, Protocol

from pipefit.archives import tars, zips
from pipefit.archives.cache import (
    cached,
    check_space,
    checked_sha256,
    entry,
    workspace,
    writing,
)
from pipefit.archives.inventory import Inventory, Limits
from pipefit.errors import ArchiveError

_DEFAULT_LIMITS = Limits()
_MANIFEST = "manifest.json"


class _Reader(Protocol):
    """What the modules of the formats have in common."""

    def scan(self, file: IO[bytes], inventory: Inventory) -> None: ...

    def extract(self, file: IO[bytes], folder: Path) -> None: ...


def unpack(sha256: str, limits: Limits = _DEFAULT_LIMITS) -> Path:
    """The folder with the files of an archive of the cache, unpacked unless it is there.

    A tar, tar.gz, tar.bz2, tar.xz or zip archive is read to its end first: links, devices, names
    that lead outside or clash, and more than `limits` are refused before anything is written.

    Args:
        sha256: of an archive that `fetch` has put into the cache.
        limits: how much it may hold.

    Returns:
        The folder; read it, never write into it: other processes do too.

    Raises:
        ArchiveError: it is not in the cache, is damaged or refused, or cannot be written.
    """
    digest = checked_sha256(sha256)
    if found := unpacked(digest):
        return found
    with workspace(digest) as temp:
        if found := unpacked(digest):
            return found
        archive = cached(digest)
        if archive is None:
            raise ArchiveError(f"archive {digest} is not in the cache, or damaged there; fetch it")
        _build(archive, digest, limits, temp / "tree")
        return _publish(temp, digest)


def unpacked(sha256: str) -> Path | None:
    """The folder that `unpack` returns if it is whole: every file there, with its size.

    Raises:
        ArchiveError: `sha256` is not 64 hexadecimal digits.
    """
    digest = checked_sha256(sha256)
    tree = entry(digest, "unpacked")
    try:
        manifest = json.loads((tree / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["sha256"] != digest:
            return None
        whole = all(
            _is_file(tree / "files" / name, size) for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return tree / "files" if whole else None


def _is_file(path: Path, size: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def _reader(file: IO[bytes]) -> _Reader:
    if file.read(4) in zips.MAGIC:
        return zips
    return tars


def _build(archive: Path, digest: str, limits: Limits, tree: Path) -> None:
    with archive.open("rb") as file:
        reader = _reader(file)
        inventory = Inventory(digest, archive.stat().st_size, limits)
        try:
            reader.scan(file, inventory)
        except ArchiveError:
            raise
        except Exception as error:  # tarfile, zipfile and zlib have a dozen types for damage
            raise _damaged(digest, error) from error
        check_space(inventory.total_bytes)
        _extract(reader, file, inventory, tree)
    whole = all(_is_file(tree / "files" / name, size) for name, size in inventory.files.items())
    if not whole:
        raise _damaged(digest, "not every file came out with its size")
    manifest = json.dumps({"sha256": digest, "files": inventory.files})
    with writing(tree, inventory.total_bytes):
        (tree / _MANIFEST).write_text(manifest, encoding="utf-8")


def _extract(reader: _Reader, file: IO[bytes], inventory: Inventory, tree: Path) -> None:
    # Not flushed to the disk file by file, which takes minutes for many: what a power failure
    # leaves has other sizes than the manifest, and is unpacked again.
    with writing(tree, inventory.total_bytes):
        try:
            (tree / "files").mkdir(parents=True)
            reader.extract(file, tree / "files")
        except (OSError, ArchiveError):
            raise
        except Exception as error:  # as in the scan; a zip archive's data is only read here
            raise _damaged(inventory.digest, error) from error


def _publish(temp: Path, digest: str) -> Path:
    """Give the tree its final name; a damaged one of that name is moved away and removed."""
    tree = entry(digest, "unpacked")
    with writing(tree):
        try:
            (temp / "tree").rename(tree)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if found := unpacked(digest):  # without locks another process may have been first
                return found
            tree.rename(temp / "damaged")
            (temp / "tree").rename(tree)
    return tree / "files"


def _damaged(digest: str, reason: object) -> ArchiveError:
    return ArchiveError(
        f"archive {digest} is not a whole tar, tar.gz, tar.bz2, tar.xz or zip archive: {reason}; "
        "its sha256 is as given, so it was damaged or in another format before it was hashed"
    )
