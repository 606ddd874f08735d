"""Bringing a run into MongoDB: `pipefit.store.backend.Arrival`.

While it is under way there is a document of the run with the field `arriving` alone. It takes the
name, says who is at it and when that was last seen, and is what the document of the run replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pymongo import ReplaceOne
from pymongo.errors import DuplicateKeyError

from pipefit.errors import LeaseLost, StoreError
from pipefit.records import Owner
from pipefit.store.backend import CHECKPOINTS, Arriving, Document
from pipefit.store.client import guarded
from pipefit.store.documents import KEY, VERSION, owner_document

if TYPE_CHECKING:
    from pipefit.store.columns import Packed
    from pipefit.store.contents import Contents

#: The field that a document has instead of all others while its run is brought in.
ARRIVING = "arriving"

#: Records written in one message; each has at most half a megabyte.
_TOGETHER = 16


class MongoArrival:
    """`pipefit.store.backend.Arrival` on MongoDB."""

    def __init__(self, contents: Contents, name: str, owner: Owner, token: str) -> None:
        self.connection = contents.connection
        self._contents = contents
        self._name = name
        self._owner = owner
        self._ours = {"_id": name, f"{ARRIVING}.token": token}
        self._token = token
        self._waiting: list[Document] = []

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
        self,
        place: str,
        data: bytes | bytearray,
        filename: str,
        metadata: Mapping[str, Any],
        key: str | None = None,
    ) -> str:
        """Write a file and read it back; returns its id, which is `key` if there is one.

        Raises:
            StoreError: another run has a file of this id.
        """
        self._be_seen()
        bucket = self._contents.checkpoints if place == CHECKPOINTS else self._contents.artifacts
        told = {**metadata, "run": self._name}
        if key is not None:
            bucket.put_as(key, data, told)
            return key
        return bucket.put(data, f"{self._name}/{filename}", told).id

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record as it is, `created` included."""
        self._waiting.append({**record, "run": self._name})
        if len(self._waiting) >= _TOGETHER:
            self._flush()

    def add_values(self, record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> None:
        """Write a record with values, which are called `field` in it."""
        origin = {"run": self._name, **{key: record[key] for key in ("kind", "step", "fence")}}
        self.add({**record, field: self._contents.store_columns(columns, origin)})

    def _flush(self) -> None:
        self._be_seen()
        self._write(self._waiting)
        self._waiting = []

    @guarded
    def _write(self, records: list[Document]) -> None:
        replaced = [
            ReplaceOne({key: record.get(key) for key in KEY}, record, upsert=True)
            for record in records
        ]
        if replaced:
            self._contents.records.bulk_write(replaced, ordered=False)

    def settle(self, document: Mapping[str, Any]) -> None:
        """Write the run's document. This is the commit."""
        self._flush()
        owned = {"version": VERSION, "progress": None, "lease": None}
        self._publish({"_id": self._name, **owned, **document})

    @guarded
    def _publish(self, whole: Document) -> None:
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
            self._contents.drop_arrival(arriving_of(there))

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


def arriving_of(run: Mapping[str, Any]) -> Arriving:
    """Who is bringing a run in, as its document says."""
    told = run[ARRIVING]
    return Arriving(run["_id"], Owner(**told["owner"]), told["seen"], told["token"])
