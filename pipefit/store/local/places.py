"""Where things are in the folder of a store.

    FOLDER/pipefit-store.json              says that it is one
    FOLDER/<collection>/<run>/@run/        all of a run; the parts of its name are nested folders
        document/<number>.json             the run's document: the highest number is the one
        stories/                           its long texts
        checkpoints/                       states (safetensors), and which of them there are
        logs/                              metrics and validations, appended by one process each
        records/<kind>/                    what others than the owner say about the run
        artifacts/                         reports, descriptions, outputs per example
        attempts/                          those that ended, and the ends of their logs

No part of a run's name holds an @, so what is a run and what belongs to one is never confused. All
names are relative: a store may be moved, and a run be copied, by any tool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from pipefit.errors import StoreError, StoreUnavailable
from pipefit.records import check_collection_name, check_run_name
from pipefit.store.backend import Document
from pipefit.store.local import blocks, disk, mounts

#: Of the layout of folders and files.
VERSION = 1

_MARKER = "pipefit-store.json"
_RUN = "@run"
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_LABEL_CHARACTERS = 60

_seen: set[Path] = set()


class RunPlace:
    """The folders of one run.

    Args:
        path: its folder @run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = path / "document"
        self.stories = path / "stories"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.artifacts = path / "artifacts"
        self.attempts = path / "attempts"

    def records(self, kind: str) -> Path:
        """The folder of the records of a kind."""
        return self.path / "records" / kind

    def create(self) -> None:
        """Create what the owner of the run writes into."""
        own = (self.document, self.stories, self.checkpoints, self.logs, self.attempts)
        for folder in own:
            disk.make_folders(folder)


class Root:
    """The folder of a store.

    Args:
        path: absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def shown(self) -> str:
        """The folder, for people."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether there is a store, which this Pipefit can read; asked once per process.

        Raises:
            StoreError: the folder holds something else, or a newer Pipefit wrote it.
            StoreUnavailable: it was there before, or its file system is not mounted.
        """
        marker = self.path / _MARKER
        if self.path in _seen:
            if not marker.exists():
                raise StoreUnavailable(
                    f"the store {self.path} is gone: {_MARKER} was there before; is its file "
                    "system mounted?"
                )
            return True
        # Listed before: what is there once the marker is, is the store's.
        others = sorted(name for name in disk.names_in(self.path) if not name.startswith("."))
        try:
            told = blocks.decode(marker.read_bytes())
        except FileNotFoundError:
            mounts.check(self.path)
            if others:
                raise StoreError(
                    f"{self.path} is no store of Pipefit, it holds {others[0]!r}: name a new or an "
                    "empty folder"
                ) from None
            return False
        except ValueError as error:
            raise StoreError(f"{marker} is damaged ({error}): restore it from a backup") from error
        self._check_version(told)
        _seen.add(self.path)
        return True

    def _check_version(self, told: Document) -> None:
        if told["version"] > VERSION:
            raise StoreError(
                f"the store {self.path} has the layout {told['version']}, this Pipefit knows those "
                f"up to {VERSION}: install a newer Pipefit (pip install --upgrade pipefit), or use "
                "another folder"
            )

    def create(self) -> None:
        """Make the folder a store, if it is none yet."""
        if not self.exists():
            disk.make_folders(self.path)
            told = blocks.encode({"format": "a store of Pipefit", "version": VERSION})
            # Whoever was faster wrote the same.
            disk.publish(disk.write(self.path, [told]), self.path / _MARKER)
            self.exists()
        mounts.remember(self.path)

    def collections(self) -> list[str]:
        """Folders of collections, by name."""
        return sorted(name for name in disk.names_in(self.path) if _is_collection(name))

    def collection(self, name: str) -> Path:
        """The folder of a collection.

        Raises:
            StoreError: none may be called so.
        """
        try:
            return self.path / check_collection_name(name)
        except ValueError as error:
            raise StoreError(str(error)) from None


def run_place(collection: Path, name: str) -> RunPlace | None:
    """Where a run is or would be; None if none may be called so."""
    try:
        return RunPlace(collection.joinpath(*check_run_name(name).split("/"), _RUN))
    except ValueError:
        return None


def run_names(collection: Path) -> Iterator[str]:
    """Names of what may be runs, in no order."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for name in disk.names_in(collection / above):
            if name == _RUN:
                yield above
            elif (inner := f"{above}/{name}" if above else name) and _is_run(inner):
                waiting.append(inner)


def label(name: str) -> str:
    """A file's name for any text: no two texts share one, on no file system."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LABEL_CHARACTERS]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain}-{digest[:16]}"


def file_name(wanted: str) -> str:
    """A fresh name for a file that people find again: `report.html` becomes `report-<...>.html`."""
    stem, dot, ending = wanted.rpartition("/")[2].rpartition(".")
    if not stem:
        stem, dot, ending = ending, "", ""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", stem)[:_LABEL_CHARACTERS]
    ending = re.sub(r"[^A-Za-z0-9]", "", ending)[:20]
    return f"{plain}-{disk.token()}{dot if ending else ''}{ending}"


def file_in(folder: Path, name: str) -> Path:
    """The file that a document names; documents may come from anywhere.

    Raises:
        StoreError: this names no file of the folder.
    """
    if not is_file_name(name):
        raise StoreError(f"{name!r} names no file in {folder}: restore the store from a backup")
    return folder / name


def is_file_name(name: str) -> bool:
    """Whether this names a file of a folder, and nothing elsewhere."""
    return bool(_FILE_NAME.fullmatch(name))


def _is_collection(name: str) -> bool:
    try:
        return bool(check_collection_name(name))
    except ValueError:
        return False


def _is_run(name: str) -> bool:
    try:
        return bool(check_run_name(name))
    except ValueError:
        return False
