"""Where checkpoints of TensorFlow lie; who reads them is given to `pipefit.loading.open_file`."""

from __future__ import annotations

import re
from pathlib import Path

from pipefit.loading.sstable import MAGIC

NAMES = (
    "checkpoint of TensorFlow 2 or of a TensorFlow 1 Saver (name the files without .index and "
    ".data-..., or their folder)",
    "SavedModel (a folder)",
)

_INDEX = ".index"
#: One of the other files of a checkpoint.
PART = re.compile(r"\.(data-\d{5}-of-\d{5}|index|meta)$")

_STATE, _SAVED_MODEL = "checkpoint", "saved_model.pb"
_NEWEST = re.compile(r'^\s*model_checkpoint_path:\s*"([^"\\]+)"', re.MULTILINE)
# The state file lists some checkpoints; a data file may be called so, too.
_LONGEST_STATE = 2**20


def is_prefix(path: Path) -> bool:
    """Whether a path names a checkpoint as TensorFlow does: without the endings of its files."""
    return path.with_name(path.name + _INDEX).is_file()


def prefix_of(path: Path) -> Path | None:
    """What TensorFlow calls the checkpoint whose index is in this file; None if it holds none."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(MAGIC)))
        if file.read() != MAGIC:
            return None
    return path.with_name(path.name.removesuffix(_INDEX))


def prefix_in(folder: Path) -> Path | None:
    """The checkpoint that a folder is about: a SavedModel's, or the newest of a training.

    A training's folder says in a file which that is; it is looked for in the folder, wherever it
    was written.
    """
    if (folder / _SAVED_MODEL).is_file():
        return folder / "variables" / "variables"
    state = folder / _STATE
    if not state.is_file() or state.stat().st_size > _LONGEST_STATE:
        return None
    found = _NEWEST.search(state.read_text(encoding="utf-8", errors="replace"))
    name = re.split(r"[/\\]", found[1])[-1] if found else ""
    # Of version 1 there is one file without ending.
    exists = name not in ("", ".", "..") and (is_prefix(folder / name) or (folder / name).is_file())
    return folder / name if exists else None
