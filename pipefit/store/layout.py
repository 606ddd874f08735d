"""The collections of one `collection` in the database, and how its records are read and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from pipefit.errors import StoreError
from pipefit.records import check_collection_name
from pipefit.store.client import Connection, Document, guarded
from pipefit.store.files import Bucket

#: What a record is unique by. `branch` is absent until the run is first rewound.
KEY = ("run", "kind", "name", "step", "branch")

# Of a run's document: what grows with the experiment file and its changes.
_HEAVY = ("parts", "spec", "program", "described", "history")


class Layout:
    """Where the runs, records and files of one collection are.

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
    def find_runs(self, condition: Mapping[str, Any], *, light: bool = True) -> list[Document]:
        """Documents of runs with the server's time as `now`; light: without the long texts."""
        stages: list[Mapping[str, Any]] = [
            {"$match": condition},
            {"$set": {"now": "$$NOW"}},
            {"$sort": {"_id": 1}},
        ]
        if light:
            stages.append({"$unset": list(_HEAVY)})
        return list(self.runs.aggregate(stages))

    def find_run(self, name: str, *, light: bool = True) -> Document | None:
        """The document of one run, if it exists."""
        return next(iter(self.find_runs({"_id": name}, light=light)), None)

    @guarded
    def find_records(
        self,
        run: str,
        kind: str,
        condition: Mapping[str, Any] | None = None,
        fields: Iterable[str] | Mapping[str, Any] | None = None,
    ) -> list[Document]:
        """Records of one run and kind, by step; `fields` as MongoDB's projections."""
        wanted = {"run": run, "kind": kind, **(condition or {})}
        projection = fields if fields is None or isinstance(fields, Mapping) else list(fields)
        return list(self.records.find(wanted, projection).sort("step", 1))

    @guarded
    def put(self, record: Mapping[str, Any]) -> bool:
        """Write a record in the place of the one with its run, kind, name, step and branch.

        `created` is set to the server's time.

        Returns:
            False, with nothing written, if a newer attempt (a larger fence) wrote that one.
        """
        # The insert of a record that exists already fails for one of two reasons. Either that one
        # is newer, or another process inserted it just now: then it is found at the second try.
        return self._replace_older(record) or self._replace_older(record)

    def _replace_older(self, record: Mapping[str, Any]) -> bool:
        key = {field: record.get(field) for field in KEY}
        older = {**key, "fence": {"$lte": record["fence"]}}
        stamped = {"$mergeObjects": [{"$literal": record}, {"_id": "$_id", "created": "$$NOW"}]}
        try:
            self.records.update_one(older, [{"$replaceWith": stamped}], upsert=True)
        except DuplicateKeyError:
            return False
        return True

    @guarded
    def drop_records(self, condition: Mapping[str, Any]) -> None:
        """Delete records."""
        self.records.delete_many(condition)
