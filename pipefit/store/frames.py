"""From records to DataFrames; a million steps take well under a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipefit import records
from pipefit.records import CheckpointInfo, Validation
from pipefit.store.codec import column_values

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class _Rows:
    """The rows of one metrics record that count: `skip` of its rows come before them."""

    record: Mapping[str, Any]
    skip: int
    count: int

    @property
    def steps(self) -> np.ndarray:
        first = self.record["step"] + self.skip
        return np.arange(first, first + self.count, dtype=np.int64)


def metrics_frame(
    line: Sequence[tuple[int, int]], stored: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """The metrics that the line counts: index "step", ascending, each once."""
    import pandas as pd

    spans = {fence: (lower, upper) for fence, lower, upper in records.intervals(line)}
    cut = [_cut(record, *spans.get(record["fence"], (0, -1))) for record in stored]
    rows = [piece for piece in cut if piece.count > 0]
    steps = _joined([piece.steps for piece in rows], np.int64)
    table = pd.DataFrame(_columns(rows, len(steps)), index=pd.Index(steps, name="step"))
    if len(steps) and np.diff(steps).min(initial=1) < 1:
        return _untangled(table, rows)
    return table


def _cut(record: Mapping[str, Any], lower: int, upper: int) -> _Rows:
    """The rows of steps in (lower, upper]."""
    first: int = record["step"]
    begin = max(first, lower + 1)
    end = min(first + record["steps"], upper + 1)
    return _Rows(record, begin - first, end - begin)


def _columns(rows: Sequence[_Rows], length: int) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    at = 0
    for piece in rows:
        for column in piece.record["columns"]:
            name = column["name"]
            if name not in columns:
                columns[name] = np.full(length, np.nan)
            values = column_values(column)[piece.skip : piece.skip + piece.count]
            columns[name][at : at + piece.count] = values
        at += piece.count
    return columns


def _untangled(table: pd.DataFrame, rows: Sequence[_Rows]) -> pd.DataFrame:
    """Blocks of one attempt that overlap: of a step's rows the one written last is kept."""
    written = _joined([np.full(piece.count, piece.record["written"]) for piece in rows], np.int64)
    order = np.lexsort((written, table.index.to_numpy()))
    ordered = table.iloc[order]
    return ordered[~ordered.index.duplicated(keep="last")]


def _joined(parts: Sequence[np.ndarray], dtype: type[np.integer[Any]]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


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
    names = dict.fromkeys(name for v in ordered for name in v.metrics)
    metrics = {name: [v.metrics.get(name, np.nan) for v in ordered] for name in names}
    return pd.DataFrame({**fixed, **metrics})


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
