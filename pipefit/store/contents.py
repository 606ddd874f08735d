"""What there is of a collection in MongoDB, whether it counts or not; bringing a whole run in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pymongo.collection import Collection

from pipefit.errors import RunOwned, StoreError, StoreUnavailable
from pipefit.records import Owner, check_collection_name
from pipefit.store.arrivals import ARRIVING, MongoArrival, arriving_of
from pipefit.store.backend import ARTIFACTS, CHECKPOINTS, Arriving, Document, FoundFile
from pipefit.store.client import Connection, guarded
from pipefit.store.documents import KEY, file_ids
from pipefit.store.files import Bucket
from pipefit.store.garbage import GRACE
from pipefit.store.owner import is_dead
from pipefit.store.ownership import arriving_text

if TYPE_CHECKING:
    from pipefit.store.cache import CheckpointCache
    from pipefit.store.columns import Packed

# Values, and what else is long.
_LONG = ("columns.data", "values.data", "log_tail", "summary", "metrics", "program")


class Contents:
    """The collections of one `collection`; `pipefit.store.layout.Layout` gives them their meaning.

    Args:
        connection: the database.
        collection: the name.
        cache: for checkpoints that are read; None: every time they come from the database.

    Raises:
        StoreError: no collection may be called so.
    """

    def __init__(
        self, connection: Connection, collection: str, cache: CheckpointCache | None = None
    ) -> None:
        try:
            self.collection = check_collection_name(collection)
        except ValueError as error:
            raise StoreError(str(error)) from None
        self.connection = connection
        self.cache = cache
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

    def store_columns(self, columns: Iterable[Packed], origin: Mapping[str, Any]) -> list[Document]:
        """What a record says about these columns; the large ones are in files then."""
        entries: list[Document] = []
        try:
            for column in columns:
                kept: Document = {"data": column.data}
                if column.large:
                    metadata = {**origin, "value": column.entry["name"]}
                    filename = f"{origin['run']}/{origin['step']}/{column.entry['name']}"
                    file = self.artifacts.put(column.data, filename, metadata)
                    kept = {"file": file.id, "size": file.size, "sha256": file.sha256}
                entries.append({**column.entry, **kept})
        except BaseException:
            with suppress(StoreUnavailable):
                self.artifacts.remove(file_ids({"columns": entries}))
            raise
        return entries

    @guarded
    def drop_same(self, record: Mapping[str, Any]) -> bool:
        """Delete a record unless it was replaced since it was read; whether it was deleted."""
        same = {key: record[key] for key in ("_id", "fence", "created")}
        return bool(self.records.delete_one(same).deleted_count)

    @guarded
    def arrivals(self) -> list[Arriving]:
        """The runs that are being brought in, or were when their process was killed."""
        found = self.runs.find({ARRIVING: {"$exists": True}}).sort("_id", 1)
        return [arriving_of(run) for run in found]

    def arrive(self, name: str, owner: Owner) -> MongoArrival:
        """Begin to bring a run in; what is left of another try is removed.

        Raises:
            RunOwned: another process is bringing it in.
            StoreError: there is a run of this name.
        """
        there = self._there(name)
        if there is not None and ARRIVING in there:
            other = arriving_of(there)
            waiting = self.now() - other.seen < timedelta(seconds=GRACE)
            if (waiting and not is_dead(other.owner)) or not self.drop_arrival(other):
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

    def own_id(self, key: str) -> str:
        """The id of a checkpoint here that has this one in another store."""
        own = ObjectId.is_valid(key) and key == key.lower() and len(key) == 24
        return key if own else hashlib.sha256(key.encode()).hexdigest()[:24]

    @guarded
    def _there(self, name: str) -> Document | None:
        return self.runs.find_one({"_id": name}, {"_id": 1, ARRIVING: 1})
