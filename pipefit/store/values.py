"""Recorded values of steps: found in the records that count, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipefit.errors import NotFound
from pipefit.store.backend import Backend, Document
from pipefit.store.columns import single, unpacked
from pipefit.store.frames import counting_rows, order_of_steps

_SHOWN = 30  # names in a message
_TOGETHER = 10_000  # steps whose places become Python's numbers at a time


@dataclass(frozen=True)
class _Piece:
    """What one record holds of a value.

    Attributes:
        record: the record, or what the backend needs of it to find it again.
        entry: what it says about the value.
        steps: how many steps it holds.
    """

    record: Mapping[str, Any]
    entry: Mapping[str, Any]
    steps: int


class StoredValues:
    """`pipefit.store.results.Values`.

    Args:
        backend: of the run's collection.
        name: of the value.
        pieces: where the values lie.
        steps: the steps that have one, ascending.
        places: by step the piece and the row in it, shape [steps, 2].
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        pieces: Sequence[_Piece],
        steps: np.ndarray,
        places: np.ndarray,
    ) -> None:
        self.name = name
        self.steps = steps
        self._backend = backend
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
        entry, record = piece.entry, piece.record
        label = f"value {self.name!r} of step {record['step']} of run {record['run']!r}"
        data = entry.get("data")
        if data is None:
            data = self._backend.column(record, entry, label)
        return unpacked(entry, data, piece.steps)


def of_metrics(
    backend: Backend, line: Sequence[tuple[int, int]], stored: Sequence[Document], name: str
) -> StoredValues:
    """The values of a column of the metrics, as far as the line counts them.

    Args:
        backend: of the run's collection.
        line: of the run; to be read after the records.
        stored: records of metrics, as `Backend.find_metrics` gives them.
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
    return StoredValues(backend, name, pieces, steps[kept], at[kept])


def of_validations(backend: Backend, stored: Sequence[Document], name: str) -> StoredValues:
    """The values called SET/NAME of validations.

    Args:
        backend: of the run's collection.
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
    return StoredValues(backend, name, pieces, steps, places)


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
