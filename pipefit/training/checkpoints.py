"""TensorFlow's own checkpoint files as sources of tensors: `pipefit.loading.Source`.

with open_bundle("/old/model.ckpt-1000") as source:
    source.tensors()["hidden1/weights"].shape, source.read(["hidden1/weights"])
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import tensorflow as tf

from pipefit.errors import LoadError
from pipefit.loading import TensorInfo

if TYPE_CHECKING:
    import numpy as np

#: What TensorFlow 1 calls the number of updates.
STEP = "global_step"

#: Counters of TensorFlow 1 optimizers, which belong to no variable.
_COUNTERS = ("beta1_power", "beta2_power")
_AVERAGE = "ExponentialMovingAverage"


def open_bundle(prefix: str | os.PathLike[str], label: str | None = None) -> BundleSource:
    """The variables of a checkpoint that a TensorFlow 1 Saver has written, in either version.

    Args:
        prefix: its path without ".index" and ".data-...", as TensorFlow names it.
        label: what to call it in messages; None: its path.

    Raises:
        LoadError: it is no such checkpoint, or damaged.
    """
    return BundleSource(os.fspath(prefix), label or os.fspath(prefix))


class BundleSource:
    """`pipefit.loading.Source` of one checkpoint; see `open_bundle`."""

    digest: str | None = None

    def __init__(self, prefix: str, label: str) -> None:
        self.label = label
        try:
            # Made directly: tf.train.load_checkpoint would look for the newest one in a folder.
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
            dtypes = self._reader.get_variable_to_dtype_map()
            shapes = self._reader.get_variable_to_shape_map()
        except Exception as error:  # TensorFlow has a dozen types for damage
            raise _unreadable(label, error) from error
        found = roles(dtypes)
        self._tensors = {
            name: TensorInfo(dtypes[name].name, tuple(shapes[name]), found[name])
            for name in sorted(dtypes)
        }
        scalar = STEP in shapes and not shapes[STEP] and dtypes[STEP].is_integer
        self.step = int(self.read([STEP])[STEP]) if scalar else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tensors(self) -> dict[str, TensorInfo]:
        """All variables by name."""
        return dict(self._tensors)

    def read(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named variables.

        Raises:
            LoadError: there is no such variable, or its bytes are damaged.
        """
        missing = sorted(set(names) - self._tensors.keys())
        if missing:
            raise LoadError(f"{self.label} has no variable {missing[0]!r}; it has: {self._known()}")
        try:
            return {name: self._reader.get_tensor(name) for name in names}
        except Exception as error:  # likewise
            raise _unreadable(self.label, error) from error

    def close(self) -> None:
        """Nothing is open between two reads."""

    def _known(self) -> str:
        names = list(self._tensors)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return ", ".join(names[:20]) + more


def roles(names: Iterable[str]) -> dict[str, Literal["model", "optimizer", "other"]]:
    """What the variables of a TensorFlow 1 checkpoint are for, told by their names.

    >>> list(roles(["a/kernel", "a/kernel/Momentum", "train/a/kernel/Adam_1"]).values())
    ['model', 'optimizer', 'optimizer']
    """
    known = set(names)
    return {name: _role(name, known) for name in names}


def _role(name: str, known: set[str]) -> Literal["model", "optimizer", "other"]:
    owner, _, last = name.rpartition("/")
    if last in (STEP, _AVERAGE):
        return "other"
    if last in _COUNTERS:
        return "optimizer"
    # A slot is named after its variable, perhaps within the scope of its optimizer.
    parts = owner.split("/")
    if any("/".join(parts[begin:]) in known for begin in range(len(parts))):
        return "optimizer"
    return "model"


def _unreadable(label: str, error: Exception) -> LoadError:
    reason = " ".join(str(error).split())[:300]
    hint = "" if Path(label).exists() else "; name its prefix, without .index and .data-..."
    return LoadError(f"{label} cannot be read as a TensorFlow checkpoint: {reason}{hint}")
