"""Files in GridFS: written under a fresh id, verified, read whole or in parts.

A file is never changed. It exists for readers only through the record that names its id, with the
length and sha256 kept there; what no record names is being written, or garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bson import Int64, ObjectId
from bson.errors import InvalidId
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from pipefit.errors import CheckpointCorrupt, StoreError
from pipefit.store.backend import Document, FoundFile, Source, StoredFile, Whole, undamaged
from pipefit.store.chunks import SIZE, Chunks
from pipefit.store.client import REPLICATED, Connection, guarded, retrying

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.codec import TensorIndex

# Larger headers stay in the file alone: they would make listing the files slow.
_HEADER_LIMIT = 500_000

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
        """The bytes, 255 KiB per document; they have always been so many."""
        return self.connection.database[f"{self.name}.chunks"]

    def put(
        self, data: bytes | bytearray, filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write the bytes under a fresh id and read them back.

        An upload that loses its connection is repeated whole under another id. Nothing is left of
        a failed one, unless the server cannot be reached to remove it.

        Raises:
            CheckpointCorrupt: what came back is not what was written.
        """
        return self._put(Whole(data), filename, metadata)

    def put_tensors(
        self, tensors: Mapping[str, np.ndarray], filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write tensors; their index is kept beside the file as well, unless it is very long.

        No copy of all of them is made. Otherwise as `put`.
        """
        from pipefit.store.codec import TensorFile

        file = TensorFile(tensors)
        return self._put(file, filename, {**metadata, **_index_of(file.header)})

    def _put(self, source: Source, filename: str, metadata: Mapping[str, Any]) -> StoredFile:
        failed: list[ObjectId] = []
        with self.connection.errors():
            retrying()(self._create_index)
            stored = retrying()(self._put_once, source, filename, metadata, failed)
            self._remove(failed)
        return stored

    def put_as(self, key: str, data: bytes | bytearray, metadata: Mapping[str, Any]) -> None:
        """Write a file under an id that it has elsewhere, and read it back.

        What there is of it already, of an earlier try for the same run, is replaced.

        Args:
            key: its id.
            data: its bytes: tensors.
            metadata: at least the run.

        Raises:
            StoreError: another run has a file of this id.
            CheckpointCorrupt: what came back is not what was written.
        """
        from pipefit.store import codec

        header = "" if codec.header_length(data) > len(data) - 8 else codec.header_text(data)
        document = {**metadata, **_index_of(header)}
        with self.connection.errors():
            self._check_free(_object_id(key), metadata["run"])
            retrying()(self._create_index)
            retrying()(self._put_again, _object_id(key), Whole(data), document)

    def _check_free(self, key: ObjectId, run: str) -> None:
        there = retrying()(self.files.find_one, {"_id": key}, {"metadata.run": 1})
        if there is not None and there["metadata"]["run"] != run:
            raise StoreError(
                f"{self.name} has the file {key} for another run, {there['metadata']['run']!r}: "
                "import into another database"
            )

    def _put_again(self, key: ObjectId, source: Source, metadata: Document) -> None:
        self._remove([key])
        self._write(key, source, f"{metadata['run']}/{key}.safetensors", metadata)

    def _put_once(
        self, source: Source, filename: str, metadata: Mapping[str, Any], failed: list[ObjectId]
    ) -> StoredFile:
        key = ObjectId()
        try:
            sha256 = self._write(key, source, filename, metadata)
        except BaseException:
            # Otherwise chunks would stay that no file owns.
            failed.append(key)
            with suppress(PyMongoError):
                self._remove([key])
            raise
        return StoredFile(str(key), source.size, sha256)

    def _write(
        self, key: ObjectId, source: Source, filename: str, metadata: Mapping[str, Any]
    ) -> str:
        """Write a file as GridFS lays it out, and read it back; returns its sha256."""
        # First the document, so that whoever finds the chunks of an upload that was killed knows
        # whose they are and, by the server's clock, how old.
        document = {
            "filename": filename,
            "length": Int64(source.size),
            "chunkSize": SIZE,
            "metadata": metadata,
        }
        stamped = {"$mergeObjects": [{"_id": key, "uploadDate": "$$NOW"}, {"$literal": document}]}
        files = self.files.with_options(write_concern=REPLICATED)
        files.update_one({"_id": key}, [{"$replaceWith": stamped}], upsert=True)
        sha256 = self._chunks_of(key).write(source)
        sealed = files.update_one({"_id": key}, {"$set": {"metadata.sha256": sha256}})
        if sealed.matched_count == 0:
            raise StoreError(
                f"{filename} was removed from {self.name} while it was written: type the same "
                "command again"
            )
        return sha256

    def _chunks_of(self, key: ObjectId, size: int = SIZE) -> Chunks:
        return Chunks(self.chunks, key, size)

    def _create_index(self) -> None:
        if (self.connection.shown, self.name) not in _indexed:
            self.chunks.create_index([("files_id", 1), ("n", 1)], unique=True)
            _indexed.add((self.connection.shown, self.name))

    def read(self, file: StoredFile) -> bytearray:
        """All bytes of a file, verified.

        Raises:
            CheckpointCorrupt: it is gone, or its length or sha256 differ.
        """
        buffer = bytearray(file.size)
        self._read_into(memoryview(buffer), file)
        return buffer

    @guarded
    def _read_into(self, buffer: memoryview, file: StoredFile) -> None:
        with undamaged(file):
            # Without a look at its document: the record that names the file says enough.
            sha256 = self._chunks_of(_object_id(file.id)).read_into(buffer)
        if sha256 != file.sha256:
            raise CheckpointCorrupt(
                f"{file.label} is damaged: {self.name} holds {file.size} bytes with sha256 "
                f"{sha256} under {file.id}, its record says {file.sha256}; use an earlier one"
            )

    def read_tensors(self, file: StoredFile, include: str | None = None) -> dict[str, np.ndarray]:
        """The tensors whose name matches `include`; None: all, and the whole file is verified.

        Raises:
            CheckpointCorrupt: the file is gone or damaged.
        """
        with undamaged(file):
            return self._read_all(file) if include is None else self._read_some(file, include)

    def _read_all(self, file: StoredFile) -> dict[str, np.ndarray]:
        import numpy as np

        from pipefit.store import codec

        # Other than of a bytearray, nobody fills it with zeros first.
        buffer = np.empty(file.size, np.uint8).data
        self._read_into(buffer, file)
        return codec.decode_tensors(buffer)

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
        data = memoryview(self._chunks_of(_object_id(file.id), size).some(numbers, file.size))
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

            held = self._chunks_of(_object_id(file.id), size)
            end = 8 + codec.header_length(held.some([0], file.size))
            if end > file.size:
                raise ValueError("its header points beyond its end")
            header = codec.header_text(held.some(_chunk_numbers(0, end, size), file.size))
        return size, header

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


def _index_of(header: str) -> Document:
    """What is kept of a file of tensors in its metadata."""
    return {"header": header} if 0 < len(header) <= _HEADER_LIMIT else {}


def _chunk_numbers(begin: int, end: int, size: int) -> range:
    """The chunks that hold the bytes from `begin` to `end` of a file."""
    return range(begin // size, -(-end // size))


def _object_id(key: str) -> ObjectId:
    try:
        return ObjectId(key)
    except InvalidId:
        raise StoreError(f"{key!r} is not the id of a file: it has 24 hexadecimal digits") from None
