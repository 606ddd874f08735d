"""One collection of a database of tfutils: see `TfutilsDatabase`."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.collection import Collection as MongoCollection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from pipefit.errors import CheckpointCorrupt, NotFound, StoreAccessDenied
from pipefit.store.client import Connection, Document, guarded
from pipefit.store.tfutils.address import split
from pipefit.store.tfutils.records import (
    TfutilsCheckpoint,
    TfutilsFile,
    TfutilsItem,
    TfutilsRecord,
    checkpoint_of,
    file_of,
    records_of,
)

_RECENT_BUCKET = "fs"
_SERVERS_OWN = frozenset({"admin", "config", "local"})
#: Bytes that the name of a database of MongoDB may have.
_LONGEST_NAME = 63
_SHOWN = 30
_UNAUTHORIZED = 13

# What a list of checkpoints needs: parameters and results may be many megabytes.
_LIGHT = dict.fromkeys(
    ("exp_id", "step", "length", "chunkSize", "md5", "uploadDate", "_saver_num_data_files"), 1
)


class TfutilsDatabase:
    """Reads one collection of tfutils, with the databases of its recent checkpoints.

    Args:
        uri: mongodb://USER:PASSWORD@HOST:PORT/DATABASE/COLLECTION; nothing is connected yet.

    Raises:
        StoreError: the address cannot be read.
    """

    def __init__(self, uri: str) -> None:
        self._address = split(uri)
        self.connection = Connection(self._address.uri)

    def __repr__(self) -> str:
        return f"<TfutilsDatabase {self.shown}>"

    @property
    def shown(self) -> str:
        """The address without user, password and options."""
        server = self.connection.shown.rpartition("/")[0]
        return "/".join(filter(None, (server, self._address.database, self._address.collection)))

    @property
    def name(self) -> str:
        """The name of the database."""
        return self._address.database

    @property
    def collection(self) -> str:
        """The name of the collection."""
        return self._address.collection

    @guarded
    def experiments(self) -> list[str]:
        """The `exp_id` of all experiments, sorted.

        Raises:
            NotFound: there is no such database or collection; names those that there are.
        """
        self._check_there()
        return sorted(str(name) for name in self._files.distinct("exp_id") if name is not None)

    @guarded
    def records(self, exp_id: str) -> list[TfutilsRecord]:
        """All that was saved of an experiment, in the order in which it was written.

        Raises:
            NotFound: there is no such experiment; names those that there are.
        """
        found = list(records_of(self._files.find({"exp_id": exp_id}).sort("_id")))
        if not found:
            raise self._no_experiment(exp_id)
        # A process that was killed between the two has left the recent one alone.
        there = {record.step for record in found}
        recent = self._recent(exp_id)
        if recent is not None:
            alone = recent[f"{_RECENT_BUCKET}.files"].find({"exp_id": exp_id}).sort("_id")
            with self._readable(recent.name, exp_id):
                found += [record for record in records_of(alone) if record.step not in there]
        return sorted(found, key=lambda record: record.id)

    @guarded
    def checkpoints(self, exp_id: str) -> list[TfutilsCheckpoint]:
        """The checkpoints of an experiment, the recent ones too, by step.

        Of two of one step that counts which was written last.

        Raises:
            NotFound: there is no such experiment; names those that there are.
        """
        if not (self.name and self.collection):
            self._check_there()
        found = list(self._saved(exp_id, self._own, self.collection, recent=False))
        if not found and self._files.find_one({"exp_id": exp_id}, {"_id": 1}) is None:
            raise self._no_experiment(exp_id)
        recent = self._recent(exp_id)
        if recent is not None:
            with self._readable(recent.name, exp_id):
                found += self._saved(exp_id, recent, _RECENT_BUCKET, recent=True)
        by_step = {one.step: one for one in sorted(found, key=lambda one: (one.written, one.key))}
        return [by_step[step] for step in sorted(by_step)]

    def checkpoint(self, exp_id: str, step: int | None = None) -> TfutilsCheckpoint:
        """The checkpoint of a step; None: the newest one.

        Raises:
            NotFound: there is none; names the steps that there are.
        """
        found = {one.step: one for one in self.checkpoints(exp_id)}
        wanted = max(found, default=None) if step is None else step
        if wanted is None or wanted not in found:
            what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            steps = _shown(map(str, found))
            raise NotFound(
                f"experiment {exp_id!r} of {self.shown} has {what}; the steps that have one: "
                f"{steps}"
            )
        return found[wanted]

    @guarded
    def validated(self, validates: ObjectId, within: Collection[str]) -> tuple[str, int] | None:
        """The experiment and step of a record; None if it is gone.

        Args:
            validates: the id of the record.
            within: experiments whose recent checkpoints it may be one of.
        """
        places = [self._files]
        places += [
            recent[f"{_RECENT_BUCKET}.files"]
            for recent in map(self._recent, within)
            if recent is not None
        ]
        for place in places:
            stored = place.find_one({"_id": validates}, {"exp_id": 1, "step": 1})
            if stored is not None and isinstance(stored.get("step"), int):
                return str(stored.get("exp_id")), int(stored["step"])
        return None

    @guarded
    def items(self) -> list[TfutilsItem]:
        """Results that are pickled in files, of all experiments; they are not read."""
        condition = {"item_for": {"$exists": True}, "length": {"$exists": True}}
        fields = dict.fromkeys(("item_for", "filename", "length", "chunkSize", "md5"), 1)
        found = []
        for stored in self._files.find(condition, fields).sort("_id"):
            name = str(stored.get("filename"))
            file = file_of(stored, self.name, self.collection, f"the file item {name!r}")
            found.append(TfutilsItem(name, str(stored["item_for"]), file))
        return found

    @guarded
    def copy(self, file: TfutilsFile, path: Path) -> str:
        """Write a file's bytes to `path`, verified by its length and, where it has one, its md5.

        Returns:
            The sha256 of the bytes.

        Raises:
            CheckpointCorrupt: they are not what was stored.
            OSError: they cannot be written there.
        """
        size, digest, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with path.open("wb") as target:
            for piece in self._all_pieces(file):
                size += len(piece)
                digest.update(piece)
                md5.update(piece)
                target.write(piece)
        if size != file.size:
            raise _damaged(file, f"it has {size} bytes instead of {file.size}")
        if file.md5 is not None and md5.hexdigest() != file.md5:
            raise _damaged(file, f"its md5 is {md5.hexdigest()} instead of {file.md5}")
        return digest.hexdigest()

    @guarded
    def pieces(self, file: TfutilsFile, first: int, last: int) -> list[bytes]:
        """Some of the pieces of a file, from the `first` to the `last`, of `file.chunk_size` bytes.

        Raises:
            CheckpointCorrupt: one is missing or has another length.
        """
        chunks = self._database(file.database)[f"{file.bucket}.chunks"]
        condition = {"files_id": file.id, "n": {"$gte": first, "$lte": last}}
        found = {chunk["n"]: chunk["data"] for chunk in chunks.find(condition)}
        for number in range(first, last + 1):
            size = min(file.chunk_size, file.size - number * file.chunk_size)
            if len(found.get(number, b"")) != size:
                raise _damaged(file, f"its piece {number} is missing or has not {size} bytes")
        return [found[number] for number in range(first, last + 1)]

    def _all_pieces(self, file: TfutilsFile) -> Iterator[bytes]:
        chunks = self._database(file.database)[f"{file.bucket}.chunks"]
        left = file.size
        for number, chunk in enumerate(chunks.find({"files_id": file.id}).sort("n")):
            data = chunk.get("data")
            if chunk.get("n") != number or not isinstance(data, bytes):
                raise _damaged(file, f"its piece {number} is missing")
            left -= len(data)
            if left < 0:
                raise _damaged(file, f"it has more than its {file.size} bytes")
            yield data

    @property
    def _own(self) -> Database[Document]:
        return self._database(self.name)

    @property
    def _files(self) -> MongoCollection[Document]:
        return self._own[f"{self.collection}.files"]

    def _database(self, name: str) -> Database[Document]:
        """Another database of the server, read as the own one."""
        own = self.connection.database
        return own.client.get_database(
            name,
            codec_options=own.codec_options,
            read_preference=own.read_preference,
            read_concern=own.read_concern,
        )

    def _recent(self, exp_id: str) -> Database[Document] | None:
        """The database of an experiment's recent checkpoints; None if it cannot have one."""
        name = "_".join((self.name, self.collection, exp_id, "__RECENT"))
        possible = len(name.encode()) <= _LONGEST_NAME and not set(name) & set('/\\. "$\0')
        return self._database(name) if possible else None

    @contextmanager
    def _readable(self, database: str, exp_id: str) -> Iterator[None]:
        """Say which database it is that the user may not read, as nobody has typed its name."""
        try:
            yield
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            raise StoreAccessDenied(
                f"{self.connection.shown}: the user may not read the database {database!r}, where "
                f"the recent checkpoints of {exp_id!r} are: give it the role read there, too"
            ) from error

    def _saved(
        self, exp_id: str, database: Database[Document], bucket: str, *, recent: bool
    ) -> Iterator[TfutilsCheckpoint]:
        condition: Mapping[str, Any] = {
            "exp_id": exp_id,
            "saved_filters": True,
            "step": {"$type": "number", "$gte": 0},
            "length": {"$type": "number"},
        }
        for stored in database[f"{bucket}.files"].find(condition, _LIGHT):
            yield checkpoint_of(stored, database.name, bucket, recent=recent)

    def _no_experiment(self, exp_id: str) -> NotFound:
        there = self.experiments()
        near = difflib.get_close_matches(exp_id, there, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return NotFound(
            f"{self.shown} has no experiment {exp_id!r}: {hint}its exp_ids are: {_shown(there)}"
        )

    def _check_there(self) -> None:
        """Raise `NotFound` unless the collection is there."""
        buckets = self._buckets()
        if self.collection in buckets:
            return
        if buckets:
            what = f"no collection {self.collection!r}" if self.collection else "no collection"
            raise NotFound(
                f"{self.shown} names {what} of tfutils; those of database {self.name!r} are: "
                f"{_shown(buckets)}"
            )
        raise NotFound(
            f"{self.shown} names no database of tfutils: write mongodb://HOST:PORT/DATABASE/"
            f"COLLECTION; the databases there are: {_shown(self._databases())}"
        )

    def _buckets(self) -> list[str]:
        if not self.name:
            return []
        names = self._own.list_collection_names()
        return sorted(name.removesuffix(".files") for name in names if name.endswith(".files"))

    def _databases(self) -> list[str]:
        try:
            names = self.connection.database.client.list_database_names()
        except OperationFailure:  # the user may not ask
            return []
        return sorted(n for n in names if n not in _SERVERS_OWN and not n.endswith("__RECENT"))


def _shown(names: Iterable[str]) -> str:
    known = list(names)
    more = f", and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more if known else "none that can be seen"


def _damaged(file: TfutilsFile, what: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"{file.label} is damaged, {what} (id {file.id} of {file.database}.{file.bucket}): use "
        "another step, or copy the database again"
    )
