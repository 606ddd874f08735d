"""How tensors become bytes, and back.

They are kept in the safetensors layout: eight bytes with the length of a JSON header, the
header with dtype, shape, begin and end of every tensor, then the data, little-endian.

    >>> import numpy as np
    >>> data = encode_tensors({"dense/kernel": np.ones((2, 3), np.float32)})
    >>> index = read_index(header_text(data))
    >>> index.entries["dense/kernel"].shape
    (2, 3)
    >>> tensor(index.entries["dense/kernel"], memoryview(data)[index.start :]).sum().item()
    6.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipefit.errors import StoreError
from pipefit.records import TensorFacts

Bytes = bytes | bytearray | memoryview

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_CODES = {name: code for code, name in _DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies in a file's data section: safetensors' dtype code, bytes from, to."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorIndex:
    """What a file holds: where its data section starts, and what lies where in that section."""

    start: int
    entries: Mapping[str, TensorEntry]

    def facts(self) -> dict[str, TensorFacts]:
        """Dtype and shape of every tensor.

        Raises:
            StoreError: a dtype this version does not know.
        """
        return {
            name: TensorFacts(dtype_of(entry.dtype).name, entry.shape)
            for name, entry in self.entries.items()
        }

    def matching(self, include: str | None) -> dict[str, TensorEntry]:
        """The entries whose name the regular expression matches somewhere; None: all.

        Raises:
            StoreError: `include` is not a regular expression.
        """
        if include is None:
            return dict(self.entries)
        try:
            pattern = re.compile(include)
        except re.error as error:
            raise StoreError(f"include {include!r} is not a regular expression: {error}") from None
        return {name: entry for name, entry in self.entries.items() if pattern.search(name)}


class TensorFile:
    """Tensors in the safetensors layout, made piece by piece: no copy of all of them is made.

    Args:
        tensors: by name; they are not to change as long as this is used.

    Attributes:
        header: what lies where in it, as JSON.
        size: bytes of the file.

    Raises:
        StoreError: a dtype that the layout does not have (text, objects), or a reserved name.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        for name, array in tensors.items():
            _check_storable(name, array)
        # The widest first, so that each lies at a multiple of its width.
        self._tensors = sorted(tensors.items(), key=lambda pair: (-pair[1].dtype.itemsize, pair[0]))
        entries = {}
        end = 0
        for name, array in self._tensors:
            begin, end = end, end + array.nbytes
            code = _CODES[array.dtype.name]
            entries[name] = {"dtype": code, "shape": array.shape, "data_offsets": (begin, end)}
        text = json.dumps(entries, separators=(",", ":"))
        self.header = text.ljust(-(-len(text) // 8) * 8)
        self.size = 8 + len(self.header) + end

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the file, in order; the same whenever they are asked for."""
        header = self.header.encode()
        yield memoryview(len(header).to_bytes(8, "little") + header)
        for _, array in self._tensors:
            yield _memory_of(array)


def is_storable(dtype: str) -> bool:
    """Whether the layout has tensors of this dtype, as numpy calls it; it has no texts."""
    return dtype in _CODES


def encode_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The tensors in the safetensors layout; raises as `TensorFile` does."""
    return b"".join(TensorFile(tensors).pieces())


def _check_storable(name: str, array: np.ndarray) -> None:
    if name == "__metadata__" or not is_storable(array.dtype.name):
        raise StoreError(
            f"tensor {name!r} of dtype {array.dtype} cannot be stored: its name must not be "
            f"__metadata__ and its dtype one of {', '.join(_CODES)}"
        )


def _memory_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, which is copied only if they lie otherwise in memory."""
    straight = np.asarray(array, named_dtype(array.dtype.name), order="C")
    # As bytes: not every dtype has a buffer of its own.
    return straight.reshape(-1).view(np.uint8).data


def header_text(data: Bytes) -> str:
    """The header of a file of tensors."""
    return str(data[8 : 8 + header_length(data)], "utf-8")


def header_length(data: Bytes) -> int:
    """Bytes of the header, from the first eight bytes of a file."""
    return int.from_bytes(data[:8], "little")


def read_index(header: str) -> TensorIndex:
    """What a file with this header holds.

    Raises:
        ValueError, KeyError, TypeError: this is no header.
    """
    entries = {
        name: TensorEntry(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in json.loads(header).items()
        if name != "__metadata__"
    }
    return TensorIndex(start=8 + len(header.encode()), entries=entries)


def decode_tensors(data: memoryview) -> dict[str, np.ndarray]:
    """All tensors of a file, as views on its bytes.

    Raises:
        ValueError, KeyError, TypeError: this is no such file.
    """
    index = read_index(header_text(data))
    section = data[index.start :]
    return {
        name: tensor(entry, section[entry.begin : entry.end])
        for name, entry in index.entries.items()
    }


def tensor(entry: TensorEntry, data: memoryview) -> np.ndarray:
    """One tensor as a view on its bytes."""
    return np.frombuffer(data, dtype=dtype_of(entry.dtype)).reshape(entry.shape)


def dtype_of(code: str) -> np.dtype[Any]:
    """The numpy dtype of a safetensors dtype code.

    Raises:
        StoreError: a code this version does not know.
    """
    if code not in _DTYPES:
        raise StoreError(
            f"a tensor of safetensors dtype {code} cannot be read: known are {', '.join(_DTYPES)}"
        )
    return named_dtype(_DTYPES[code])


def named_dtype(name: str) -> np.dtype[Any]:
    """The little-endian dtype that numpy, or ml_dtypes, calls so."""
    if name != "bfloat16":
        return np.dtype(name).newbyteorder("<")
    import ml_dtypes  # comes with TensorFlow

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16
