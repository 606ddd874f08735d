"""The runs of one collection in a folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import NotFound, StoreError
from pipefit.records import Owner
from pipefit.store import documents
from pipefit.store.backend import Arrival, Arriving, Document, FoundFile
from pipefit.store.documents import ATTEMPT, CHECKPOINT, METRICS, VALIDATION
from pipefit.store.local import arrivals, blocks, columns, contents, disk, recordfiles
from pipefit.store.local.disk import guarded
from pipefit.store.local.files import Folder
from pipefit.store.local.logs import read_logs
from pipefit.store.local.places import (
    Root,
    RunPlace,
    file_in,
    is_file_name,
    label,
    run_names,
    run_place,
)
from pipefit.store.local.runs import Draft, RunFiles, public
from pipefit.store.local.versions import Overtaken, Version

if TYPE_CHECKING:
    from pipefit.store.columns import Packed


class LocalBackend:
    """`pipefit.store.backend.Backend` in the folder of a collection.

    Whoever reads takes the time from their own clock, and whoever takes a run from somebody from
    that of the file system.

    Args:
        root: the store.
        collection: its name.

    Raises:
        StoreError: no collection may be called so.
    """

    def __init__(self, root: Root, collection: str) -> None:
        self.collection = collection
        self.root = root
        self.path = root.collection(collection)

    @property
    def shown(self) -> str:
        """The folder of the store, for people."""
        return self.root.shown

    def files_of(self, name: str) -> RunFiles:
        """The document of a run, which need not exist.

        Raises:
            StoreError: no run may be called so.
        """
        place = run_place(self.path, name)
        if place is None:
            raise StoreError(f"no run is called {name!r}")
        return RunFiles(place, name)

    def place_of(self, name: str) -> RunPlace:
        """The folders of a run."""
        return self.files_of(name).place

    @guarded
    def find_run(self, name: str, *, light: bool = True) -> Document | None:
        """The document of one run, if it exists, with the time as `now`."""
        if run_place(self.path, name) is None:
            return None
        files = self.files_of(name)

        def look(version: Version) -> Document:
            texts = {} if light else files.story(version)
            return {**public(version, time.time()), **texts}

        return files.read(look)

    @guarded
    def list_runs(self, names: Iterable[str] | None = None) -> list[Document]:
        """Light documents of the runs of these names, None: of all; by name."""
        wanted = run_names(self.path) if names is None else set(names)
        found = (self.find_run(name) for name in sorted(wanted))
        return [run for run in found if run is not None]

    @guarded
    def run_names(self, limit: int) -> list[str]:
        """Names of runs, at most so many."""
        found: list[str] = []
        for name in run_names(self.path):
            if len(found) < limit and self.files_of(name).versions.exists():
                found.append(name)
        return found

    @guarded
    def find_records(
        self, run: str, kind: str, condition: Mapping[str, Any] | None = None
    ) -> list[Document]:
        """Records of one run and kind whose fields equal those of `condition`, by step."""
        wanted = condition or {}
        steps = [wanted["step"]] if "step" in wanted else None
        names = [wanted["name"]] if "name" in wanted else None
        return [
            record
            for record in self._records(run, kind, steps, names)
            if all(record.get(field) == value for field, value in wanted.items())
        ]

    def _records(
        self,
        run: str,
        kind: str,
        steps: Collection[int] | None,
        names: Collection[str] | None,
    ) -> list[Document]:
        """Records; perhaps more than those of these steps and names."""
        files = self.files_of(run)
        if kind == CHECKPOINT:
            return files.read(files.checkpoints) or []
        if kind == ATTEMPT:
            return files.read(lambda version: _attempts(files, version)) or []
        if kind == VALIDATION:
            return self._logged(files, kind, values=True)
        return list(recordfiles.find(files.place.records(kind), steps, names))

    @guarded
    def find_metrics(self, run: str, *, values: bool) -> list[Document]:
        """Records of metrics, by step; without `values` only what they say about their columns."""
        return self._logged(self.files_of(run), METRICS, values=values)

    def _logged(self, files: RunFiles, kind: str, *, values: bool) -> list[Document]:
        place = files.place.logs
        return files.read(lambda version: read_logs(place, version, kind, values=values)) or []

    @guarded
    def records_of_runs(
        self,
        runs: Iterable[str],
        kind: str,
        steps: Collection[int],
        names: Collection[str] | None = None,
    ) -> list[tuple[Document, list[Document]]]:
        """Runs, each with its records of one kind that have one of the steps and of the names."""
        return [
            (
                run,
                [
                    record
                    for record in self._records(run["_id"], kind, steps, names)
                    if record["step"] in steps and (names is None or record["name"] in names)
                ],
            )
            for run in self.list_runs(runs)
        ]

    @guarded
    def put(self, record: Mapping[str, Any]) -> bool:
        """Write a record in the place of the one with its run, kind, name, step and branch.

        Returns:
            False, with nothing written, if a newer attempt (a larger fence) wrote that one.
        """
        stamped = {**record, "created": datetime.now(UTC)}
        folder = self.place_of(record["run"]).records(record["kind"])
        return recordfiles.put(folder, record, blocks.encode(stamped))

    @guarded
    def put_values(self, record: Mapping[str, Any], field: str, values: Iterable[Packed]) -> bool:
        """Write a record with values, which are called `field` in it; otherwise as `put`."""
        stamped = {**record, "created": datetime.now(UTC)}
        folder = self.place_of(record["run"]).records(record["kind"])
        return recordfiles.put(folder, record, columns.with_columns(stamped, field, values))

    @guarded
    def drop(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Delete records."""
        for record in records:
            disk.remove(Path(record["_file"]))

    @guarded
    def column(self, record: Mapping[str, Any], entry: Mapping[str, Any], label: str) -> bytes:
        """The bytes of a column that a record says something about, verified.

        Raises:
            NotFound: the record was replaced.
            CheckpointCorrupt: they are damaged.
        """
        return columns.read_column(record, entry, label)

    @guarded
    def change_unowned(
        self, run: Mapping[str, Any], values: Mapping[str, Any], entries: Mapping[str, Any]
    ) -> bool:
        """Change the document of a run that nobody owns, if it still has the same fence."""
        files = self.files_of(run["_id"])
        version = files.newest()
        if version is None:
            raise NotFound(f"run {run['_id']!r} of collection {self.collection!r} was deleted")
        there = public(version, disk.now(files.place.document))
        if there["fence"] != run["fence"] or documents.lease_of(there) is not None:
            return False
        draft = Draft(files, version)
        with draft:
            draft.document.update(values)
            for field, entry in entries.items():
                holder = draft.story if field == "history" else draft.document
                holder[field] = [*(holder.get(field) or ()), {"time": datetime.now(UTC), **entry}]
            try:
                return draft.publish() is not None
            except Overtaken:
                return False

    def checkpoints_of(self, run: str) -> Folder:
        """The checkpoints of a run."""
        return Folder(self.place_of(run).checkpoints, self.shown)

    def artifacts_of(self, run: str) -> Folder:
        """All its other files."""
        return Folder(self.place_of(run).artifacts, self.shown)

    def new_id(self) -> str:
        """An id that nothing has yet."""
        return secrets.token_hex(12)

    def own_id(self, key: str) -> str:
        """The id of a checkpoint here that has this one in another store."""
        return key if is_file_name(key) else label(key)

    def now(self) -> datetime:
        """The time, by the clock of this host."""
        return datetime.now(UTC)

    @guarded
    def known_runs(self) -> set[str]:
        """Names of runs of which there is a document or a record."""
        return set(run_names(self.path))

    def all_records(self, run: str, *, values: bool) -> Iterator[Document]:
        """All records of a run but for drafts in logs, which the next attempt removes."""
        with disk.errors(self.shown):
            yield from contents.all_records(self, run, values=values)

    @guarded
    def list_files(self) -> list[FoundFile]:
        """All files, complete or not."""
        return contents.list_files(self.path)

    @guarded
    def drop_same(self, record: Mapping[str, Any]) -> bool:
        """Delete a record unless it was replaced since it was read; whether it was deleted."""
        if record["kind"] == CHECKPOINT:
            return self._unlist(record)
        return contents.drop_same(record)

    def _unlist(self, record: Mapping[str, Any]) -> bool:
        """Take a checkpoint out of the list; while somebody owns the run, that is their matter."""
        files = self.files_of(record["run"])
        version = files.newest()
        if version is None or version.document["lease"] is not None:
            return False
        stored = files.checkpoints(version)
        left = [other for other in stored if other["name"] != record["name"]]
        with Draft(files, version) as draft:
            draft.set_checkpoints(left)
            try:
                return len(left) < len(stored) and draft.publish() is not None
            except Overtaken:
                return False

    @guarded
    def arrivals(self) -> list[Arriving]:
        """The runs that are being brought in, or were when their process was killed."""
        return arrivals.arrivals(self.path)

    @guarded
    def arrive(self, name: str, owner: Owner) -> Arrival:
        """Begin to bring a run in; what is left of another try is removed.

        Raises:
            RunOwned: another process is bringing it in.
            StoreError: there is a run of this name.
        """
        return arrivals.arrive(self, name, owner)

    @guarded
    def drop_arrival(self, arriving: Arriving) -> bool:
        """Remove what was brought in, unless it was seen since; whether it was removed."""
        return arrivals.drop(self.path, arriving)


def _attempts(files: RunFiles, version: Version) -> list[Document]:
    found = []
    for attempt in files.attempts(version):
        tail = attempt["tail"]
        text = file_in(files.place.attempts, tail).read_bytes() if tail else b""
        words = text.decode("utf-8", "surrogatepass")
        found.append({**attempt, "step": attempt["fence"], "log_tail": words})
    return found[::-1]
