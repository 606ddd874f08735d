"""What a run leaves behind, as plain values that are equal if and only if all its bits are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipefit.records import TIMING
from pipefit.store import RunReader, Store

#: Columns of validations that differ between equal runs.
_MEASURED = ["checkpoint", "seconds"]


def results_of(store: Store, collection: str, name: str) -> dict[str, Any]:
    """All that counts of a run and is not measured."""
    run = store.run(name, collection)
    status = run.status()
    best = run.document()["best"]
    summary = store.summary(collection, name, status.step or 0) or {}
    return {
        "status": {"state": str(status.state), "step": status.step, "identity": status.identity},
        "best": best and {key: best[key] for key in ("metric", "mode", "value", "step")},
        "metrics": _metrics(run),
        "validations": _table(run.validations().drop(columns=_MEASURED)),
        "checkpoints": _checkpoints(run),
        "outputs": {key: _digest(run.outputs("test")[key]) for key in run.outputs("test").names},
        "summary": {key: summary.get(key) for key in ("step", "validations")},
        "report": run.artifact("report.html") is not None,
    }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Where two results differ, as paths with both values."""
    for key in sorted({*ours, *theirs}):
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, f"{at}{key} ")
        elif one != other:
            yield f"{at}{key}: {str(one)[:80]} instead of {str(other)[:80]}"


def _metrics(run: RunReader) -> dict[str, Any]:
    table = run.metrics()
    kept = [name for name in table.columns if name not in TIMING]
    return {
        "steps": _runs_of(table.index.tolist()),
        "columns": {name: _by_step(table[name]) for name in kept},
    }


def _by_step(column: Any) -> dict[str, str]:
    return {str(step): _digest(np.asarray(value)) for step, value in column.items()}


def _runs_of(steps: list[int]) -> list[list[int]]:
    """First and last of consecutive steps: [[1, 240]] has no gap and nothing twice."""
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return found


def _table(table: Any) -> dict[str, Any]:
    return {
        f"{row['set']} {row['step']}": {key: repr(value) for key, value in row.items()}
        for row in table.to_dict("records")
    } | {"rows": len(table)}


def _checkpoints(run: RunReader) -> dict[str, Any]:
    return {
        f"step {row['step']}": {
            "kinds": row["kinds"],
            "size": row["size"],
            "tensors": {k: _digest(v) for k, v in sorted(run.weights(row["step"]).items())},
        }
        for row in run.checkpoints().to_dict("records")
    }


def _digest(array: np.ndarray) -> str:
    """Of an array; a number that stands alone is shown."""
    if array.dtype.kind == "O":
        return repr(array.tolist())
    told = f"{array.dtype}{list(array.shape)} "
    if array.size == 1:
        return told + f"{array.item()!r} {array.tobytes().hex()}"
    return told + hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]
