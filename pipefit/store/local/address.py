"""Addresses of folders.

>>> folder_of("file:///home/me/my%20results").as_posix()
'/home/me/my results'
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipefit.errors import StoreError


def folder_of(uri: str) -> Path:
    """The folder that file:///FOLDER means; file:FOLDER is one below the current folder.

    Raises:
        StoreError: it names no folder of this machine.
    """
    parts = urlsplit(uri)
    path = unquote(parts.path)
    local = parts.netloc in ("", "localhost")
    if parts.scheme != "file" or not local or not path or parts.query or parts.fragment:
        raise StoreError(
            f"{uri!r} names no folder of this machine: write file:///ABSOLUTE/FOLDER, or "
            "file:FOLDER for one below the current folder, and ? # % in names as %3F %23 %25"
        )
    if "\0" in path:
        raise StoreError(f"{uri!r} names no folder: it has a zero byte")
    return Path(path).expanduser().absolute()
