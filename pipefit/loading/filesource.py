"""What all sources of weights that are files have in common.

A kind of file gives its tensors' facts when it is opened and reads one tensor at a time; this
module checks the names, and that a small file does not claim to hold what would fill the memory.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipefit.errors import LoadError
from pipefit.loading.base import Source, TensorInfo

if TYPE_CHECKING:
    import numpy as np

#: One read may claim so many bytes, or else no more than `_RATIO` times what the file stores of it.
_FREE = 2**30
# Slots that are still zero shrink a thousandfold; but 1 GiB of nothing else is no checkpoint.
_RATIO = 200


@dataclass(frozen=True)
class Origin:
    """Where a file came from: what people and the report are told.

    Attributes:
        label: of the source, without passwords.
        digest: sha256 of what was opened, if it was verified.
    """

    label: str
    digest: str | None = None

    def of(self, member: str) -> Origin:
        """The same for one of the files inside."""
        return Origin(f"{self.label}: {member}", self.digest)

    def damaged(self, kind: str, reason: object) -> LoadError:
        """The error for a file that does not hold what its kind says.

        Args:
            kind: "safetensors file", ...
            reason: what is wrong; only its words are taken, in one line.
        """
        why = shortened(" ".join(str(reason).split()))
        return LoadError(
            f"{self.label} is not a whole {kind}: {why}; copy or save it again, it is damaged or "
            "was made by something else"
        )


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: as errors list it.
        matches: whether a file is of this kind, by its path and its first bytes.
        open: the source for such a file.
    """

    name: str
    matches: Callable[[Path, bytes], bool]
    open: Callable[[Path, Origin], Source]


class FileSource(ABC):
    """Tensors of one file; implements `Source` but for how one tensor is read.

    Args:
        origin: of the file.
        tensors: its tensors by name.
        step: it was saved at, if it says so.
    """

    def __init__(self, origin: Origin, tensors: Mapping[str, TensorInfo], step: int | None = None):
        self.label = origin.label
        self.digest = origin.digest
        self.step = step
        self._tensors = dict(tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by name; none is read."""
        return dict(self._tensors)

    def read(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """The named tensors.

        Raises:
            LoadError: one of them is not there, is not made of numbers, or cannot be read.
        """
        for name in names:
            self._check(name)
        self._check_claims(names)
        return {name: self._read(name) for name in names}

    def whole_number(self, name: str) -> int | None:
        """The value of a tensor that is one whole number; None if there is none of this name."""
        info = self._tensors.get(name)
        if info is None or info.shape or "int" not in info.dtype:
            return None
        return int(self.read([name])[name])

    def only_number(self, names: Iterable[str]) -> int | None:
        """The value of the only one of these that there is; None if there are several or none."""
        there = [name for name in names if name in self._tensors]
        return self.whole_number(there[0]) if len(there) == 1 else None

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @abstractmethod
    def _read(self, name: str) -> np.ndarray:
        """One tensor, which is there."""

    @abstractmethod
    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    def _check(self, name: str) -> None:
        if name not in self._tensors:
            near = ", ".join(get_close_matches(name, self._tensors, 3)) or listed(self._tensors)
            raise LoadError(f"{self.label} has no tensor {name!r}; it has {near}")
        if (dtype := self._tensors[name].dtype) not in ITEM_BYTES:
            raise LoadError(
                f"{self.label}: tensor {name!r} is of dtype {dtype}, which cannot be loaded into a "
                "variable; exclude it, or save it as numbers"
            )

    def _check_claims(self, names: Collection[str]) -> None:
        claims = {name: self.claim(name) for name in names}
        claimed = sum(memory for memory, _ in claims.values())
        stored = min(sum(stored for _, stored in claims.values()), self.size)
        if claimed > max(_FREE, _RATIO * stored):
            largest = max(claims, key=lambda name: claims[name][0])
            raise LoadError(
                f"{self.label} claims {claimed} bytes for {len(claims)} tensors (the largest: "
                f"{largest!r}) but stores {stored}: more than {_RATIO} times as much is refused; "
                "save it without compression if it is meant so"
            )


def zip_names(path: Path, start: bytes) -> list[str]:
    """The members of a zip archive; none if it is not one, or not whole."""
    if not start.startswith(b"PK\x03\x04"):
        return []
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except Exception:  # zipfile has several types for damage
        return []


#: Of the dtypes that a variable may have, as numpy calls them, the bytes of one number.
ITEM_BYTES = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16},
}


def listed(names: Iterable[str], most: int = 8) -> str:
    """Some names for a message."""
    every = [shortened(name, 80) for name in sorted(names)]
    more = f", ... ({len(every)} in all)" if len(every) > most else ""
    return (", ".join(every[:most]) + more) or "none"


def shortened(text: str, most: int = 300) -> str:
    """The text, cut where it is long."""
    return text if len(text) <= most else text[:most] + "..."
