"""Opens what TensorFlow has saved; loads TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pipefit.loading import Source


def open_saver(prefix: Path, label: str) -> Source:
    """The variables of a checkpoint of a TensorFlow 1 Saver.

    Raises:
        LoadError: it is none, or damaged.
    """
    from pipefit.training.checkpoints import open_bundle

    return open_bundle(prefix, label)
