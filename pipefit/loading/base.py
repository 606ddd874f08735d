"""What can be loaded from, whatever it is: `Source`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before it is read.

    Attributes:
        dtype: as numpy calls it, for instance "float32"; "bfloat16" as well.
        shape: its dimensions.
        role: what it is for: "model" a variable of the model, "optimizer" a slot or counter of an
            optimizer, "other" the rest of a training's state (step, seeds, position, counters).
    """

    dtype: str
    shape: tuple[int, ...]
    role: Literal["model", "optimizer", "other"] = "model"


class Source(Protocol):
    """Tensors by name, of a run, a file or another database; only what is asked for is read.

    Closed by `close`, or by leaving the `with` block. Errors: `LoadError` for what is not there, is
    damaged, or is of an unknown kind; its first line names the source and what to do.

    Attributes:
        label: what it is, for people; without passwords.
        step: the step it was saved at, if it says so.
        digest: sha256 of what it was read from, if that is known; goes to the report.
    """

    label: str
    step: int | None
    digest: str | None

    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by the source's own names; no tensor is read for it."""

    def read(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """The named tensors; little more than their bytes travels."""

    def close(self) -> None:
        """Give back files and connections."""
