"""From records to DataFrames; a million steps of ten metrics take about a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipefit import records
from pipefit.records import CheckpointInfo, Validation
from pipefit.store.columns import step_width, unpacked

if TYPE_CHECKING:
    import pandas as pd

# Up to here floats count whole numbers one by one.
_EXACT = 2**53


@dataclass(frozen=True)
class Rows:
    """The rows of one metrics record that count: `skip` of its rows come before them."""

    record: Mapping[str, Any]
    skip: int
    count: int

    @property
    def steps(self) -> np.ndarray:
        """The steps of these rows, int64 of shape [count]."""
        first = self.record["step"] + self.skip
        return np.arange(first, first + self.count, dtype=np.int64)


def counting_rows(
    line: Sequence[tuple[int, int]], stored: Iterable[Mapping[str, Any]]
) -> list[Rows]:
    """Of every metrics record the rows that the line counts; records without any are left out."""
    spans = {fence: (lower, upper) for fence, lower, upper in records.intervals(line)}
    rows = [_cut(record, *spans.get(record["fence"], (0, -1))) for record in stored]
    return [piece for piece in rows if piece.count > 0]


def _cut(record: Mapping[str, Any], lower: int, upper: int) -> Rows:
    """The rows of steps in (lower, upper]."""
    first: int = record["step"]
    begin = max(first, lower + 1)
    end = min(first + record["steps"], upper + 1)
    return Rows(record, begin - first, end - begin)


def order_of_steps(rows: Sequence[Rows]) -> tuple[np.ndarray, np.ndarray]:
    """All steps, ascending, each once; and the place of each among the rows one after the other.

    Where blocks of one attempt overlap, the row that was written last is the one that counts.
    """
    steps = _joined([piece.steps for piece in rows])
    places = np.arange(len(steps))
    if not len(steps) or np.diff(steps).min(initial=1) >= 1:
        return steps, places
    written = _joined([np.full(piece.count, piece.record["written"]) for piece in rows])
    order = np.lexsort((written, steps))
    last = np.append(np.diff(steps[order]) != 0, True)
    return steps[order][last], places[order][last]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def metrics_frame(
    line: Sequence[tuple[int, int]], stored: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """The metrics that the line counts: index "step", ascending, each once.

    Columns of numbers are as they are if every step has one, else float64 with NaN; anything else
    is in columns of objects. A column that lies in files, be it in part, is left out.
    """
    import pandas as pd

    rows = counting_rows(line, stored)
    steps, places = order_of_steps(rows)
    index = pd.Index(steps, name="step")
    columns = {
        # Without its dtype pandas would make texts of its own of the objects.
        name: pd.Series(values, index, dtype=values.dtype, copy=False)
        for name, values in _columns(rows, places).items()
    }
    return pd.DataFrame(columns, index=index, copy=False)


def _columns(rows: Sequence[Rows], places: np.ndarray) -> dict[str, np.ndarray]:
    parts: dict[str, list[_Part]] = {}
    large = set()
    length = 0
    for piece in rows:
        for entry in piece.record["columns"]:
            if "file" in entry:
                large.add(entry["name"])
                continue
            found = parts.setdefault(entry["name"], [])
            if not (found and found[-1].goes_on(entry, length)):
                found.append(_Part(entry, length))
            found[-1].add(entry["data"], piece)
        length += piece.count
    tangled = not np.array_equal(places, np.arange(length))
    columns = {}
    for name in [name for name in parts if name not in large]:
        whole = _whole([(part.at, part.values()) for part in parts[name]], length)
        columns[name] = whole[places] if tangled else whole
    return columns


class _Part:
    """What records that follow each other have of one column.

    The bytes of many small records become one array together: an array of each of them would take
    longer than all the rest.

    Args:
        entry: what the first record says about the column.
        at: its place among all rows.
    """

    def __init__(self, entry: Mapping[str, Any], at: int) -> None:
        self.at = self._end = at
        self._entry = entry
        self._kind = (entry["dtype"], entry.get("shape"))
        self._width = step_width(entry)
        self._data: list[bytes] = []
        self._rows = slice(None)

    def goes_on(self, entry: Mapping[str, Any], at: int) -> bool:
        """Whether what another record says about the column may be added to this."""
        follows = at == self._end and self._width is not None
        return follows and (entry["dtype"], entry.get("shape")) == self._kind

    def add(self, data: bytes, piece: Rows) -> None:
        """Add the rows of a record that count."""
        steps, width = piece.record["steps"], self._width
        begin, end = piece.skip, piece.skip + piece.count
        if width is None:
            self._rows = slice(begin, end)
        elif len(data) != steps * width:
            raise ValueError(f"a column of {steps} steps has {len(data)} bytes, not {width} each")
        elif piece.count != steps:
            data = data[begin * width : end * width]
        self._data.append(data)
        self._end += piece.count if width is not None else steps

    def values(self) -> np.ndarray:
        """The values, shape [steps, ...]."""
        return unpacked(self._entry, b"".join(self._data), self._end - self.at)[self._rows]


def _whole(parts: Sequence[tuple[int, np.ndarray]], length: int) -> np.ndarray:
    """Parts of a column at their places; NaN where there is none."""
    missing = sum(len(part) for _, part in parts) < length
    dtype = _common([part for _, part in parts], missing)
    whole = np.empty(length, dtype) if not missing else np.full(length, np.nan, dtype)
    for at, part in parts:
        if part.ndim == 1:
            whole[at : at + len(part)] = part if dtype.kind != "O" else part.tolist()
        else:
            # One by one: numpy would spread several arrays of a shape over the axes.
            for i, array in enumerate(part.copy(), start=at):
                whole[i] = array
    return whole


def _common(parts: Sequence[np.ndarray], missing: bool) -> np.dtype[Any]:
    """What holds all of it exactly, and NaN if something is missing."""
    kinds = {part.dtype.kind for part in parts}
    if any(part.ndim > 1 for part in parts) or not kinds <= set("biuf"):
        return np.dtype(object)
    common = np.result_type(*{part.dtype for part in parts})
    if common.kind in "biu" and not missing:
        return common
    exact = all(part.dtype.kind not in "iu" or _is_exact(part) for part in parts)
    return np.dtype(np.float64 if exact else object)


def _is_exact(whole_numbers: np.ndarray) -> bool:
    low, high = whole_numbers.min(initial=0), whole_numbers.max(initial=0)
    return max(-int(low), int(high)) <= _EXACT


def validations_frame(validations: Iterable[Validation]) -> pd.DataFrame:
    """One row per validation, by set and step."""
    import pandas as pd

    ordered = sorted(validations, key=lambda validation: (validation.name, validation.step))
    fixed = {
        "step": [v.step for v in ordered],
        "set": [v.name for v in ordered],
        "examples": [v.examples for v in ordered],
        "checkpoint": [v.checkpoint for v in ordered],
        "seconds": [v.seconds for v in ordered],
    }
    found = [{**v.metrics, **_singles(v.values)} for v in ordered]
    names = dict.fromkeys(name for row in found for name in row)
    columns = {name: [row.get(name, np.nan) for row in found] for name in names}
    return pd.DataFrame({**fixed, **{n: pd.Series(c, dtype=_kept(c)) for n, c in columns.items()}})


def _singles(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Of values those that are one number or one text."""
    plain = {name: array.item() for name, array in values.items() if array.shape == ()}
    return {name: value for name, value in plain.items() if not isinstance(value, bytes)}


def _kept(column: Sequence[Any]) -> type | None:
    """The dtype that keeps these values; None if pandas finds it."""
    large = any(isinstance(value, int) and abs(value) > _EXACT for value in column)
    text = any(isinstance(value, str) for value in column)
    return object if large or text else None


def checkpoints_frame(checkpoints: Iterable[CheckpointInfo]) -> pd.DataFrame:
    """One row per checkpoint, by step; kinds are joined by a space."""
    import pandas as pd

    columns = ["step", "id", "kinds", "size", "sha256", "created", "fence"]
    rows = [
        (c.step, c.id, " ".join(sorted(c.kinds)), c.size, c.sha256, c.created, c.fence)
        for c in sorted(checkpoints, key=lambda c: c.step)
    ]
    return pd.DataFrame(rows, columns=columns)


def runs_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per run, by collection and name."""
    import pandas as pd

    columns = [
        "collection",
        "name",
        "state",
        "step",
        "steps",
        "attempts",
        "updated",
        "reason",
        "best",
    ]
    table = pd.DataFrame(list(rows), columns=columns)
    # A run without a committed checkpoint has no step: <NA>, and the others stay integers.
    return table.astype({"step": "Int64", "best": "float64"})
