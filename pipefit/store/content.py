"""A run as plain data that every kind of store understands, for carrying it into another one.

    for record, parts in content_of(backend, "digits-mlp").records():
        ...

It has what counts, in the run or in a closed line. The document of the run and the records have the
fields of `pipefit.store.documents`, but for what only one store means: who holds the lease, and the
ids of files. What lies in a file is said by its size and sha256, and is read when it is asked for.
Only checkpoints keep their ids, because validations name them.

It does not depend on the kind of store: what was brought in is, taken out again, the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from pipefit.errors import CheckpointCorrupt, NotFound, StoreError
from pipefit.records import RunState
from pipefit.store import documents
from pipefit.store.backend import Backend, Document, StoredFile
from pipefit.store.descriptions import described_files
from pipefit.store.documents import (
    ARTIFACT,
    ATTEMPT,
    CHECKPOINT,
    METRICS,
    OUTPUTS,
    SUMMARY,
    VALIDATED,
    VALIDATION,
)
from pipefit.store.garbage import never_counting

#: Fields of the document of a run; `closed` is there once it was rewound, `dropped` once one of
#: these lines was dropped.
RUN = (
    *("identity", "steps", "state", "reason", "fence", "created", "updated", "parts", "spec"),
    *("program", "line", "committed", "best", "attempt", "ended", "described", "history"),
)
#: Fields of an attempt, as the run has the newest one.
OF_ATTEMPT = ("fence", "owner", "started", "start", "ended", "state", "reason", "reached")
#: Fields of every record, and by kind what it has besides; `branch` is there where it counts.
COMMON = ("kind", "name", "step", "fence", "created")
OF_KIND = {
    METRICS: ("steps", "written", "columns"),
    VALIDATION: ("metrics", "examples", "checkpoint", "seconds", "values"),
    VALIDATED: ("metrics", "examples", "checkpoint", "seconds", "values", "outputs"),
    CHECKPOINT: ("size", "sha256", "kinds", "best"),
    SUMMARY: ("summary",),
    ATTEMPT: (*(key for key in OF_ATTEMPT if key != "fence"), "program", "log_tail"),
    ARTIFACT: ("size", "sha256"),
    OUTPUTS: ("set", "examples", "columns", "shards"),
}

# Every repetition means that the run was changed while it was read.
_TRIES = 100


@dataclass(frozen=True)
class Part:
    """Bytes that a record names, read when they are asked for and verified."""

    size: int
    sha256: str
    read: Callable[[], bytes | bytearray]


class RunContent(Protocol):
    """All that counts of a run as plain data: numbers, texts, bytes, times, lists, dictionaries.

    It has nothing that only one store understands, so any store can take it over. What lies in
    files is named by length and sha256 and read on demand.
    """

    collection: str
    name: str

    def document(self) -> tuple[dict[str, Any], Sequence[Part]]:
        """The document of the run, and the texts that it names, in the order of their names."""

    def records(self) -> Iterator[tuple[dict[str, Any], Sequence[Part]]]:
        """The records, in an order that is the same in every store; each with what it names.

        Raises:
            NotFound, CheckpointCorrupt: something was removed or replaced meanwhile, or is damaged.
        """


class StoredContent:
    """`RunContent` of a run in a store, as it is when this is made.

    Args:
        backend: of the run's collection.
        name: the run.
        without: ids of checkpoints that are left out.

    Raises:
        NotFound: there is no such run.
        CheckpointCorrupt: no checkpoint is left of those that it has.
    """

    def __init__(self, backend: Backend, name: str, without: Collection[str] = ()) -> None:
        self.collection = backend.collection
        self.name = name
        self._backend = backend
        self._run, stored = _without_checkpoints(*_snapshot(backend, name), without)
        kept = list(_kept(self._run, stored))
        self._keys = {_key(record) for record in kept}
        self._written = _order_of_writing(kept)

    def document(self) -> tuple[Document, list[Part]]:
        """The document of the run, and the texts that it names."""
        run = self._run
        told = {key: _plain(run.get(key)) for key in RUN}
        told["attempt"] = {key: _plain(run["attempt"].get(key)) for key in OF_ATTEMPT}
        if run.get("closed"):
            told["closed"] = _plain(run["closed"])
        if run.get("dropped"):
            told["dropped"] = _plain(run["dropped"])
        if run.get("described"):
            files = [_without(file, "file") for file in run["described"]["artifacts"]]
            told["described"] = {"model": run["described"]["model"], "artifacts": _plain(files)}
        read = self._backend.artifacts_of(self.name).read
        return told, [_part(file, read) for file in described_files(run).values()]

    def records(self) -> Iterator[tuple[Document, list[Part]]]:
        """The records by kind, step and name, each with the bytes that it names.

        Raises:
            NotFound: one of them is gone by now.
        """
        missing = set(self._keys)
        checkpoints = []
        for record in self._backend.all_records(self.name, values=True):
            if (key := _key(record)) not in missing:
                continue
            missing.remove(key)
            if record["kind"] == CHECKPOINT:
                checkpoints.append(record)
            else:
                yield self._carried(record)
        # Their ids, which are their names, may be others in another store.
        for record in sorted(checkpoints, key=lambda record: (record["step"], record["created"])):
            yield self._carried(record)
        if missing:
            raise NotFound(f"run {self.name!r} was changed while it was read: read it again")

    def _carried(self, record: Document) -> tuple[Document, list[Part]]:
        kind = record["kind"]
        fields = [key for key in (*COMMON, *OF_KIND[kind]) if key not in ("columns", "values")]
        told = {key: _plain(record.get(key)) for key in fields}
        if record.get("branch"):
            told["branch"] = record["branch"]
        if kind == ATTEMPT:
            told |= {"name": "", "created": _plain(record["started"])}
            if record["fence"] == self._run["attempt"]["fence"]:
                # What the run says itself of the newest one; some stores keep only that.
                told |= {key: _plain(self._run["attempt"].get(key)) for key in OF_ATTEMPT}
                told["program"] = self._run["program"]
        if kind == METRICS:
            told["written"] = self._written[_key(record)]
        if kind == OUTPUTS:
            told["columns"] = _plain(record["columns"])
            told["shards"] = [_without(shard, "id") for shard in _plain(record["shards"])]
            return told, self._files(record)
        if kind in (METRICS, VALIDATION, VALIDATED):
            field = "columns" if kind == METRICS else "values"
            columns = [self._column(record, entry) for entry in record.get(field) or ()]
            told[field] = [entry for entry, _ in columns]
            return told, [part for _, part in columns if part is not None]
        return told, self._files(record)

    def _column(self, record: Document, entry: Mapping[str, Any]) -> tuple[Document, Part | None]:
        told = {"name": entry["name"], "dtype": entry["dtype"]}
        told["shape"] = list(entry.get("shape", ()))
        if "data" in entry:
            return {**told, "data": bytes(entry["data"])}, None
        label = f"value {entry['name']!r} of step {record['step']} of run {self.name!r}"
        told |= {"size": int(entry["size"]), "sha256": entry["sha256"]}
        read = partial(self._backend.column, record, entry, label)
        return told, Part(told["size"], told["sha256"], read)

    def _files(self, record: Document) -> list[Part]:
        """What lies in files of its own."""
        about = f"{record['kind']} of step {record['step']} of run {self.name!r}"
        files = self._backend.artifacts_of(self.name)
        found = []
        if record["kind"] == CHECKPOINT:
            files = self._backend.checkpoints_of(self.name)
            found = [documents.checkpoint_file(documents.checkpoint_of(record), self.name)]
        elif record["kind"] == ARTIFACT:
            found = [StoredFile(record["file"], record["size"], record["sha256"], about)]
        elif record["kind"] == OUTPUTS:
            shards = record["shards"]
            found = [StoredFile(s["id"], s["size"], s["sha256"], about) for s in shards]
        return [_part(file, files.read) for file in found]


def named_files(told: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Size and sha256 of what a document or record names, in the order of its parts.

    Raises:
        StoreError: it is neither.
    """
    kind = told.get("kind")
    try:
        files = _files_in(kind, told)
        return [(file["size"], file["sha256"]) for file in files if "sha256" in file]
    except (KeyError, TypeError, AttributeError):
        shown = str(kind)[:100]
        raise StoreError(f"a record {shown!r} does not say which files it names") from None


def _files_in(kind: str | None, told: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = ()
    field = {METRICS: "columns", VALIDATION: "values", VALIDATED: "values", OUTPUTS: "shards"}
    if kind is None and told.get("described"):
        found = told["described"]["artifacts"]
    elif kind in (CHECKPOINT, ARTIFACT):
        found = [told]
    elif kind in field:
        found = told[field[kind]]
    return found


def _snapshot(backend: Backend, name: str) -> tuple[Document, list[Document]]:
    """The run and its records, but for their values, as they were at one moment."""
    for _ in range(_TRIES):
        before = backend.find_run(name, light=False)
        if before is None:
            raise NotFound(f"there is no run {name!r} in collection {backend.collection!r}")
        stored = list(backend.all_records(name, values=False))
        after = backend.find_run(name, light=False)
        if after is not None and _moment(before) == _moment(after):
            return after, stored
    raise StoreError(f"run {name!r} changes all the time: try again when it does not")


def _without_checkpoints(
    run: Document, stored: list[Document], without: Collection[str]
) -> tuple[Document, list[Document]]:
    """A run as it would be had it never had these checkpoints, which are damaged."""
    left = [r for r in stored if r["kind"] != CHECKPOINT or r["name"] not in without]
    newest = run["committed"]
    if newest and newest["id"] in without:
        record = _newest(run, left)
        if record is None:
            raise CheckpointCorrupt(f"run {run['_id']!r}: none of its checkpoints can be read")
        run = run | {
            "committed": {"step": record["step"], "id": record["name"]},
            "best": record["best"],
            "state": str(RunState.INTERRUPTED),
            "reason": f"its checkpoint of step {newest['step']} was damaged, and is not here",
            "ended": None,
        }
    closed = []
    for number, entry in enumerate(run.get("closed", ()), start=1):
        newest = entry["committed"]
        if newest and newest["id"] in without:
            record = _newest(documents.closed_line(run, number), left)
            told = record and {"step": record["step"], "id": record["name"]}
            closed.append({**entry, "committed": told, "ended": None})
        else:
            closed.append(entry)
    return (run | {"closed": closed} if closed else run), left


def _newest(run: Document, stored: Iterable[Document]) -> Document | None:
    """The record of the newest of these checkpoints that counts."""
    records = [record for record in stored if record["kind"] == CHECKPOINT]
    found = documents.checkpoints_of(run, records)
    chosen = found[max(found)].id if found else None
    return next((record for record in records if record["name"] == chosen), None)


def _moment(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["fence"], run["line"], run["committed"], run.get("described"), run["history"]


def _kept(run: Mapping[str, Any], stored: Sequence[Document]) -> Iterator[Document]:
    """The records that count and are of this moment, not of an attempt that began since."""
    useless = {id(record) for record in never_counting(run, stored)}
    found = [r for r in stored if id(r) not in useless and r.get("fence", 0) <= run["fence"]]
    validated = {record["outputs"] for record in found if record["kind"] == VALIDATED}
    return (r for r in found if r["kind"] != OUTPUTS or r["name"] in validated)


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    fields = ("kind", "name", "step", "branch", "fence", "created")
    return tuple(record.get(field) for field in fields)


def _order_of_writing(stored: Iterable[Document]) -> dict[tuple[Any, ...], int]:
    """Which of the metrics were written after which, as numbers that every store gives alike."""
    metrics = [record for record in stored if record["kind"] == METRICS]
    ordered = sorted(metrics, key=lambda record: (record["fence"], record["written"]))
    return {_key(record): number for number, record in enumerate(ordered)}


def _part(file: StoredFile, read: Callable[[StoredFile], bytes | bytearray]) -> Part:
    return Part(file.size, file.sha256, partial(read, file))


def _without(told: Mapping[str, Any], key: str) -> Document:
    return {name: value for name, value in told.items() if name != key}


def _plain(value: Any) -> Any:
    """The value with types of no store; times to the millisecond, which all of them keep."""
    if isinstance(value, datetime):
        return value.replace(microsecond=value.microsecond // 1000 * 1000)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value
