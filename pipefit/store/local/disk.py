"""What is done to files: every call that changes one is here.

Nothing is ever changed in place, but for bytes behind the end of what counts. A file is a draft
first (`write`), durable before it gets its name (`publish`, `move`); the name is durable when the
call returns. `publish` is the one act that is refused to all but one process: a hard link is made
or not, on local file systems as on NFS, SMB, Lustre or GPFS, whatever they do about locks.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipefit.errors import StoreAccessDenied, StoreError, StoreFull, StoreUnavailable

Bytes = bytes | bytearray | memoryview

_DRAFT = ".draft-"

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
# What a file server that is away, or a disk that was pulled out, answers.
_AWAY = {
    errno.ENOENT,
    errno.EIO,
    errno.ENXIO,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}

_P = ParamSpec("_P")
_T = TypeVar("_T")


class HasAddress(Protocol):
    """What `guarded` methods belong to."""

    @property
    def shown(self) -> str:
        """The folder, as people know it."""


_S = TypeVar("_S", bound=HasAddress)


def guarded(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """Decorate a method so that what the system refuses becomes Pipefit's errors."""

    @wraps(method)
    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with errors(self.shown):
            return method(self, *args, **kwargs)

    return call


@contextmanager
def errors(shown: str) -> Iterator[None]:
    """Turn what the system raises into Pipefit's errors; `shown` is the folder."""
    try:
        yield
    except OSError as error:
        raise _translated(error, shown) from error


def _translated(error: OSError, shown: str) -> StoreError:
    about = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    if error.errno in _NO_SPACE:
        return StoreFull(
            f"{shown} has no disk space left: {about}; free some, then type the same command again"
        )
    if error.errno in _DENIED:
        return StoreAccessDenied(f"{shown} refuses access: {about}; check who may write there")
    if error.errno in _AWAY:
        return StoreUnavailable(
            f"{shown} cannot be reached: {about}; is its file system mounted, and does it work?"
        )
    return StoreError(f"{shown} failed: {about}")


def token() -> str:
    """A name that nothing has yet."""
    return secrets.token_hex(8)


def is_draft(name: str) -> bool:
    """Whether a file of this name is one that was never published."""
    return name.startswith(_DRAFT)


def write(folder: Path, pieces: Iterable[Bytes]) -> Path:
    """A durable draft with these bytes; nothing is left of one that cannot be written."""
    draft = folder / f"{_DRAFT}{token()}"
    try:
        with _opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            for piece in pieces:
                _write_all(fd, memoryview(piece).cast("B"))
            _sync(fd)
    except BaseException:
        remove(draft)
        raise
    return draft


def publish(draft: Path, path: Path) -> bool:
    """Give a draft its name, if nothing has that name; the draft is gone afterwards.

    Returns:
        Whether it has the name now; False: another process was faster.

    Raises:
        StoreError: the file system has no hard links.
    """
    try:
        return _linked(draft, path)
    finally:
        remove(draft)


def _linked(draft: Path, path: Path) -> bool:
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        # Of a file server, which may have done it already: the answer was lost, and it asked again.
        if not _is_same(draft, path):
            return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StoreError(
            f"the file system of {path.parent} has no hard links ({error.strerror}), without which "
            "two processes may take one run: keep the store on another one"
        ) from error
    sync_folder(path.parent)
    return True


def _is_same(draft: Path, path: Path) -> bool:
    try:
        return path.samefile(draft)
    except FileNotFoundError:
        return False


def move(draft: Path, path: Path) -> None:
    """Give a draft its name, in the place of whatever has that name."""
    try:
        draft.replace(path)
    except BaseException:
        remove(draft)
        raise
    sync_folder(path.parent)


def append(path: Path, end: int, pieces: Iterable[Bytes]) -> int:
    """Write bytes from `end` on, durably, over whatever lies behind that; returns the new end."""
    at = end
    with _opened(path, os.O_WRONLY | os.O_CREAT) as fd:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            while view:
                done = os.pwrite(fd, view, at)
                at, view = at + done, view[done:]
        _sync(fd)
    if end == 0:
        sync_folder(path.parent)
    return at


def remove(path: Path) -> None:
    """Remove a file, if it is there and it can be done: whoever calls this could leave it, too."""
    with suppress(OSError):
        path.unlink()


def make_folders(path: Path) -> None:
    """Create a folder and those above it, durably."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    sync_folder(path.parent)


def names_in(folder: Path) -> list[str]:
    """What a folder holds; nothing if it does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # a snapshot, and no objects
    except (FileNotFoundError, NotADirectoryError):
        return []


def now(folder: Path) -> float:
    """The time by the clock that stamps the files in this folder, in seconds since the epoch.

    On network storage that is the server's; the clocks of the hosts never matter.
    """
    draft = folder / f"{_DRAFT}{token()}"
    try:
        with _opened(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            return os.fstat(fd).st_mtime
    finally:
        remove(draft)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    with _opened(folder, os.O_RDONLY) as fd:
        try:
            _sync(fd)
        except OSError as error:
            # Some network file systems have durable names and refuse this.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
                raise


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def _sync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # There fsync leaves the bytes in the disk's own memory. Not every file system knows it.
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)
