"""NumPy's .npz: a zip archive of arrays. Members are read one by one and never unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipefit.errors import LoadError
from pipefit.loading.base import TensorInfo
from pipefit.loading.filesource import FileSource, Kind, Origin, zip_names
from pipefit.loading.roles import STATE_STEP, roles

if TYPE_CHECKING:
    import numpy as np

_NAME = ".npz file"
_PIECE = 2**20
# The others expand what they are given at once, without a bound.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1


@dataclass(frozen=True)
class _Member:
    """An array: its place in the archive, bytes of its header, and what the header says."""

    info: zipfile.ZipInfo
    start: int
    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]


class Npz(FileSource):
    """The arrays of a .npz file, by their names there.

    Args:
        path: of the file.
        origin: where it came from.

    Raises:
        LoadError: it is damaged.
    """

    def __init__(self, path: Path, origin: Origin):
        self._origin = origin
        with _damage(origin):
            self._bytes = path.stat().st_size
            self._zip = zipfile.ZipFile(path)
        try:
            with _damage(origin):
                self._members = dict(self._headers())
            known = roles(self._members)
            tensors = {
                name: TensorInfo(_dtype_name(member.dtype), member.shape, known[name])
                for name, member in self._members.items()
            }
            super().__init__(origin, tensors)
            self.step = self.whole_number(STATE_STEP)
        except BaseException:
            self._zip.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def _headers(self) -> Iterator[tuple[str, _Member]]:
        seen = set()
        for info in self._zip.infolist():
            if info.filename in seen:
                raise ValueError(f"{info.filename!r} stands twice in it")
            seen.add(info.filename)
            if info.compress_type not in _METHODS or info.flag_bits & _ENCRYPTED:
                raise ValueError(f"{info.filename!r} is encrypted, or neither stored nor deflated")
            with self._zip.open(info) as file:
                yield info.filename.removesuffix(".npy"), _header(info, file)

    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""
        member = self._members[name]
        return math.prod(member.shape) * member.dtype.itemsize, member.info.compress_size

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._bytes

    def _read(self, name: str) -> np.ndarray:
        import numpy as np

        member = self._members[name]
        found = np.empty(math.prod(member.shape), member.dtype)
        with _damage(self._origin, name), self._zip.open(member.info) as file:
            file.read(member.start)
            view = memoryview(found.view(np.uint8).data) if found.size else memoryview(b"")
            for at in range(0, found.nbytes, _PIECE):
                _fill(file, view[at : at + _PIECE])
            if file.read(1):  # there the sum of the member is compared, too
                raise ValueError("there are more bytes than its header says")
        native = found.astype(member.dtype.newbyteorder("="), copy=False)
        if not member.columns_first:
            return native.reshape(member.shape)
        return np.asarray(native.reshape(member.shape[::-1]).T, order="C")


def _header(info: zipfile.ZipInfo, file: IO[bytes]) -> _Member:
    """What the header of a member says; it must add up to the member's length."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{info.filename!r} has a header of version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    start = file.tell()
    if any(size < 0 for size in shape):
        raise ValueError(f"{info.filename!r} has the shape {shape}")
    if not dtype.hasobject and start + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(
            f"{info.filename!r} says {dtype}{list(shape)} but has {info.file_size - start} bytes"
        )
    return _Member(info, start, shape, columns_first, dtype)


def _fill(file: IO[bytes], view: memoryview) -> None:
    while view:
        data = file.read(len(view))
        if not data:
            raise ValueError("it ends early")
        view[: len(data)] = data
        view = view[len(data) :]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """A dtype in the words of `TensorInfo`; what is pickled is "object", raw bytes are "void16"."""
    return dtype.newbyteorder("=").name


@contextmanager
def _damage(origin: Origin, name: str | None = None) -> Iterator[None]:
    try:
        yield
    except LoadError:
        raise
    # zipfile, zlib and the reading of headers have a dozen types for damage
    except Exception as error:
        about = "" if name is None else f"tensor {name!r}: "
        raise origin.damaged(_NAME, f"{about}{error}") from error


def _matches(path: Path, start: bytes) -> bool:
    names = zip_names(path, start)
    return bool(names) and all(name.endswith(".npy") for name in names)


KIND = Kind(_NAME, _matches, Npz)
