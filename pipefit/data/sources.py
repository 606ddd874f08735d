"""Data sources: what a `[data.NAME]` table's builder returns.

A source knows its number of examples and gives any of them by index; it holds no position, so two
runs may share one, and nothing of it has to be saved. Use `Arrays` for what fits in memory; write a
class with `__len__` and `take` for anything else that can be indexed.

    >>> import numpy as np
    >>> source = Arrays(x=np.zeros((3, 2), np.float32), labels=np.array([0, 1, 1]))
    >>> len(source), source.take(np.array([2]))["labels"].tolist()
    (3, [1])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipefit.errors import DataError

Fields = dict[str, npt.NDArray[Any]]


@runtime_checkable
class Source(Protocol):
    """Examples by index; the same index always gives the same example."""

    def __len__(self) -> int:
        """Number of examples, at least 1."""

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices: arrays of shape [len(indices), ...] by field name.

        Called from several threads at once.
        """


class Arrays:
    """A source of arrays in memory.

    Args:
        fields: arrays of shape [examples, ...], all with the same number of examples.

    Raises:
        DataError: for no field, no example, or fields of unequal lengths.
    """

    def __init__(self, **fields: npt.ArrayLike):
        self.fields: Fields = {name: np.asarray(value) for name, value in fields.items()}
        lengths = {name: value.shape[0] if value.ndim else 0 for name, value in self.fields.items()}
        if not lengths:
            raise DataError("Arrays(): no fields given; give at least one array by name")
        if len(set(lengths.values())) > 1:
            given = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise DataError(f"Arrays(): all fields must have the same number of examples, {given}")
        self._length = next(iter(lengths.values()))
        if not self._length:
            raise DataError(
                f"Arrays(): no examples in {', '.join(lengths)}; at least one is needed"
            )

    def __len__(self) -> int:
        return self._length

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices, arrays of shape [len(indices), ...]."""
        return {name: value[indices] for name, value in self.fields.items()}


@dataclass(frozen=True)
class FieldSpec:
    """Shape of one example (without the batch dimension) and dtype of a field.

    Texts and bytes have a dtype without a length: it differs from batch to batch.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def field_specs(source: Source) -> dict[str, FieldSpec]:
    """What a source gives, read off its first example.

    Raises:
        DataError: if it is no source, is empty, or gives something that is not [1, ...] arrays.
    """
    if isinstance(source, type) or not isinstance(source, Source):
        raise DataError(
            f"{source!r} is not a data source: it needs __len__() and take(indices), which "
            f"returns a dict of arrays"
        )
    if len(source) < 1:
        raise DataError(f"{type(source).__name__} has no examples; at least one is needed")
    return check_fields(source.take(np.zeros(1, np.int64)), 1, None, type(source).__name__)


def check_fields(
    fields: Any, count: int, declared: Mapping[str, FieldSpec] | None, origin: str
) -> dict[str, FieldSpec]:
    """Check what `take` returned: names, number of examples, shapes and dtypes.

    Args:
        fields: what came back for `count` indices.
        count: number of indices asked for.
        declared: what is expected; None for the first look.
        origin: name of the source, for messages.

    Returns:
        Shapes and dtypes by field.

    Raises:
        DataError: naming the field, what it has and what it should have.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise DataError(
            f"{origin}: take() must return a dict of arrays, not {type(fields).__name__}"
        )
    found = {}
    for name, value in fields.items():
        array = np.asarray(value)
        if array.ndim < 1 or array.shape[0] != count:
            raise DataError(
                f"{origin}: field {name!r} has shape {array.shape} for {count} examples; "
                f"the first dimension must be {count}"
            )
        if array.dtype.hasobject:
            raise DataError(
                f"{origin}: field {name!r} holds Python objects; give numbers, texts or bytes"
            )
        dtype = np.dtype(array.dtype.kind) if array.dtype.kind in "SU" else array.dtype
        found[name] = FieldSpec(array.shape[1:], dtype)
    if declared is not None and found != declared:
        raise DataError(
            f"{origin}: examples differ from the first one: got {_describe(found)}, "
            f"the first has {_describe(declared)}"
        )
    return found


def _describe(specs: Mapping[str, FieldSpec]) -> str:
    words = {"S": "bytes", "U": "text"}
    return ", ".join(
        f"{name} {words.get(spec.dtype.kind, spec.dtype)}{list(spec.shape)}"
        for name, spec in specs.items()
    )


def digits(archive: Path, split: str) -> Arrays:
    """The 1,797 handwritten digits of configs/archives/optdigits.tar.gz.

    Args:
        archive: the unpacked archive, holding optdigits.csv: rows of 64 pixels 0..16 and a label.
        split: "train" (the first 1,437 rows) or "test" (the last 360).

    Returns:
        Fields images, float32 [8, 8, 1] in 0..1, and labels, int64 in 0..9.

    Raises:
        DataError: for another split, or a file that has other rows.
    """
    splits = {"train": slice(0, 1437), "test": slice(1437, 1797)}
    if split not in splits:
        raise DataError(f"digits: split = {split!r}: allowed are {', '.join(map(repr, splits))}")
    path = Path(archive) / "optdigits.csv"
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"digits: cannot read {path}: {error}") from error
    if rows.shape != (1797, 65) or rows.min() < 0 or rows[:, :64].max() > 16:
        raise DataError(
            f"digits: {path} has shape {rows.shape}, expected 1797 rows of 64 + 1 numbers"
        )
    rows = rows[splits[split]]
    images = (rows[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return Arrays(images=images, labels=rows[:, 64])
