"""Results that tfutils pickled into files of their own, read only if somebody asks for it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipefit.errors import StoreError
from pipefit.store.tfutils import TfutilsRecord

_UNPICKLER = Path(__file__).with_name("unpickler.py")
_SECONDS = 300.0


def unpickled(path: Path) -> dict[str, Any]:
    """What a file has, in a process of its own: see `pipefit.transfer.tfutils.unpickler`.

    Raises:
        StoreError: it is something else than numbers, texts and arrays of them.
    """
    command = [sys.executable, "-I", "-B", str(_UNPICKLER)]
    # An empty environment has no passwords; numpy must not reserve memory for many threads.
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        with path.open("rb") as data:
            done = subprocess.run(
                command, stdin=data, capture_output=True, env=environment, timeout=_SECONDS,
                check=False, cwd="/",
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise StoreError(f"it was not read within {_SECONDS:.0f} s") from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise StoreError(words[-1][:300] if words else f"it ended its process ({done.returncode})")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        told = _value(json.loads(arrays["tree"].tobytes()), arrays)
    if not isinstance(told, dict):
        raise StoreError("it has no results of tfutils")
    return told


def _value(tree: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(tree, list):
        return [_value(item, arrays) for item in tree]
    if isinstance(tree, dict) and "keys" in tree:
        return {key: _value(item, arrays) for key, item in tree["keys"].items()}
    return arrays[f"a{tree['array']}"] if isinstance(tree, dict) else tree


def with_items(record: TfutilsRecord, told: Mapping[str, Any]) -> TfutilsRecord:
    """The record with the results that were pickled apart from it."""
    rows = [dict(row) for row in record.train_results]
    for key, values in _mapping(told.get("train_results")).items():
        given = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        rows = [{} for _ in range(len(given) - len(rows))] + rows
        # A list has one value for each of the last steps.
        for row, value in zip(rows[len(rows) - len(given) :], given, strict=True):
            row[key] = value
    sets = {name: dict(found) for name, found in record.validation_results.items()}
    for name, found in _mapping(told.get("validation_results")).items():
        sets.setdefault(name, {}).update(_mapping(found))
    return replace(record, train_results=rows, validation_results=sets)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
