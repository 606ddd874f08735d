"""Whether the file system is mounted on which a store was.

A disk that is unplugged, or a share that is away, leaves an empty folder: the store in it would
look like one that has no runs, and training would begin anew, below the mount point. So it is
remembered under PIPEFIT_HOME where stores are that are not on the root's own file system.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pipefit import settings
from pipefit.errors import StoreUnavailable


def remember(path: Path) -> None:
    """Keep in mind where the store in this folder is mounted."""
    mount = _mount_of(path)
    note = _note(path)
    if mount != Path(path.anchor) and not note.exists():
        with suppress(OSError):  # a home that cannot be written to forgets
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{mount}\n{path}\n", encoding="utf-8")


def check(path: Path) -> None:
    """Raise `StoreUnavailable` if there was a store whose file system is not mounted now."""
    try:
        mount, _ = _note(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    if not Path(mount).is_mount():
        raise StoreUnavailable(
            f"the store {path} was on a file system mounted at {mount}, where none is now: mount "
            f"it (or delete {_note(path)}, if the store is gone for good)"
        )


def _mount_of(path: Path) -> Path:
    return next((p for p in (path, *path.parents) if p.is_mount()), Path(path.anchor))


def _note(path: Path) -> Path:
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()
    return settings.home() / "stores" / digest[:32]
