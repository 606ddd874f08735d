"""Files in GridFS: written under a fresh id, verified, read whole or in parts.

A file is never changed. It exists for readers only through the record that names its id, with the
length and sha256 kept there; what no record names is being written, or garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bson import Int64, ObjectId
from bson.errors import InvalidId
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from pipefit.errors import CheckpointCorrupt, StoreError
from pipefit.store.backend import Document, FoundFile, StoredFile, undamaged
from pipefit.store.client import REPLICATED, Connection, guarded, retrying

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.codec import TensorIndex

# Larger headers stay in the file alone: they would make listing the files slow.
_HEADER_LIMIT = 500_000
_CHUNKS_PER_QUERY = 1000

_CHUNK = 255 * 1024
_MESSAGE = 16 * _CHUNK

_indexed: set[tuple[str, str]] = set()


class Bucket:
    """A GridFS bucket, for instance `digits.checkpoints`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name

    @property
    def files(self) -> Collection[Document]:
        """One document per complete file."""
        return self.connection.database[f"{self.name}.files"]

    @property
    def chunks(self) -> Collection[Document]:
        """The bytes, 255 KiB per document."""
        return self.connection.database[f"{self.name}.chunks"]

    def put(self, data: bytes, filename: str, metadata: Mapping[str, Any]) -> StoredFile:
        """Write the bytes under a fresh id and read them back.

        An upload that loses its connection is repeated whole under another id. Nothing is left of
        a failed one, unless the server cannot be reached to remove it.

        Raises:
            StoreError: what came back is not what was written.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        document = {**metadata, "sha256": sha256}
        failed: list[ObjectId] = []
        with self.connection.errors():
            retrying()(self._create_index)
            stored = retrying()(self._put_once, data, filename, document, failed)
            self._remove(failed)
        return stored

    def put_tensors(
        self, tensors: Mapping[str, np.ndarray], filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write tensors; their index is kept beside the file as well, unless it is very long."""
        from pipefit.store import codec

        data = codec.encode_tensors(tensors)
        return self.put(data, filename, {**metadata, **_index_of(data)})

    def put_as(self, key: str, data: bytes, metadata: Mapping[str, Any]) -> None:
        """Write a file under an id that it has elsewhere, and read it back.

        What there is of it already, of an earlier try for the same run, is replaced.

        Args:
            key: its id.
            data: its bytes: tensors.
            metadata: at least the run.

        Raises:
            StoreError: another run has a file of this id, or what came back is not what was
                written.
        """
        document = {**metadata, **_index_of(data), "sha256": hashlib.sha256(data).hexdigest()}
        with self.connection.errors():
            self._check_free(_object_id(key), metadata["run"])
            retrying()(self._create_index)
            retrying()(self._put_again, _object_id(key), data, document)

    def _check_free(self, key: ObjectId, run: str) -> None:
        there = retrying()(self.files.find_one, {"_id": key}, {"metadata.run": 1})
        if there is not None and there["metadata"]["run"] != run:
            raise StoreError(
                f"{self.name} has the file {key} for another run, {there['metadata']['run']!r}: "
                "import into another database"
            )

    def _put_again(self, key: ObjectId, data: bytes, metadata: Document) -> None:
        self._remove([key])
        self._insert(key, data, f"{metadata['run']}/{key}.safetensors", metadata)
        self._verify(StoredFile(str(key), len(data), metadata["sha256"]))

    def _put_once(
        self, data: bytes, filename: str, metadata: Document, failed: list[ObjectId]
    ) -> StoredFile:
        key = ObjectId()
        try:
            self._insert(key, data, filename, metadata)
            stored = StoredFile(str(key), len(data), metadata["sha256"])
            self._verify(stored)
        except BaseException:
            # Otherwise chunks would stay that no file owns.
            failed.append(key)
            with suppress(PyMongoError):
                self._remove([key])
            raise
        return stored

    def _insert(self, key: ObjectId, data: bytes, filename: str, metadata: Document) -> None:
        """Write a file as GridFS lays it out.

        The driver's own bucket sends messages of 32 MB, which takes half as long again.
        """
        # First the document, so that whoever finds the chunks of an upload that was killed knows
        # whose they are and, by the server's clock, how old.
        document = {
            "filename": filename,
            "length": Int64(len(data)),
            "chunkSize": _CHUNK,
            "metadata": metadata,
        }
        stamped = {"$mergeObjects": [{"_id": key, "uploadDate": "$$NOW"}, {"$literal": document}]}
        self.files.with_options(write_concern=REPLICATED).update_one(
            {"_id": key}, [{"$replaceWith": stamped}], upsert=True
        )
        # The bytes need not be on disk yet: the journalled write that publishes them comes after
        # them in the same journal.
        chunks = self.chunks.with_options(write_concern=REPLICATED)
        for start in range(0, len(data), _MESSAGE):
            end = min(start + _MESSAGE, len(data))
            chunks.insert_many(
                [
                    {"files_id": key, "n": begin // _CHUNK, "data": data[begin : begin + _CHUNK]}
                    for begin in range(start, end, _CHUNK)
                ],
                ordered=False,
            )

    def _create_index(self) -> None:
        if (self.connection.shown, self.name) not in _indexed:
            self.chunks.create_index([("files_id", 1), ("n", 1)], unique=True)
            _indexed.add((self.connection.shown, self.name))

    def _verify(self, file: StoredFile) -> None:
        for _ in self._verified(file):
            pass

    def _verified(self, file: StoredFile) -> Iterator[bytes]:
        """The chunks of a file; raises at its end if length or sha256 differ."""
        digest = hashlib.sha256()
        size = 0
        for _, data in self._find(file, {}):
            digest.update(data)
            size += len(data)
            yield data
        if (size, digest.hexdigest()) != (file.size, file.sha256):
            raise CheckpointCorrupt(
                f"{file.label} is damaged: {self.name} holds {size} bytes with sha256 "
                f"{digest.hexdigest()} under {file.id}, its record says {file.size} bytes and "
                f"{file.sha256}; use an earlier one"
            )

    def _find(self, file: StoredFile, condition: Mapping[str, Any]) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of the chunks that fulfil the condition, in order."""
        wanted = {"files_id": _object_id(file.id), **condition}
        for chunk in self.chunks.find(wanted, {"_id": 0, "n": 1, "data": 1}).sort("n", 1):
            yield chunk["n"], chunk["data"]

    @guarded
    def read(self, file: StoredFile) -> bytearray:
        """All bytes of a file, verified.

        Raises:
            CheckpointCorrupt: it is gone, or its length or sha256 differ.
        """
        buffer = bytearray(file.size)
        view = memoryview(buffer)
        at = 0
        for data in self._verified(file):
            room = view[at : at + len(data)]
            room[:] = data[: len(room)]  # more than there is room for is found by the length
            at += len(data)
        return buffer

    def read_tensors(self, file: StoredFile, include: str | None = None) -> dict[str, np.ndarray]:
        """The tensors whose name matches `include`; None: all, and the whole file is verified.

        Raises:
            CheckpointCorrupt: the file is gone or damaged.
        """
        with undamaged(file):
            return self._read_all(file) if include is None else self._read_some(file, include)

    def _read_all(self, file: StoredFile) -> dict[str, np.ndarray]:
        from pipefit.store import codec

        return codec.decode_tensors(memoryview(self.read(file)))

    @guarded
    def _read_some(self, file: StoredFile, include: str) -> dict[str, np.ndarray]:
        from pipefit.store import codec

        size, header = self._layout(file)
        index = codec.read_index(header)
        spans = {
            name: (entry, index.start + entry.begin, index.start + entry.end)
            for name, entry in index.matching(include).items()
        }
        if any(end > file.size for _, _, end in spans.values()):
            raise ValueError("its index points beyond its end")
        numbers = sorted(
            {n for _, begin, end in spans.values() for n in _chunk_numbers(begin, end, size)}
        )
        # Chunks that follow each other in the file do so here, so that every tensor is one piece.
        data = memoryview(self._chunks_of(file, numbers, size))
        place = {number: i * size for i, number in enumerate(numbers)}
        found = {}
        for name, (entry, begin, end) in spans.items():
            at = place.get(begin // size, 0) + begin % size
            found[name] = codec.tensor(entry, data[at : at + end - begin])
        return found

    @guarded
    def read_index(self, file: StoredFile) -> TensorIndex:
        """What lies where in a file of tensors, of which nothing else is read.

        Raises:
            CheckpointCorrupt: the file is gone or damaged.
        """
        from pipefit.store import codec

        with undamaged(file):
            return codec.read_index(self._layout(file)[1])

    def _layout(self, file: StoredFile) -> tuple[int, str]:
        """Bytes per chunk, and the header of a file of tensors."""
        document = self.files.find_one(
            {"_id": _object_id(file.id)}, {"chunkSize": 1, "length": 1, "metadata.header": 1}
        )
        if document is None or document["length"] != file.size:
            raise CheckpointCorrupt(
                f"{file.label} is gone from {self.name} or has another length than its record says "
                f"({file.size} bytes under {file.id}); use an earlier one"
            )
        size: int = document["chunkSize"]
        header: str | None = document["metadata"].get("header")
        if header is None:
            from pipefit.store import codec

            end = 8 + codec.header_length(self._chunks_of(file, [0], size))
            if end > file.size:
                raise ValueError("its header points beyond its end")
            numbers = _chunk_numbers(0, end, size)
            header = codec.header_text(self._chunks_of(file, numbers, size))
        return size, header

    def _chunks_of(self, file: StoredFile, numbers: Sequence[int], size: int) -> bytearray:
        """The chunks of these numbers, one after the other."""
        buffer = bytearray()
        for start in range(0, len(numbers), _CHUNKS_PER_QUERY):
            asked = list(numbers[start : start + _CHUNKS_PER_QUERY])
            expected = iter(asked)
            for number, data in self._find(file, {"n": {"$in": asked}}):
                if number != next(expected) or len(data) != min(size, file.size - number * size):
                    raise ValueError(f"chunk {number} is out of place")
                buffer += data
            if next(expected, None) is not None:
                raise ValueError("a chunk is missing")
        return buffer

    def found(self, place: str) -> Iterator[FoundFile]:
        """All files, and bytes of which there is no file; called `place`."""
        # The bytes first: of a file that is written meanwhile the document is there by then.
        stages: list[Mapping[str, Any]] = [
            {"$sort": {"files_id": 1, "n": 1}},
            {"$group": {"_id": "$files_id"}},
        ]
        lonely = {found["_id"] for found in self.chunks.aggregate(stages, allowDiskUse=True)}
        for file in self.files.find({}, {"metadata.header": 0}):
            lonely.discard(file["_id"])
            metadata = file.get("metadata") or {}
            yield FoundFile(str(file["_id"]), place, file["length"], file["uploadDate"], metadata)
        for key in lonely:
            if isinstance(key, ObjectId):  # ours are
                yield self._lonely(key, place)

    def _lonely(self, key: ObjectId, place: str) -> FoundFile:
        """Bytes without a file; how old they are only the clock of their writer tells."""
        last = self.chunks.find_one({"files_id": key}, {"_id": 1}, sort=[("n", -1)])
        newest = last["_id"] if last else key
        written = (newest if isinstance(newest, ObjectId) else key).generation_time
        stages: list[Mapping[str, Any]] = [
            {"$match": {"files_id": key}},
            {"$group": {"_id": None, "size": {"$sum": {"$binarySize": "$data"}}}},
        ]
        size = next((group["size"] for group in self.chunks.aggregate(stages)), 0)
        return FoundFile(str(key), place, size, written, {})

    @guarded
    def remove(self, ids: Iterable[str]) -> None:
        """Remove files; those that are gone already do not matter."""
        self._remove([_object_id(key) for key in ids])

    def _remove(self, keys: list[ObjectId]) -> None:
        if keys:
            # The documents last: they say whose chunks are left if this is cut off.
            self.chunks.delete_many({"files_id": {"$in": keys}})
            self.files.delete_many({"_id": {"$in": keys}})


def _index_of(data: bytes) -> Document:
    """What is kept of a file of tensors in its metadata."""
    from pipefit.store import codec

    if codec.header_length(data) > min(_HEADER_LIMIT, len(data) - 8):
        return {}
    return {"header": codec.header_text(data)}


def _chunk_numbers(begin: int, end: int, size: int) -> range:
    """The chunks that hold the bytes from `begin` to `end` of a file."""
    return range(begin // size, -(-end // size))


def _object_id(key: str) -> ObjectId:
    try:
        return ObjectId(key)
    except InvalidId:
        raise StoreError(f"{key!r} is not the id of a file: it has 24 hexadecimal digits") from None
