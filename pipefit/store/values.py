"""Values of steps: written into records and files, read when they are asked for.

A record names the files of its large values, so they count when it counts. Files are written
before their record; one that no record names (its process was killed in between) is garbage: see
`pipefit.store.documents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipefit.errors import CheckpointCorrupt, NotFound, StoreUnavailable
from pipefit.store.client import Document
from pipefit.store.columns import Packed, single, unpacked
from pipefit.store.documents import file_ids
from pipefit.store.files import Bucket, StoredFile
from pipefit.store.frames import counting_rows, order_of_steps
from pipefit.store.layout import Layout

_SHOWN = 30  # names in a message
_TOGETHER = 10_000  # steps whose places become Python's numbers at a time

#: Of a record of metrics all but the values that lie in it.
RECORD_FIELDS = (
    *("run", "kind", "fence", "step", "steps", "written", "created"),
    *(f"columns.{field}" for field in ("name", "dtype", "shape", "file", "size", "sha256")),
)


def put_values(
    layout: Layout, record: Mapping[str, Any], field: str, columns: Iterable[Packed]
) -> bool:
    """Write a record and the files of its large values; what it replaces is removed.

    Args:
        layout: where.
        record: the record without these values.
        field: what they are called in it.
        columns: the values.

    Returns:
        False, with nothing left, if a newer attempt wrote that record; see `Layout.put`.
    """
    key = {"name": record["name"], "step": record["step"], "branch": record.get("branch")}
    before = layout.find_records(record["run"], record["kind"], key, [f"{field}.file"])
    origin = {field: record[field] for field in ("run", "kind", "name", "step", "fence")}
    entries = _stored(layout.artifacts, columns, origin)
    # From here on the record names the new files, even if the answer is lost.
    done = layout.put({**record, field: entries})
    with suppress(StoreUnavailable):  # what no record names may also be removed later
        old = [key for entry in before for key in file_ids(entry)]
        layout.artifacts.remove(old if done else file_ids({field: entries}))
    return done


def _stored(bucket: Bucket, columns: Iterable[Packed], origin: Mapping[str, Any]) -> list[Document]:
    """What a record says about these columns; the large ones are in files then."""
    entries: list[Document] = []
    try:
        for column in columns:
            kept: Document = {"data": column.data}
            if column.large:
                metadata = {**origin, "value": column.entry["name"]}
                filename = f"{origin['run']}/{origin['step']}/{column.entry['name']}"
                file = bucket.put(column.data, filename, metadata)
                kept = {"file": file.id, "size": file.size, "sha256": file.sha256}
            entries.append({**column.entry, **kept})
    except BaseException:
        with suppress(StoreUnavailable):
            bucket.remove(file_ids({"columns": entries}))
        raise
    return entries


@dataclass(frozen=True)
class _Piece:
    """What one record holds of a value.

    Attributes:
        record: the record, or what is needed of it to find it again.
        entry: what it says about the value.
        steps: how many steps it holds.
    """

    record: Mapping[str, Any]
    entry: Mapping[str, Any]
    steps: int


class MongoValues:
    """`pipefit.store.base.Values` on MongoDB.

    Args:
        layout: of the run's collection.
        name: of the value.
        pieces: where the values lie.
        steps: the steps that have one, ascending.
        places: by step the piece and the row in it, shape [steps, 2].
    """

    def __init__(
        self,
        layout: Layout,
        name: str,
        pieces: Sequence[_Piece],
        steps: np.ndarray,
        places: np.ndarray,
    ) -> None:
        self.name = name
        self.steps = steps
        self._layout = layout
        self._pieces = pieces
        self._places = places
        self._newest: tuple[int, np.ndarray] | None = None  # the piece read last

    def __repr__(self) -> str:
        return f"<values {self.name!r} of {len(self)} steps>"

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for begin in range(0, len(self), _TOGETHER):
            steps = self.steps[begin : begin + _TOGETHER].tolist()
            places = self._places[begin : begin + _TOGETHER].tolist()
            for step, (piece, row) in zip(steps, places, strict=True):
                yield step, self._value(piece, row)

    def __getitem__(self, step: int) -> np.ndarray:
        i = int(np.searchsorted(self.steps, step))
        if i == len(self) or self.steps[i] != step:
            between = f", of {self.steps[0]} to {self.steps[-1]}" if len(self) else ""
            raise NotFound(f"step {step} has no value {self.name!r}: {len(self)} have{between}")
        return self._value(*self._places[i].tolist())

    def _value(self, piece: int, row: int) -> np.ndarray:
        if self._newest is None or self._newest[0] != piece:
            self._newest = (piece, self._read(self._pieces[piece]))
        # A copy, or one value that is kept would keep all of its piece.
        value: np.ndarray = self._newest[1][row, ...].copy()
        return value

    def _read(self, piece: _Piece) -> np.ndarray:
        entry = piece.entry
        data = entry["data"] if "data" in entry else self._bytes(piece)
        return unpacked(entry, data, piece.steps)

    def _bytes(self, piece: _Piece) -> bytes | bytearray:
        entry, record = piece.entry, piece.record
        if "file" not in entry:
            return self._in_record(piece)
        label = f"value {self.name!r} of step {record['step']} of run {record['run']!r}"
        try:
            file = StoredFile(entry["file"], entry["size"], entry["sha256"], label)
            return self._layout.artifacts.read(file)
        except CheckpointCorrupt:
            self._find_again(piece, ["_id"])  # it may have been replaced
            raise

    def _in_record(self, piece: _Piece) -> bytes:
        of_this = {"columns": {"$elemMatch": {"name": piece.entry["name"]}}}
        data: bytes = self._find_again(piece, of_this)["columns"][0]["data"]
        return data

    def _find_again(self, piece: _Piece, fields: Iterable[str] | Mapping[str, Any]) -> Document:
        record = piece.record
        same = {"_id": record["_id"], "created": record["created"]}
        found = self._layout.find_records(record["run"], record["kind"], same, fields)
        if not found:
            raise NotFound(
                f"value {self.name!r} of step {record['step']} of run {record['run']!r} was "
                "replaced just now: ask again"
            )
        return found[0]


def of_metrics(
    layout: Layout, line: Sequence[tuple[int, int]], stored: Sequence[Document], name: str
) -> MongoValues:
    """The values of a column of the metrics, as far as the line counts them.

    Args:
        layout: of the run's collection.
        line: of the run; to be read after the records.
        stored: records of metrics, with the fields `RECORD_FIELDS`.
        name: of the column.
    """
    rows = counting_rows(line, stored)
    steps, places = order_of_steps(rows)
    starts = np.cumsum([0, *(piece.count for piece in rows)])
    owner = np.searchsorted(starts, places, side="right") - 1
    skipped = np.array([piece.skip for piece in rows], np.int64)
    entries = [_entry(piece.record["columns"], name) for piece in rows]
    kept = np.array([entry is not None for entry in entries], bool)[owner]
    at = np.stack([owner, places - starts[owner] + skipped[owner]], axis=1)
    pieces = [
        _Piece(piece.record, entry or {}, piece.record["steps"])
        for piece, entry in zip(rows, entries, strict=True)
    ]
    return MongoValues(layout, name, pieces, steps[kept], at[kept])


def of_validations(layout: Layout, stored: Sequence[Document], name: str) -> MongoValues:
    """The values called SET/NAME of validations.

    Args:
        layout: of the run's collection.
        stored: records of validations that count, one per set and step.
        name: set and value.
    """
    pieces = []
    for record in sorted(stored, key=lambda record: record["step"]):
        prefix = f"{record['name']}/"
        columns = _all_of(record) if name.startswith(prefix) else []
        entry = _entry(columns, name.removeprefix(prefix))
        if entry is not None:
            pieces.append(_Piece(record, entry, 1))
    steps = np.array([piece.record["step"] for piece in pieces], np.int64)
    places = np.stack([np.arange(len(pieces)), np.zeros(len(pieces), np.int64)], axis=1)
    return MongoValues(layout, name, pieces, steps, places)


def names(metrics: Iterable[Document], validations: Iterable[Document]) -> list[str]:
    """What there is, for a message; of both kinds of records."""
    found = {column["name"] for record in metrics for column in record["columns"]}
    for record in validations:
        found |= {f"{record['name']}/{column['name']}" for column in _all_of(record)}
    there = sorted(found)
    return there if len(there) <= _SHOWN else [*there[:_SHOWN], "..."]


def _all_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a record of a validation holds, its metrics included, as columns of one step."""
    metrics = [single(name, np.float64(value)) for name, value in record["metrics"].items()]
    columns = [{**packed.entry, "data": packed.data} for packed in metrics]
    return [*columns, *record.get("values", ())]


def _entry(columns: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((column for column in columns if column["name"] == name), None)
