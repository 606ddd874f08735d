"""Fetching an archive: find it, copy it while hashing, verify, publish."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from pipefit.archives import sources
from pipefit.archives.cache import (
    cached,
    check_space,
    checked_sha256,
    human,
    publish,
    workspace,
    writing,
)
from pipefit.errors import ArchiveError

logger = logging.getLogger(__name__)

# With the waits below, about eight seconds of trying: a hiccup, not an outage.
_ATTEMPTS = 5
# Seconds between two lines about a long download.
_TELL_EVERY = 10.0


def fetch(url: str, sha256: str, base: Path | None = None) -> Path:
    """The archive in the cache, fetched from `url` unless it is there.

    Several processes that ask for one archive at once download it once. A download that fails
    leaves nothing; network errors are tried again a few times.

    Args:
        url: a path, a file:// or http(s):// address, or one that fsspec knows (s3://, gs://, ...).
        sha256: of the archive, 64 hexadecimal digits.
        base: where a relative path is looked for when it is not in the current folder: the folder
            of the experiment file.

    Returns:
        The path of the verified archive.

    Raises:
        ArchiveError: it cannot be found, fetched or stored, or has another hash.
    """
    digest = checked_sha256(sha256)
    if found := cached(digest):
        return found
    source = sources.locate(url, base)
    with workspace(digest) as temp:
        if found := cached(digest):
            return found
        _download(source, temp / "archive", digest)
        return publish(temp / "archive", digest)


class Sink:
    """Takes the bytes of a download: writes and hashes them, and stops when the disk is too small.

    Its own errors are ArchiveErrors, so any OSError of a download comes from the source.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.size = 0
        self._path = path
        self._label = label
        self._told = time.monotonic()
        self._expected: int | None = None
        self._hash = hashlib.sha256()
        with writing(path):
            self._file = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with writing(self._path, self._expected):
            self._file.close()

    def expect(self, size: int | None) -> None:
        """Told the size in bytes by a source that knows it before the first byte."""
        if size:
            self._expected = size
            check_space(size)

    def write(self, data: bytes) -> int:
        """Append `data`."""
        with writing(self._path, self._expected):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        if time.monotonic() - self._told > _TELL_EVERY:
            self._told = time.monotonic()
            whole = f" of {human(self._expected)}" if self._expected else ""
            logger.info("fetching %s: %s%s", self._label, human(self.size), whole)
        return len(data)

    def flush(self) -> None:
        """Nothing: pooch flushes after every chunk, which would only cost time."""

    def sha256(self) -> str:
        """The hash of what was written."""
        return self._hash.hexdigest()


def _download(source: sources.Source, part: Path, digest: str) -> None:
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    retrying = Retrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=0.5, max=5),
        retry=retry_if_exception(sources.is_passing),
        before_sleep=lambda state: logger.warning(
            "%s: attempt %d failed: %s",
            source.shown,
            state.attempt_number,
            source.reason(state.outcome.exception() if state.outcome else None),
        ),
        reraise=True,
    )
    try:
        retrying(_copy, source, part, digest)
    except ArchiveError:
        raise
    except Exception as error:  # what a backend of fsspec raises is not known beforehand
        raise ArchiveError(
            f"archive {source.shown} cannot be fetched: {source.reason(error)}; "
            "check the address, your access to it and the network"
        ) from error


def _copy(source: sources.Source, part: Path, digest: str) -> None:
    begin = time.monotonic()
    with Sink(part, source.shown) as sink:
        source.copy_to(sink)
    if sink.sha256() != digest:
        raise ArchiveError(
            f"archive {source.shown} has sha256 {sink.sha256()} ({sink.size} bytes), "
            f"expected {digest}; if this is the file you mean, set its sha256 in the experiment "
            "file, else it is damaged or was changed at its source"
        )
    seconds = time.monotonic() - begin
    logger.info("fetched %s (%s in %.1f s)", source.shown, human(sink.size), seconds)
