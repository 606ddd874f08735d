"""A part of a file as a file: what lies uncompressed in an archive is read in place."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any


class Window(io.RawIOBase):
    """The bytes of a file from an offset on; reads only what is asked for.

    Args:
        path: of the file.
        offset: where the part begins.
        size: bytes of it.
    """

    def __init__(self, path: Path, offset: int, size: int):
        self._file = path.open("rb", buffering=0)
        self._offset = offset
        self._bytes = size
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position, from the beginning of the part."""
        return self._at

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position, as in any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._bytes}[whence]
        self._at = max(0, base + position)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; 0 at the end of the part."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._bytes - self._at)]
        self._file.seek(self._offset + self._at)
        count = self._file.readinto(view) or 0
        self._at += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
