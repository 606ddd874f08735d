"""Reading parts of files of GridFS."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from pipefit.store.tfutils.database import TfutilsDatabase
    from pipefit.store.tfutils.records import TfutilsFile

#: Pieces of 255 KiB that are asked for together.
_TOGETHER = 16


class PartialFile(io.RawIOBase):
    """A file of GridFS, of which those pieces are fetched that are needed; the last one is kept.

    Nothing verifies what is read in parts but the order and the length of the pieces.

    Args:
        database: where it is.
        file: which one.
    """

    def __init__(self, database: TfutilsDatabase, file: TfutilsFile) -> None:
        super().__init__()
        self._database = database
        self._file = file
        self._position = 0
        self._kept = (-1, b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where it is."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer, unless the file ends; the number of bytes.

        Raises:
            CheckpointCorrupt: a piece is missing, or has another length than it should.
        """
        target = memoryview(buffer).cast("B")
        filled = 0
        size = min(len(target), max(0, self._file.size - self._position))
        while filled < size:
            number, begin = divmod(self._position, self._file.chunk_size)
            last = (self._position + size - filled - 1) // self._file.chunk_size
            for piece in self._pieces(number, min(last, number + _TOGETHER - 1)):
                part = piece[begin : begin + size - filled]
                target[filled : filled + len(part)] = part
                filled += len(part)
                self._position += len(part)
                begin = 0
        return filled

    def _pieces(self, first: int, last: int) -> list[bytes]:
        if first == last == self._kept[0]:
            return [self._kept[1]]
        found = self._database.pieces(self._file, first, last)
        self._kept = (last, found[-1])
        return found
