"""What there is of a collection in MongoDB, whether it counts or not; bringing a whole run in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from pymongo import ReplaceOne
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from pipefit.errors import LeaseLost, RunOwned, StoreError
from pipefit.records import Owner, check_collection_name
from pipefit.store.backend import ARTIFACTS, CHECKPOINTS, Arriving, Document, FoundFile, StoredFile
from pipefit.store.client import Connection, guarded
from pipefit.store.documents import owner_document
from pipefit.store.files import Bucket
from pipefit.store.owner import is_dead
from pipefit.store.ownership import arriving_text

#: What a record is unique by. `branch` is absent until the run is first rewound.
KEY = ("run", "kind", "name", "step", "branch")

#: Of a run that is being brought in there is a document with this field alone, which says who does
#: it: nobody else can take the name, and no reader sees it.
ARRIVING = "arriving"

# Values, and what else is long.
_LONG = ("columns.data", "values.data", "log_tail", "summary", "metrics", "program")


class Contents:
    """The collections of one `collection`; `pipefit.store.layout.Layout` gives them their meaning.

    Raises:
        StoreError: no collection may be called so.
    """

    def __init__(self, connection: Connection, collection: str) -> None:
        try:
            self.collection = check_collection_name(collection)
        except ValueError as error:
            raise StoreError(str(error)) from None
        self.connection = connection
        self.checkpoints = Bucket(connection, f"{collection}.checkpoints")
        self.artifacts = Bucket(connection, f"{collection}.artifacts")

    @property
    def runs(self) -> Collection[Document]:
        """One document per run."""
        return self.connection.database[f"{self.collection}.runs"]

    @property
    def records(self) -> Collection[Document]:
        """All records of all runs."""
        return self.connection.database[f"{self.collection}.records"]

    @guarded
    def now(self) -> datetime:
        """The time of the server."""
        time: datetime = self.connection.database.command("hello")["localTime"]
        return time.replace(tzinfo=UTC)

    @guarded
    def known_runs(self) -> set[str]:
        """Names of runs of which there is a document or a record."""
        stages: list[Mapping[str, Any]] = [
            {"$sort": dict.fromkeys(KEY, 1)},
            {"$group": {"_id": "$run"}},
        ]
        of_records = {found["_id"] for found in self.records.aggregate(stages)}
        return of_records | {run["_id"] for run in self.runs.find({ARRIVING: None}, {"_id": 1})}

    def all_records(self, run: str, *, values: bool) -> Iterator[Document]:
        """All records of a run, by kind, name, step and branch; without `values` light ones."""
        without = None if values else dict.fromkeys(_LONG, 0)
        order = [(key, 1) for key in KEY]
        with self.connection.errors():
            yield from self.records.find({"run": run}, without).sort(order)

    @guarded
    def list_files(self) -> list[FoundFile]:
        """All files, complete or not."""
        buckets = {CHECKPOINTS: self.checkpoints, ARTIFACTS: self.artifacts}
        return [file for place, bucket in buckets.items() for file in bucket.found(place)]

    @guarded
    def drop_same(self, record: Mapping[str, Any]) -> bool:
        """Delete a record unless it was replaced since it was read; whether it was deleted."""
        same = {key: record[key] for key in ("_id", "fence", "created")}
        return bool(self.records.delete_one(same).deleted_count)

    @guarded
    def arrivals(self) -> list[Arriving]:
        """The runs that are being brought in, or were when their process was killed."""
        found = self.runs.find({ARRIVING: {"$exists": True}}).sort("_id", 1)
        return [_arriving(run) for run in found]

    def arrive(self, name: str, owner: Owner) -> MongoArrival:
        """Begin to bring a run in; what is left of another try is removed.

        Raises:
            RunOwned: another process is bringing it in.
            StoreError: there is a run of this name.
        """
        there = self._there(name)
        if there is not None and ARRIVING in there:
            other = _arriving(there)
            if not is_dead(other.owner) or not self.drop_arrival(other):
                raise RunOwned(arriving_text(name, self.collection, other.owner))
        elif there is not None:
            raise StoreError(f"collection {self.collection!r} has a run {name!r} already")
        arrival = MongoArrival(self, name, owner, str(ObjectId()))
        arrival.begin()
        return arrival

    @guarded
    def drop_arrival(self, arriving: Arriving) -> bool:
        """Remove what was brought in, unless it was seen since; whether it was removed."""
        ours = str(ObjectId())
        same = {"_id": arriving.run, f"{ARRIVING}.token": arriving.token}
        # From here on its process is refused. The name stays taken until nothing is left: a new run
        # must not find records of another one.
        taken = [{"$set": {f"{ARRIVING}.token": ours, f"{ARRIVING}.seen": "$$NOW"}}]
        condition = {**same, f"{ARRIVING}.seen": arriving.seen}
        if not self.runs.update_one(condition, taken).matched_count:
            return False
        self.records.delete_many({"run": arriving.run})
        for bucket in (self.checkpoints, self.artifacts):
            of_run = bucket.files.find({"metadata.run": arriving.run}, {"_id": 1})
            bucket.remove([str(file["_id"]) for file in of_run])
        self.runs.delete_one({**same, f"{ARRIVING}.token": ours})
        return True

    @guarded
    def _there(self, name: str) -> Document | None:
        return self.runs.find_one({"_id": name}, {"_id": 1, ARRIVING: 1})


class MongoArrival:
    """`pipefit.store.backend.Arrival` on MongoDB."""

    def __init__(self, contents: Contents, name: str, owner: Owner, token: str) -> None:
        self.connection = contents.connection
        self._contents = contents
        self._name = name
        self._owner = owner
        self._ours = {"_id": name, f"{ARRIVING}.token": token}
        self._token = token

    @guarded
    def begin(self) -> None:
        """Take the name, so that nobody else does."""
        owner = {"$literal": owner_document(self._owner)}
        there = {ARRIVING: {"token": self._token, "owner": owner, "seen": "$$NOW"}}
        try:
            self._contents.runs.update_one(self._ours, [{"$set": there}], upsert=True)
        except DuplicateKeyError:
            raise StoreError(
                f"collection {self._contents.collection!r} has had a run {self._name!r} since just "
                "now: another process was faster"
            ) from None

    def add_file(
        self, place: str, file: StoredFile, data: bytes, metadata: Mapping[str, Any]
    ) -> None:
        """Write a file under its own id.

        Raises:
            LeaseLost: the arrival was dropped.
            StoreError: another run has a file of this id.
        """
        self._be_seen()
        bucket = self._contents.checkpoints if place == CHECKPOINTS else self._contents.artifacts
        bucket.put_as(file, data, {**metadata, "run": self._name})

    def add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records as they are, `created` included."""
        self._be_seen()
        self._write([dict(record) for record in records])

    @guarded
    def _write(self, records: list[Document]) -> None:
        replaced = [
            ReplaceOne({key: record.get(key) for key in KEY}, record, upsert=True)
            for record in records
        ]
        if replaced:
            self._contents.records.bulk_write(replaced, ordered=False)

    @guarded
    def settle(self, document: Mapping[str, Any]) -> None:
        """Write the run's document as it is. This is the commit.

        Raises:
            LeaseLost: the arrival was dropped.
        """
        whole = {**document, "_id": self._name}
        if self._contents.runs.replace_one(self._ours, whole).matched_count:
            return
        # Else the answer was lost with the connection.
        if self._contents.runs.find_one({"_id": self._name}) != whole:
            raise LeaseLost(self._lost())

    @guarded
    def abandon(self) -> None:
        """Remove all of it."""
        there = self._contents.runs.find_one(self._ours)
        if there is not None:
            self._contents.drop_arrival(_arriving(there))

    @guarded
    def _be_seen(self) -> None:
        seen = [{"$set": {f"{ARRIVING}.seen": "$$NOW"}}]
        if not self._contents.runs.update_one(self._ours, seen).matched_count:
            raise LeaseLost(self._lost())

    def _lost(self) -> str:
        return (
            f"what was brought in of run {self._name!r} was removed, because this process was "
            "silent for long: begin again"
        )


def _arriving(run: Mapping[str, Any]) -> Arriving:
    told = run[ARRIVING]
    return Arriving(run["_id"], Owner(**told["owner"]), told["seen"], told["token"])
