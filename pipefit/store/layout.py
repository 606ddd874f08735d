"""The collections of one `collection` in the database, and how its records are read and written.

A record names the files of its large values, so they count when it counts. Files are written
before their record; one that no record names (its process was killed in between) is garbage: see
`pipefit.store.documents`.
"""

from __future__ import annotations

from collections.abc import Collection as Some
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pymongo.errors import DuplicateKeyError

from pipefit.errors import CheckpointCorrupt, NotFound, StoreUnavailable
from pipefit.store.arrivals import ARRIVING
from pipefit.store.backend import Document, Files, StoredFile
from pipefit.store.cache import CachedFiles
from pipefit.store.client import guarded
from pipefit.store.contents import Contents
from pipefit.store.documents import KEY, METRICS, file_ids, writing_process
from pipefit.store.files import Bucket

if TYPE_CHECKING:
    from pipefit.store.columns import Packed

# Of a record of metrics what tells what is in it, and the values that lie in it.
_METRICS = ("run", "kind", "fence", "step", "steps", "written", "created")
_WITH_VALUES = (*_METRICS, "columns")
_WITHOUT_VALUES = (
    *_METRICS,
    *(f"columns.{field}" for field in ("name", "dtype", "shape", "file", "size", "sha256")),
)

# Of a run's document: what grows with the experiment file and its changes.
_HEAVY = ("parts", "spec", "program", "described", "history")


class Layout(Contents):
    """`pipefit.store.backend.Backend` on MongoDB.

    Raises:
        StoreError: no collection may be called so.
    """

    @guarded
    def find_runs(self, condition: Mapping[str, Any], *, light: bool = True) -> list[Document]:
        """Documents of runs with the server's time as `now`; light: without the long texts."""
        stages: list[Mapping[str, Any]] = [
            {"$match": {**condition, ARRIVING: None}},
            {"$set": {"now": "$$NOW"}},
            {"$sort": {"_id": 1}},
        ]
        if light:
            stages.append({"$unset": list(_HEAVY)})
        return list(self.runs.aggregate(stages))

    def find_run(self, name: str, *, light: bool = True) -> Document | None:
        """The document of one run, if it exists."""
        # $eq: whatever a program passes on as a name, it is never an expression.
        return next(iter(self.find_runs({"_id": {"$eq": name}}, light=light)), None)

    def list_runs(self, names: Iterable[str] | None = None) -> list[Document]:
        """Light documents of the runs of these names, None: of all; by name."""
        return self.find_runs({} if names is None else {"_id": {"$in": list(names)}})

    @guarded
    def run_names(self, limit: int) -> list[str]:
        """Names of runs, at most so many."""
        return [run["_id"] for run in self.runs.find({ARRIVING: None}, {"_id": 1}).limit(limit)]

    @guarded
    def find_records(
        self,
        run: str,
        kind: str,
        condition: Mapping[str, Any] | None = None,
        fields: Iterable[str] | Mapping[str, Any] | None = None,
    ) -> list[Document]:
        """Records with these values, by step; `fields` as MongoDB's projections."""
        equal = {"run": run, "kind": kind, **(condition or {})}
        wanted = {field: {"$eq": value} for field, value in equal.items()}
        projection = fields if fields is None or isinstance(fields, Mapping) else list(fields)
        return list(self.records.find(wanted, projection).sort("step", 1))

    def find_metrics(self, run: str, *, values: bool) -> list[Document]:
        """Records of metrics, by step; without `values` only what they say about their columns."""
        return self.find_records(run, METRICS, fields=_WITH_VALUES if values else _WITHOUT_VALUES)

    @guarded
    def records_of_runs(
        self,
        runs: Iterable[str],
        kind: str,
        steps: Some[int],
        names: Some[str] | None = None,
    ) -> list[tuple[Document, list[Document]]]:
        """Runs, each with its records of one kind that have one of the steps and of the names.

        Two queries.
        """
        found = self.list_runs(runs)
        stored: dict[str, list[Document]] = {run["_id"]: [] for run in found}
        wanted: Document = {"run": {"$in": list(stored)}, "kind": kind}
        wanted["step"] = {"$in": list(steps)}
        if names is not None:
            wanted["name"] = {"$in": list(names)}
        for record in self.records.find(wanted):
            stored[record["run"]].append(record)
        return [(run, stored[run["_id"]]) for run in found]

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
    def put_if_absent(self, record: Mapping[str, Any]) -> None:
        """Write a record unless there is one with its run, kind, name, step and branch."""
        key = {field: record.get(field) for field in KEY}
        stamped = {"$mergeObjects": [{"$literal": record}, {"created": "$$NOW"}]}
        # What is there has a time. Two at once: the other one has written it.
        kept = {"$cond": [{"$gt": ["$created", None]}, "$$ROOT", stamped]}
        with suppress(DuplicateKeyError):
            self.records.update_one(key, [{"$replaceWith": kept}], upsert=True)

    def put_values(self, record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> bool:
        """Write a record and the files of its large values; what it replaces is removed.

        Args:
            record: the record without these values.
            field: what they are called in it.
            columns: the values.

        Returns:
            False, with nothing left, if a newer attempt wrote that record; see `put`.
        """
        key = {"name": record["name"], "step": record["step"], "branch": record.get("branch")}
        before = self.find_records(record["run"], record["kind"], key, [f"{field}.file"])
        origin = {field: record[field] for field in ("run", "kind", "name", "step", "fence")}
        origin |= writing_process()
        entries = self.store_columns(columns, origin)
        # From here on the record names the new files, even if the answer is lost.
        done = self.put({**record, field: entries})
        with suppress(StoreUnavailable):  # what no record names may also be removed later
            old = [key for entry in before for key in file_ids(entry)]
            self.artifacts.remove(old if done else file_ids({field: entries}))
        return done

    def column(
        self, record: Mapping[str, Any], entry: Mapping[str, Any], label: str
    ) -> bytes | bytearray:
        """The bytes of a column that a record says something about, verified.

        Raises:
            NotFound: the record was replaced.
            CheckpointCorrupt: they are damaged.
        """
        if "file" not in entry:
            of_this = {"columns": {"$elemMatch": {"name": entry["name"]}}}
            data: bytes = self._again(record, of_this, label)["columns"][0]["data"]
            return data
        try:
            file = StoredFile(entry["file"], entry["size"], entry["sha256"], label)
            return self.artifacts.read(file)
        except CheckpointCorrupt:
            self._again(record, ["_id"], label)  # it may have been replaced
            raise

    def _again(
        self, record: Mapping[str, Any], fields: Iterable[str] | Mapping[str, Any], label: str
    ) -> Document:
        same = {"_id": record["_id"], "created": record["created"]}
        found = self.find_records(record["run"], record["kind"], same, fields)
        if not found:
            raise NotFound(f"{label} was replaced just now: ask again")
        return found[0]

    def drop(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Delete records."""
        self.drop_records({"_id": {"$in": [record["_id"] for record in records]}})

    @guarded
    def drop_records(self, condition: Mapping[str, Any]) -> None:
        """Delete records."""
        self.records.delete_many(condition)

    @guarded
    def change_unowned(
        self, run: Mapping[str, Any], values: Mapping[str, Any], entries: Mapping[str, Any]
    ) -> bool:
        """Change the document of a run that nobody owns, if it still has the same fence."""
        condition = {"_id": run["_id"], "fence": run["fence"], **unless_owned(run)}
        changes = {
            **{key: {"$literal": value} for key, value in values.items()},
            **{field: _appended(field, entry) for field, entry in entries.items()},
            "updated": "$$NOW",
        }
        return bool(self.runs.update_one(condition, [{"$set": changes}]).matched_count)

    def checkpoints_of(self, run: str) -> Files:
        """The checkpoints of a run, which share a bucket with those of others."""
        return self.checkpoints if self.cache is None else CachedFiles(self.checkpoints, self.cache)

    def artifacts_of(self, run: str) -> Bucket:
        """All its other files, likewise."""
        return self.artifacts

    def new_id(self) -> str:
        """An id that nothing has yet."""
        return str(ObjectId())


def unless_owned(run: Mapping[str, Any]) -> Document:
    """What must still be so, beside the fence, when somebody takes this run from nobody."""
    if run["lease"] is not None and run["lease"]["expires"] > run["now"]:
        return {}  # its owner is known to be dead
    # The owner may have renewed it since; a lease that is null has expired, too.
    return {"$expr": {"$lte": ["$lease.expires", "$$NOW"]}}


def _appended(field: str, entry: Mapping[str, Any]) -> Document:
    stamped = {"$mergeObjects": [{"time": "$$NOW"}, {"$literal": entry}]}
    return {"$concatArrays": [{"$ifNull": [f"${field}", []]}, [stamped]]}
