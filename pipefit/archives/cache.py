"""The folder of the cache: names, locks, temporary folders, and whether an archive in it is whole.

<sha256>.archive      the archive as it was fetched
<sha256>.json         its sidecar, written last: size and mtime_ns when the sha256 was verified
<sha256>.unpacked/    files/ and, written last, manifest.json
<sha256>.lock         held by the process that works on the archive
.<sha256>.*.tmp       work in progress, or left by a killed process and removed by the next
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipefit.errors import ArchiveError
from pipefit.settings import home

if TYPE_CHECKING:
    from filelock import BaseFileLock

logger = logging.getLogger(__name__)

#: Seconds without any write after which unfinished work counts as left behind, where no lock tells.
ABANDONED_AFTER = 3600.0

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# In the names of temporary folders: a lock taken here says nothing of processes on other hosts if
# the file system keeps locks local.
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def checked_sha256(sha256: str) -> str:
    """The hash in lower case.

    Raises:
        ArchiveError: it is not 64 hexadecimal digits.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ArchiveError(
            f"sha256 = {sha256!r} must be 64 hexadecimal digits; `sha256sum FILE` prints them"
        )
    return sha256.lower()


def cached(sha256: str) -> Path | None:
    """The archive in the cache, or None if it is not there or damaged.

    One look at the file's size and time when these are what they were when the hash was verified;
    another time means that the file is hashed again.

    Raises:
        ArchiveError: `sha256` is not 64 hexadecimal digits.
    """
    digest = checked_sha256(sha256)
    archive = entry(digest, "archive")
    try:
        now = archive.stat()
        verified = _read_sidecar(digest)
        if not stat.S_ISREG(now.st_mode) or (verified and verified["size"] != now.st_size):
            return None
        if verified == _facts(digest, now):
            return archive
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return None
    except OSError:
        return None
    remember(digest)
    return archive


def publish(part: Path, digest: str) -> Path:
    """Give a verified download its final name, replacing a damaged file of that name."""
    with writing(part):
        # On disk before it has the name: after a power failure the size alone would look right.
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(entry(digest, "archive"))
    remember(digest)
    return entry(digest, "archive")


def remember(digest: str) -> None:
    """Write the sidecar of an archive that was just verified.

    Only a shortcut: where it cannot be written, the archive is hashed again the next time.
    """
    with suppress(OSError):
        facts = _facts(digest, entry(digest, "archive").stat())
        temp = _temporary_name(digest)
        temp.write_text(json.dumps(facts), encoding="utf-8")
        temp.replace(entry(digest, "json"))


def entry(digest: str, kind: str) -> Path:
    """The path of "archive", "json", "unpacked" or "lock" of an archive."""
    return _root() / f"{digest}.{kind}"


@contextmanager
def workspace(digest: str) -> Iterator[Path]:
    """An empty folder in the cache; meanwhile no other process has one for `digest`.

    It is removed at the end.

    Ask again whether the work is still to be done: another process may have done it meanwhile. That
    only saves work; where locks do not work, several processes do the same and each publishes
    something whole.

    Raises:
        ArchiveError: the cache cannot be written.
    """
    with writing(_root()):
        _root().mkdir(parents=True, exist_ok=True)
    lock = _locked(digest)
    try:
        _remove_abandoned(digest if lock else None)
        temp = _temporary_name(digest)
        with writing(temp):
            temp.mkdir()
        try:
            yield temp
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    finally:
        if lock:
            lock.release()


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn what the system refuses in the block into an ArchiveError that says what to do.

    Args:
        path: what is written; named in the message.
        needed: bytes it takes in all, if known.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _no_space(needed) from error
        raise ArchiveError(
            f"the cache cannot be written: {path}: {error.strerror or error}; "
            "make it writable or set PIPEFIT_HOME to a folder that is"
        ) from error


def check_space(needed: int) -> None:
    """Refuse before writing what cannot fit.

    Args:
        needed: bytes.

    Raises:
        ArchiveError: less is free where the cache is.
    """
    if shutil.disk_usage(_root()).free < needed:
        raise _no_space(needed)


def human(size: int) -> str:
    """A number of bytes for people.

    >>> human(300), human(5 * 2**30)
    ('300 bytes', '5.0 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 5)
    return f"{size / 1024**power:.1f} {' KMGTP'[power]}iB"


def _root() -> Path:
    return home() / "cache" / "archives"


def _temporary_name(digest: str) -> Path:
    return _root() / f".{digest}.{_HOST}.{uuid.uuid4().hex}.tmp"


def _facts(digest: str, now: os.stat_result) -> dict[str, int | str]:
    return {"sha256": digest, "size": now.st_size, "mtime_ns": now.st_mtime_ns}


def _read_sidecar(digest: str) -> dict[str, int | str] | None:
    try:
        found = json.loads(entry(digest, "json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "size" in found else None


def _no_space(needed: int | None) -> ArchiveError:
    free = shutil.disk_usage(_root()).free
    wanted = f"{human(needed)} are needed" if needed else "more is needed"
    return ArchiveError(
        f"no space for the archive: {wanted} and {human(free)} are free in {_root()}; "
        "free some, or set PIPEFIT_HOME to a folder on a larger disk or under a larger quota"
    )


def _locked(digest: str) -> BaseFileLock | None:
    """The lock of an archive, after waiting for it; None where the file system has no locks."""
    from filelock import FileLock, Timeout

    lock = FileLock(entry(digest, "lock"))
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that works on the archive %s", digest)
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        logger.debug("no lock for the archive %s: %s", digest, error)
        return None
    return lock


def _remove_abandoned(locked: str | None) -> None:
    """Remove what killed processes left.

    Args:
        locked: the archive whose lock this process holds.
    """
    for temp in _root().glob(".*.tmp"):
        _, digest, host, *_ = temp.name.split(".")
        if _abandoned(temp, digest, host, locked):
            shutil.rmtree(temp, ignore_errors=True)
            with suppress(OSError):
                temp.unlink(missing_ok=True)


def _abandoned(temp: Path, digest: str, host: str, locked: str | None) -> bool:
    """Whether nobody works in `temp` any more: its lock is free, or it was not touched for long."""
    from filelock import FileLock, Timeout

    sure = digest == locked
    if not sure:
        try:
            with FileLock(entry(digest, "lock"), timeout=0):
                sure = True
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            sure = False
    return (sure and host == _HOST) or _idle_seconds(temp) > ABANDONED_AFTER


def _idle_seconds(temp: Path) -> float:
    newest = 0.0
    for path in (temp, *temp.rglob("*")):
        with suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return time.time() - newest
