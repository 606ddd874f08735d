"""Where archives come from: a path, http(s) through pooch, anything else through fsspec."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from pipefit.errors import ArchiveError, hide_in_addresses

_CHUNK = 2**20


class Target(Protocol):
    """What a source writes to."""

    def expect(self, size: int | None) -> None:
        """Told the size in bytes, if the source knows it, before the first byte."""

    def write(self, data: bytes) -> int:
        """Append `data`."""

    def flush(self) -> None:
        """Called by pooch after every chunk."""


class Source(ABC):
    """One archive at its origin; `shown` is its address without user, password and query."""

    shown: str

    @abstractmethod
    def copy_to(self, target: Target) -> None:
        """Write all bytes to `target`; raises whatever the transport raises."""

    def reason(self, error: BaseException | None) -> str:
        """Why a copy failed, without the secrets of the address."""
        return f"{type(error).__name__}: {error}"


def locate(url: str, base: Path | None = None) -> Source:
    """The source that `url` names.

    Args:
        url: see `pipefit.archives.fetch`.
        base: where a relative path is looked for when it is not in the current folder.

    Raises:
        ArchiveError: there is no such file, or the address cannot be understood.
    """
    if "://" not in url:
        return _LocalFile(_existing(url, base))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        shown = hide_in_addresses(url)
        raise ArchiveError(f"archive url {shown!r} is not a valid address: {error}") from error
    if parts.password == "***" or "=***" in parts.query:
        raise ArchiveError(
            f"archive url {url!r} has *** where a password was, as it was kept with a run: put the "
            "password back"
        )
    if parts.scheme == "file":
        return _LocalFile(_path_of(url, parts))
    return _Http(url, parts) if parts.scheme in ("http", "https") else _Fsspec(url, parts)


def is_passing(error: BaseException) -> bool:
    """Whether trying again can help: a fault of the network or an overloaded server."""
    from requests import exceptions as http

    if isinstance(error, http.HTTPError):
        status = error.response.status_code if error.response is not None else 0
        return status in (408, 425, 429) or status >= 500
    if isinstance(error, http.RequestException):
        passing = (http.ConnectionError, http.Timeout, http.ChunkedEncodingError)
        return isinstance(error, passing) and not isinstance(error, http.SSLError)
    lasting = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    return isinstance(error, OSError) and not isinstance(error, lasting)


class _LocalFile(Source):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = str(path)

    def copy_to(self, target: Target) -> None:
        with self._path.open("rb") as file:
            target.expect(self._path.stat().st_size)
            shutil.copyfileobj(file, target, _CHUNK)


class _Remote(Source):
    def __init__(self, url: str, parts: SplitResult) -> None:
        self._url = url
        user, _, host = parts.netloc.rpartition("@")
        self.shown = f"{parts.scheme}://{host}{parts.path}"
        secrets = (f"{user}@" if user else None, parts.password, parts.query)
        self._secrets = [secret for secret in secrets if secret]

    def reason(self, error: BaseException | None) -> str:
        text = super().reason(error)
        for secret in self._secrets:
            text = text.replace(secret, "...")
        return text


class _Http(_Remote):
    def copy_to(self, target: Target) -> None:
        from pooch import HTTPDownloader

        download = HTTPDownloader(
            progressbar=_Length(target),
            chunk_size=_CHUNK,
            # Else a server may compress what is compressed, and requests would unpack both.
            headers={"Accept-Encoding": "identity"},
        )
        download(self._url, target, None)

    def reason(self, error: BaseException | None) -> str:
        response = getattr(error, "response", None)
        if response is not None:
            return f"the server answers {response.status_code} {response.reason}"
        return super().reason(error)


class _Length:
    """Pooch's progress bar, used to learn the size before the first byte."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def total(self) -> int:
        """Bytes; only written, by pooch."""
        return 0

    @total.setter
    def total(self, size: int) -> None:
        self._target.expect(size)

    def update(self, size: int) -> None:
        """Told after every chunk."""

    def reset(self) -> None:
        """Told at the end."""

    def close(self) -> None:
        """Told at the end."""


class _Fsspec(_Remote):
    def copy_to(self, target: Target) -> None:
        from fsspec.core import url_to_fs

        try:
            system, path = url_to_fs(self._url)
        except ImportError as error:
            raise ArchiveError(
                f"archive {self.shown} needs a package that is not installed: {error}"
            ) from error
        except ValueError as error:
            raise ArchiveError(
                f"archive {self.shown} cannot be fetched: {self.reason(error)}; allowed are "
                "a path, file://, http(s):// and the protocols of fsspec such as s3:// and gs://"
            ) from error
        with system.open(path, "rb") as file:
            target.expect(getattr(file, "size", None))
            shutil.copyfileobj(file, target, _CHUNK)


def _existing(url: str, base: Path | None) -> Path:
    given = Path(url).expanduser()
    folders = [Path.cwd()] if base is None or given.is_absolute() else [Path.cwd(), base.absolute()]
    places = list(dict.fromkeys(folder / given for folder in folders))
    for place in places:
        if place.is_file():
            return place
    tried = " nor ".join(map(str, places))
    raise ArchiveError(
        f"archive url = {url!r}: there is no file {tried}; put it there or correct the url, which "
        "is a path relative to the current folder or to the experiment file, or an address"
    )


def _path_of(url: str, parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost"):
        raise ArchiveError(
            f"archive url = {hide_in_addresses(url)!r} names the host {parts.hostname!r}; write "
            "file:///folder/file with three slashes, or a path"
        )
    return _existing(str(path), None)
