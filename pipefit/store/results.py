"""The contract of what is read and written piece by piece, because it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Values(Protocol):
    """A value that was recorded at steps, exactly as it was; read when it is asked for.

    What is replaced before it is read comes as it was, or `NotFound` says so.
    """

    name: str
    steps: np.ndarray
    """The steps that have it, ascending, int64 of shape [n]."""

    def __len__(self) -> int:
        """Number of steps that have it."""

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """Step and array, by step; some megabytes at most are in memory at a time."""

    def __getitem__(self, step: int) -> np.ndarray:
        """The array of one step. Raises `NotFound` if that step has none."""


class Outputs(Protocol):
    """Per-example outputs, in the order of the validation set; read shard by shard."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        """Number of examples."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Shards in order: dicts of arrays of shape [examples in the shard, ...]."""

    def __getitem__(self, name: str) -> np.ndarray:
        """One output of all examples, shape [examples, ...]."""


class OutputsWriter(Protocol):
    """Streams per-example outputs into shards; nothing is visible until the validation names it.

    Names, dtypes and shapes of all batches are those of the first; others raise `StoreError`.
    """

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Append the outputs of one batch, arrays of shape [examples, ...]."""

    def close(self) -> str:
        """Write what is left and return the id to give to `commit_validation`."""

    def abort(self) -> None:
        """Delete what was written."""
