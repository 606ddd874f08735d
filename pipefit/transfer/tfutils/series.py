"""What tfutils stored of training and validation, as values of steps.

A record of step 60 with 20 `train_results` has those of the steps 41 to 60. Whoever continued after
a crash made steps again and wrote them again: what was written last counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipefit.records import MetricBlock
from pipefit.store.tfutils import TfutilsRecord

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass
class Skipped:
    """What could not be taken over, by name how often."""

    values: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Count a value."""
        self.values[name] = self.values.get(name, 0) + 1


def training_blocks(records: Sequence[TfutilsRecord], skipped: Skipped) -> list[MetricBlock]:
    """The training series: every step once, by step, in blocks of steps with the same columns.

    Args:
        records: of one experiment, in the order in which they were written.
        skipped: is told of what is neither numbers nor texts.
    """
    pieces = [piece for record in records for piece in _pieces(record, skipped)]
    return list(_joined(_counting(pieces)))


def flat_values(told: Mapping[str, Any], skipped: Skipped, prefix: str = "") -> dict[str, Any]:
    """Values by name, nested ones as "a/b", as arrays; what cannot be one is left out."""
    found: dict[str, Any] = {}
    for key, value in told.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat_values(value, skipped, f"{name}/")
            continue
        array = as_values(value)
        if array is not None:
            found[name] = array
        elif value is not None:
            skipped.add(name)
    return found


def as_values(value: Any) -> np.ndarray[Any, Any] | None:
    """Numbers, or texts, as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # lists of several lengths
        return None
    if array.dtype.kind == "U":
        return np.asarray(value, object)
    plain = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.size
    return array if plain else None


def _pieces(record: TfutilsRecord, skipped: Skipped) -> Iterator[MetricBlock]:
    """The values of a record, in pieces with the same columns."""
    if record.step is None:
        return
    first = record.step - len(record.train_results) + 1
    rows: list[dict[str, Any]] = []
    begin = first
    for step, told in enumerate(record.train_results, start=first):
        row = flat_values(told, skipped) if step >= 0 else {}
        if rows and _signature(row) != _signature(rows[0]):
            yield _block(begin, rows)
            rows = []
        if row:
            begin = begin if rows else step
            rows.append(row)
    if rows:
        yield _block(begin, rows)


def _signature(row: Mapping[str, Any]) -> Signature:
    return tuple((name, row[name].dtype.str, row[name].shape) for name in sorted(row))


def _block(first: int, rows: Sequence[Mapping[str, Any]]) -> MetricBlock:
    return MetricBlock(first, {name: np.stack([r[name] for r in rows]) for name in sorted(rows[0])})


def _counting(pieces: Sequence[MetricBlock]) -> Iterator[MetricBlock]:
    """The parts of pieces that no later piece has again, by step."""
    if not pieces:
        return
    steps = np.concatenate([piece.first + np.arange(len(piece)) for piece in pieces])
    owners = np.concatenate([np.full(len(p), number) for number, p in enumerate(pieces)])
    order = np.lexsort((owners, steps))
    last = np.append(np.diff(steps[order]) != 0, True)
    steps, owners = steps[order][last], owners[order][last]
    cuts = np.flatnonzero((np.diff(steps) != 1) | (np.diff(owners) != 0)) + 1
    for begin, end in zip([0, *cuts], [*cuts, len(steps)], strict=True):
        piece, first = pieces[owners[begin]], int(steps[begin])
        at = first - piece.first
        cut = {name: values[at : at + end - begin] for name, values in piece.columns.items()}
        yield MetricBlock(first, cut)


def _joined(blocks: Iterator[MetricBlock]) -> Iterator[MetricBlock]:
    """Neighbours with the same columns as one block."""
    waiting: list[MetricBlock] = []
    for block in blocks:
        if waiting and not _follows(waiting[-1], block):
            yield _together(waiting)
            waiting = []
        waiting.append(block)
    if waiting:
        yield _together(waiting)


def _follows(one: MetricBlock, other: MetricBlock) -> bool:
    def columns(block: MetricBlock) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, v.dtype.str, v.shape[1:]) for name, v in block.columns.items()]

    return other.first == one.last + 1 and columns(one) == columns(other)


def _together(blocks: Sequence[MetricBlock]) -> MetricBlock:
    names = blocks[0].columns
    return MetricBlock(
        blocks[0].first,
        {name: np.concatenate([block.columns[name] for block in blocks]) for name in names},
    )
