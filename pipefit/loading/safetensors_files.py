"""Safetensors: one file, or several with an index (`model.safetensors.index.json`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import LoadError
from pipefit.loading.base import TensorInfo
from pipefit.loading.filesource import ITEM_BYTES, FileSource, Kind, Origin, listed
from pipefit.loading.names import Role
from pipefit.loading.roles import STATE_STEP, roles

if TYPE_CHECKING:
    import numpy as np

_NAME = "safetensors file"
_INDEX = "index of safetensors files"
#: How the files are called that an index lists.
PART = re.compile(r"-\d+-of-\d+\.safetensors$")

# The library refuses longer headers; nobody writes them.
_LONGEST_HEADER = 100_000_000

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


class Safetensors(FileSource):
    """The tensors of safetensors files, by their names there.

    Args:
        origin: where they came from.
        paths: the files.

    Raises:
        LoadError: one is damaged, or a name stands in two of them.
    """

    def __init__(self, origin: Origin, paths: list[Path]):
        self._origin = origin
        self._stack = ExitStack()
        self._bytes = 0
        try:
            files: dict[str, Any] = {}
            for path in paths:
                self._open(path, files)
            self._files = files
            known = roles(files)
            with _damage(origin, "header"):
                tensors = {
                    name: _info(file.get_slice(name), known[name]) for name, file in files.items()
                }
            super().__init__(origin, tensors)
            self.step = self.whole_number(STATE_STEP)
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self._files.clear()
        self._stack.close()

    def _open(self, path: Path, files: dict[str, Any]) -> None:
        from safetensors import safe_open

        with _damage(self._origin, path.name):
            self._bytes += path.stat().st_size
            file: Any = self._stack.enter_context(safe_open(path, framework="np"))
            names = list(file.keys())
            if twice := files.keys() & names:
                raise ValueError(f"tensors that another file has, too: {listed(twice)}")
        files |= dict.fromkeys(names, file)

    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""
        info = self._tensors[name]
        # Its library has checked that places and shapes agree and lie in the file.
        size = math.prod(info.shape) * ITEM_BYTES[info.dtype]
        return size, size

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._bytes

    def _read(self, name: str) -> np.ndarray:
        import ml_dtypes  # noqa: F401, makes bfloat16 known to numpy

        with _damage(self._origin, f"tensor {name!r}"):
            found: np.ndarray = self._files[name].get_tensor(name)
        return found


def _info(found: Any, role: Role) -> TensorInfo:
    code = found.get_dtype()
    return TensorInfo(_DTYPES.get(code, code.lower()), tuple(found.get_shape()), role)


def _open_one(path: Path, origin: Origin) -> Safetensors:
    return Safetensors(origin, [path])


def _open_index(path: Path, origin: Origin) -> Safetensors:
    """All files that the index names; index and files must list the same tensors."""
    with _damage(origin, _INDEX, _INDEX):
        if path.stat().st_size > _LONGEST_HEADER:
            raise ValueError(f"it is longer than {_LONGEST_HEADER} bytes")
        places: dict[str, str] = dict(json.loads(path.read_bytes())["weight_map"])
        files = sorted(set(places.values()))
        for file in files:
            if Path(file).name != file or file == "..":
                raise ValueError(f"it names {file!r}, which is not a file beside it")
    if absent := [file for file in files if not (path.parent / file).is_file()]:
        raise LoadError(
            f"{origin.label} names {listed(absent)}, not there beside it; fetch all of its files"
        )
    source = Safetensors(origin, [path.parent / file for file in files])
    if different := source.tensors().keys() ^ places.keys():
        source.close()
        raise origin.damaged(_INDEX, f"it and its files do not agree on {listed(different)}")
    return source


@contextmanager
def _damage(origin: Origin, what: str, kind: str = _NAME) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    # The index may hold any JSON; the library raises the first two.
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise origin.damaged(kind, f"{what}: {error}") from error


def _matches_one(path: Path, start: bytes) -> bool:
    return start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= _LONGEST_HEADER


def _matches_index(path: Path, start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and path.name.endswith(".safetensors.index.json")


KINDS = (Kind(_NAME, _matches_one, _open_one), Kind(_INDEX, _matches_index, _open_index))
