"""How recorded values become bytes, and back.

A column holds one value per step, an array of shape [steps, ...]. Small ones lie in the records,
large ones in files; the bytes are the same: the values as they lie in memory, little-endian, or
texts of any length one after the other.

    >>> import numpy as np
    >>> names = kept_column("names", np.array(["a", "bc"], object), steps=2)
    >>> packed = names.packed(0, 2)
    >>> packed.entry
    {'name': 'names', 'dtype': 'str', 'shape': []}
    >>> unpacked(packed.entry, packed.data, steps=2).tolist()
    ['a', 'bc']
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipefit.errors import StoreError
from pipefit.records import MetricBlock

#: Bytes per step above which a column lies in files.
LARGE = 512

#: Bytes of small columns in one record; a record stays far below MongoDB's limit of 16 MiB.
RECORD_BYTES = 512 * 1024

#: Bytes of a file of values, roughly: what a reader holds in memory at a time.
FILE_BYTES = 16 * 1024 * 1024

_LENGTH = np.dtype("<u4")
# Python's texts may hold halves of surrogate pairs, which strict UTF-8 has not.
_ENCODING = ("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Packed:
    """A column of some steps as bytes.

    Attributes:
        entry: name, dtype and shape of one value: what a record says about it.
        data: the values.
        large: whether they belong into a file.
    """

    entry: dict[str, Any]
    data: bytes
    large: bool


@dataclass(frozen=True)
class Column:
    """Values that can be kept.

    Attributes:
        name: what they are called.
        dtype: numpy's code, or "str" or "bytes" for texts of any length.
        values: shape [steps, ...]; texts of any length as objects, encoded.
    """

    name: str
    dtype: str
    values: np.ndarray

    @functools.cached_property
    def step_bytes(self) -> int:
        """Bytes of one step; of texts, of the step that has the most."""
        per_step = math.prod(self.values.shape[1:])
        if self.values.dtype != object:
            return self.values.itemsize * per_step
        rows = self.values.reshape(len(self.values), per_step)
        longest = max((sum(map(len, row)) for row in rows), default=0)
        return _LENGTH.itemsize * per_step + longest

    def packed(self, begin: int, end: int) -> Packed:
        """The steps from row `begin` to row `end`."""
        entry = {"name": self.name, "dtype": self.dtype, "shape": list(self.values.shape[1:])}
        rows = self.values[begin:end]
        if rows.dtype != object:
            data = rows.tobytes()
        else:
            lengths = np.fromiter((len(text) for text in rows.flat), _LENGTH, count=rows.size)
            data = lengths.tobytes() + b"".join(rows.flat)
        return Packed(entry, data, large=self.step_bytes > LARGE)


@dataclass(frozen=True)
class Piece:
    """What one record holds of a block: all columns, of the steps from `first` on."""

    first: int
    steps: int
    columns: Sequence[Packed]


def split_block(block: MetricBlock) -> Iterator[Piece]:
    """Cut a block into pieces whose records and files stay small.

    Raises:
        StoreError: a column cannot be kept; the message names it.
    """
    steps = _steps(block)
    columns = [kept_column(name, values, steps) for name, values in block.columns.items()]
    sizes = [column.step_bytes for column in columns]
    small = sum(size for size in sizes if size <= LARGE)
    rows = max(1, min(RECORD_BYTES // max(1, small), FILE_BYTES // max(1, *sizes, 1)))
    for begin in range(0, steps, rows):
        end = min(begin + rows, steps)
        yield Piece(block.first + begin, end - begin, [c.packed(begin, end) for c in columns])


def _steps(block: MetricBlock) -> int:
    try:
        return len(block)
    except TypeError:  # the first column has no axis of steps, and is named for it
        return 0


def single(name: str, value: Any) -> Packed:
    """One value as a column of one step.

    Raises:
        StoreError: it cannot be kept.
    """
    return kept_column(name, _array(name, value)[np.newaxis], 1).packed(0, 1)


def kept_column(name: str, values: Any, steps: int) -> Column:
    """The values in a form that comes back as it is.

    Raises:
        StoreError: they are of another dtype, or not of shape [steps, ...].
    """
    array = _array(name, values)
    if array.ndim == 0 or len(array) != steps:
        raise StoreError(
            f"value {name!r} is {array.dtype} of shape {list(array.shape)}: columns of a block "
            "have the shape [steps, ...], all with the same number of steps"
        )
    if array.dtype == object:
        return _text_column(name, array)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    kind, size = array.dtype.kind, array.itemsize
    if kind not in "biufSU" or (kind == "f" and size > 8) or size == 0:
        raise StoreError(_refused(name, f"{array.dtype} of shape {list(array.shape)}"))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Column(name, little.dtype.str, little)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of several lengths
        raise StoreError(_refused(name, f"no array ({error})")) from None
    if array.dtype.kind in "SU" and not isinstance(values, np.ndarray | np.generic):
        # Text that is not numpy's yet stays whole: numpy would cut off zero bytes at its end.
        array = np.asarray(values, object)
    return array


def _text_column(name: str, array: np.ndarray) -> Column:
    kinds = {type(text) for text in array.flat}
    if all(issubclass(kind, str) for kind in kinds):
        encoded = np.empty(array.size, object)
        encoded[:] = [text.encode(*_ENCODING) for text in array.flat]
        return Column(name, "str", encoded.reshape(array.shape))
    if all(issubclass(kind, bytes) for kind in kinds):
        return Column(name, "bytes", array)
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise StoreError(_refused(name, f"an array of objects ({named})"))


def _refused(name: str, what: str) -> str:
    return (
        f"value {name!r} is {what}, which cannot be stored: give numbers (of up to 64 bits, not "
        "complex), bool, or text (as objects: all str or all bytes)"
    )


def step_width(entry: Mapping[str, Any]) -> int | None:
    """Bytes of one step of a packed column; None for texts, of which each step has its own."""
    if entry["dtype"] in ("str", "bytes"):
        return None
    size: int = np.dtype(entry["dtype"]).itemsize * math.prod(entry.get("shape", ()))
    return size


def unpacked(entry: Mapping[str, Any], data: bytes | bytearray, steps: int) -> np.ndarray:
    """The values of a packed column, shape [steps, ...]; numbers may be read only.

    Raises:
        ValueError: the bytes are not those of such a column.
    """
    # Columns of before there were arrays have no shape.
    shape = (steps, *entry.get("shape", ()))
    if entry["dtype"] in ("str", "bytes"):
        return _unpacked_texts(entry["dtype"], data, shape)
    values = np.frombuffer(data, np.dtype(entry["dtype"]))
    return values if values.shape == shape else values.reshape(shape)


def _unpacked_texts(kind: str, data: bytes | bytearray, shape: Sequence[int]) -> np.ndarray:
    count = math.prod(shape)
    ends = np.frombuffer(data, _LENGTH, count=count).cumsum(dtype=np.int64).tolist()
    body = bytes(data[count * _LENGTH.itemsize :])
    if len(body) != (ends[-1] if ends else 0):
        raise ValueError("texts of another length than they say")
    texts = [body[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    array = np.empty(count, object)
    array[:] = texts if kind == "bytes" else [text.decode(*_ENCODING) for text in texts]
    return array.reshape(shape)
