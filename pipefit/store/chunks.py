"""The bytes of one file in GridFS: documents of 255 KiB, written and read by two threads.

    write:   this thread: cut, hash              two others: insert 4 MB, read them back, compare
    read:    two others: fetch 4 MB to where they belong                    this thread: hash

More threads are hardly faster, but cost a training beside them more.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bson import ObjectId
from pymongo.collection import Collection

from pipefit.errors import CheckpointCorrupt
from pipefit.store.backend import Document, Source
from pipefit.store.client import REPLICATED

#: Bytes of a chunk, and chunks in a message: the driver's own bucket sends messages of 32 MB, which
#: takes half as long again.
SIZE = 255 * 1024
_TOGETHER = 16
_PER_QUERY = 1000
_THREADS = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Chunks:
    """The chunks of one file.

    Args:
        collection: where the chunks are.
        key: id of the file.
        size: bytes of each chunk but the last.
    """

    def __init__(self, collection: Collection[Document], key: ObjectId, size: int = SIZE) -> None:
        self._collection = collection
        self._key = key
        self._size = size

    def write(self, source: Source) -> str:
        """Write all bytes; returns their sha256.

        What fails leaves some of them, but then none is being written any more.

        Raises:
            CheckpointCorrupt: what came back is not what was written.
        """
        digest = hashlib.sha256()

        def messages() -> Iterator[tuple[int, list[bytes]]]:
            chunks = cut(source.pieces(), self._size)
            for first in itertools.count(0, _TOGETHER):
                message = list(itertools.islice(chunks, _TOGETHER))
                if not message:
                    return
                for chunk in message:
                    digest.update(chunk)
                yield first, message

        for _ in in_order(self._write, messages()):
            pass
        return digest.hexdigest()

    def _write(self, message: tuple[int, list[bytes]]) -> None:
        """Insert chunks that follow each other, the first of which has this number."""
        first, chunks = message
        documents = [
            {"files_id": self._key, "n": number, "data": chunk}
            for number, chunk in enumerate(chunks, first)
        ]
        # They need not be on disk yet: the journalled write that publishes them comes after them
        # in the same journal.
        self._collection.with_options(write_concern=REPLICATED).insert_many(
            documents, ordered=False
        )
        found = self._between(first, first + len(chunks))
        for number, chunk in enumerate(chunks, first):
            back = next(found, {})
            if (back.get("n"), back.get("data")) != (number, chunk):
                raise CheckpointCorrupt(
                    f"chunk {number} of {self._key} in {self._collection.name} came back otherwise "
                    "than it was written, so the file is not kept: check the memory, the disks and "
                    "the network of the server, then type the same command again"
                )

    def read_into(self, buffer: memoryview) -> str:
        """Fill a buffer of the file's length; returns the sha256 of what is in it.

        Raises:
            ValueError: a chunk is missing, or out of place.
        """

        def fetch(at: int) -> memoryview:
            room = buffer[at : at + _TOGETHER * self._size]
            first = at // self._size
            found = self._between(first, first + _TOGETHER)
            for begin in range(0, len(room), self._size):
                part = room[begin : begin + self._size]
                part[:] = _checked(next(found, None), (at + begin) // self._size, len(part))
            return room

        digest = hashlib.sha256()
        for part in in_order(fetch, range(0, len(buffer), _TOGETHER * self._size)):
            digest.update(part)
        return digest.hexdigest()

    def some(self, numbers: Sequence[int], length: int) -> bytearray:
        """The chunks of these numbers, one after the other, of a file of this length.

        Raises:
            ValueError: a chunk is missing, or out of place.
        """
        buffer = bytearray()
        for start in range(0, len(numbers), _PER_QUERY):
            asked = list(numbers[start : start + _PER_QUERY])
            found = self._find({"$in": asked})
            for number in asked:
                expected = min(self._size, length - number * self._size)
                buffer += _checked(next(found, None), number, expected)
        return buffer

    def _between(self, first: int, end: int) -> Iterator[Document]:
        # A batch that is not full ends the cursor: one message brings all.
        return self._find({"$gte": first, "$lt": end}, batch_size=end - first + 1)

    def _find(self, numbers: Document, **options: Any) -> Iterator[Document]:
        # Without projection: the server would copy the bytes once more.
        wanted = {"files_id": self._key, "n": numbers}
        return iter(self._collection.find(wanted, sort=[("n", 1)], **options))


def _checked(chunk: Document | None, number: int, length: int) -> bytes:
    if chunk is None:
        raise ValueError("a chunk is missing")
    data: bytes = chunk["data"]
    if chunk["n"] != number or len(data) != length:
        raise ValueError(f"chunk {number} is out of place")
    return data


def cut(pieces: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Bytes that come in pieces of any length, in such of this one; the last may be shorter."""
    waiting: list[memoryview] = []
    missing = size
    for piece in pieces:
        rest = piece
        while len(rest) >= missing:
            yield b"".join([*waiting, rest[:missing]])
            rest = rest[missing:]
            waiting, missing = [], size
        if rest:
            waiting.append(rest)
            missing -= len(rest)
    if waiting:
        yield b"".join(waiting)


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """What threads make of the items, in their order.

    Items are taken only a little ahead, so that few are in memory. When this ends, however it does,
    nothing is being worked on any more.
    """
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(_THREADS, "pipefit-chunks") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
