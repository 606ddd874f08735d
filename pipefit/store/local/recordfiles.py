"""Records that have a file each: what others than the owner say about a run.

A file's name tells what the record is unique by: step, fence, branch and a label of its name. It is
replaced by one rename.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipefit.errors import StoreError
from pipefit.store.backend import Document
from pipefit.store.local import blocks, disk
from pipefit.store.local.columns import with_values
from pipefit.store.local.places import label

_NAME = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([A-Za-z0-9_-]+)\.record")


class _Key(NamedTuple):
    step: int
    fence: int
    branch: int
    label: str

    @property
    def file_name(self) -> str:
        return f"{self.step}.{self.fence}.{self.branch}.{self.label}.record"

    @property
    def without_fence(self) -> tuple[int, int, str]:
        return self.step, self.branch, self.label


def put(folder: Path, record: Mapping[str, Any], block: bytes) -> bool:
    """Write a record in the place of the one with its name, step and branch.

    Args:
        folder: of the records of its kind.
        record: the record.
        block: the same with its values.

    Returns:
        False, with nothing written, if a newer attempt (a larger fence) wrote that one.
    """
    disk.make_folders(folder)
    branch = record.get("branch", 0)
    key = _Key(record["step"], record["fence"], branch, label(record["name"]))
    path = folder / key.file_name
    disk.move(disk.write(folder, [block]), path)
    # Now it is there; which one counts is told by the fences, whatever happens from here on.
    others = [other for other in _keys(folder) if other.without_fence == key.without_fence]
    if any(other.fence > key.fence for other in others):
        disk.remove(path)
        return False
    for other in others:
        if other.fence < key.fence:
            disk.remove(folder / other.file_name)
    return True


def find(
    folder: Path, steps: Collection[int] | None = None, names: Collection[str] | None = None
) -> Iterator[Document]:
    """Records, by step.

    Args:
        folder: of the records of a kind.
        steps: of these only; None: of all.
        names: of these only; None: of all.

    Raises:
        StoreError: one is damaged.
    """
    labels = None if names is None else {label(name) for name in names}
    for key in sorted(_keys(folder)):
        wanted = (steps is None or key.step in steps) and (labels is None or key.label in labels)
        record = _read(folder / key.file_name) if wanted else None
        if record is not None:
            yield record


def _keys(folder: Path) -> list[_Key]:
    found = (_NAME.fullmatch(name) for name in disk.names_in(folder))
    return [_Key(int(m[1]), int(m[2]), int(m[3]), m[4]) for m in found if m]


def _read(path: Path) -> Document | None:
    """A record; None if it was removed just now."""
    try:
        with path.open("rb") as file:
            line = file.readline()
            record = with_values(blocks.decode(line), file, len(line))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
    return {**record, "_file": str(path), "_line": 0, "_begin": len(line)}
