"""Bringing a run into a folder: `pipefit.store.backend.Arrival`.

<collection>/@arriving-<token>/about.json      which run, by whom; written again while it goes on
<collection>/@arriving-<token>/run/            what becomes the folder of the run, by one rename
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import LeaseLost, RunOwned, StoreError
from pipefit.records import Owner
from pipefit.store import documents
from pipefit.store.backend import CHECKPOINTS, Arriving, Document
from pipefit.store.documents import ATTEMPT, CHECKPOINT, METRICS, VALIDATION
from pipefit.store.local import blocks, disk, recordfiles
from pipefit.store.local.columns import with_columns
from pipefit.store.local.disk import guarded
from pipefit.store.local.files import Folder
from pipefit.store.local.logs import LogWriter
from pipefit.store.local.places import RunPlace, run_place
from pipefit.store.local.runs import Draft, RunFiles
from pipefit.store.owner import is_dead
from pipefit.store.ownership import arriving_text

if TYPE_CHECKING:
    from pipefit.store.columns import Packed
    from pipefit.store.local.backend import LocalBackend

_PREFIX = "@arriving-"
_ABOUT = "about.json"

#: Of logs, written at once: every write waits for the disk.
_TOGETHER = 8 * 2**20
#: Seconds after which an arrival says again that it goes on.
_SEEN_EVERY = 10.0
#: Whoever has written nothing yet.
_NOBODY = Owner("an unknown host", "", 0, 0.0)


def arrive(backend: LocalBackend, name: str, owner: Owner) -> LocalArrival:
    """Begin to bring a run in; what is left of another try is removed."""
    if backend.find_run(name) is not None:
        raise StoreError(f"collection {backend.collection!r} has a run {name!r} already")
    for other in arrivals(backend.path):
        if other.run == name and not (is_dead(other.owner) and drop(backend.path, other)):
            raise RunOwned(arriving_text(name, backend.collection, other.owner))
    disk.make_folders(backend.path)
    folder = backend.path / f"{_PREFIX}{disk.token()}"
    folder.mkdir()
    return LocalArrival(backend, name, owner, folder)


def arrivals(path: Path) -> list[Arriving]:
    """The runs of a collection that are being brought in, or were when their process was killed."""
    names = sorted(name for name in disk.names_in(path) if name.startswith(_PREFIX))
    return [_arriving(path / name) for name in names]


def drop(path: Path, arriving: Arriving) -> bool:
    """Remove what was brought in, unless it was seen since; whether it was removed."""
    folder = path / f"{_PREFIX}{arriving.token}"
    if not folder.exists() or _arriving(folder).seen != arriving.seen:
        return False
    # Without it the process that made it is refused, should it live.
    disk.remove(folder / _ABOUT)
    shutil.rmtree(folder)
    return True


def _arriving(folder: Path) -> Arriving:
    token = folder.name.removeprefix(_PREFIX)
    about = folder / _ABOUT
    try:
        seen, told = about.stat().st_mtime, blocks.decode(about.read_bytes())
        run, owner = told["run"], Owner(**told["owner"])
    except (FileNotFoundError, ValueError):
        seen, run, owner = folder.stat().st_mtime, "", _NOBODY
    size = sum(file.stat().st_size for file in _files_in(folder))
    return Arriving(run, owner, datetime.fromtimestamp(seen, UTC), token, size)


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


class LocalArrival:
    """`pipefit.store.backend.Arrival` in a folder."""

    def __init__(self, backend: LocalBackend, name: str, owner: Owner, folder: Path) -> None:
        self._backend = backend
        self._name = name
        self._owner = owner
        self._folder = folder
        self._place = RunPlace(folder / "run")
        self._place.create()
        self._seen = 0.0
        self._checkpoints: list[Document] = []
        self._attempts: list[Document] = []
        self._logs: list[Document] = []
        self._writer = LogWriter(self._place.logs, 0)
        self._waiting: dict[str, bytearray] = {METRICS: bytearray(), VALIDATION: bytearray()}
        self._be_seen()

    @property
    def shown(self) -> str:
        """The folder of the store, for people."""
        return self._backend.shown

    @guarded
    def add_file(
        self,
        place: str,
        data: bytes | bytearray,
        filename: str,
        metadata: Mapping[str, Any],
        key: str | None = None,
    ) -> str:
        """Write a file and read it back; returns its id, which is `key` if there is one."""
        self._be_seen()
        path = self._place.checkpoints if place == CHECKPOINTS else self._place.artifacts
        folder = Folder(path, self.shown)
        stored = folder.put(data, filename or f"{key}", metadata)
        if key is None:
            return stored.id
        disk.move(path / stored.id, path / key)
        return key

    @guarded
    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record as it is, `created` included."""
        self._be_seen()
        whole = {**record, "run": self._name}
        if record["kind"] == CHECKPOINT:
            self._checkpoints.append(whole)
        elif record["kind"] == ATTEMPT:
            self._attempts.append(dict(record))
        else:
            recordfiles.put(self._place.records(record["kind"]), whole, blocks.encode(whole))

    @guarded
    def add_values(self, record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> None:
        """Write a record with values, which are called `field` in it."""
        self._be_seen()
        kind = record["kind"]
        block = with_columns({**record, "run": self._name}, field, columns)
        if kind not in self._waiting:
            recordfiles.put(self._place.records(kind), record, block)
            return
        self._waiting[kind] += block
        if len(self._waiting[kind]) > _TOGETHER:
            self._flush(kind)

    def _flush(self, kind: str) -> None:
        if self._waiting[kind]:
            self._writer.append(self._logs, kind, [bytes(self._waiting[kind])])
            self._waiting[kind].clear()

    @guarded
    def settle(self, document: Mapping[str, Any]) -> None:
        """Write the run's document. This is the commit."""
        for kind in self._waiting:
            self._flush(kind)
        files = RunFiles(self._place, self._name)
        with Draft(files, None) as draft:
            self._fill(draft, document)
            draft.publish(document["updated"])
        self._be_seen()
        target = run_place(self._backend.path, self._name)
        assert target is not None, "names are checked before"
        disk.make_folders(target.path.parent)
        _make_way(target.path)
        try:
            # From here on the run exists.
            self._place.path.rename(target.path)
        except OSError as error:
            if not target.path.exists():
                raise
            raise StoreError(
                f"collection {self._backend.collection!r} has had a run {self._name!r} since just "
                "now: another process was faster"
            ) from error
        disk.sync_folder(target.path.parent)
        self.abandon()

    def _fill(self, draft: Draft, document: Mapping[str, Any]) -> None:
        story = ("parts", "spec", "program", "described", "history")
        draft.document = {key: value for key, value in document.items() if key not in story}
        inside = {"story": None, "checkpoints": None, "logs": self._logs, "past": None}
        owned = {"version": documents.VERSION, "progress": None, "lease": None}
        draft.document |= {"name": self._name, "inside": inside, **owned}
        draft.story.update({key: document[key] for key in story})
        newest = document["attempt"]["fence"]
        draft.document["attempt"] = {**document["attempt"], "tail": None}
        for attempt in sorted(self._attempts, key=lambda attempt: int(attempt["fence"])):
            told = {key: attempt[key] for key in document["attempt"]}
            tail = draft.write_tail(attempt["log_tail"]) if attempt["log_tail"] else None
            if attempt["fence"] == newest:
                draft.document["attempt"] = {**told, "tail": tail}
            else:
                draft.close_attempt({**told, "tail": tail}, attempt["program"] or "null")
        if self._checkpoints:
            draft.set_checkpoints(sorted(self._checkpoints, key=lambda r: int(r["step"])))

    @guarded
    def abandon(self) -> None:
        """Remove all of it."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def _be_seen(self) -> None:
        about = self._folder / _ABOUT
        if self._seen and not about.exists():
            raise LeaseLost(
                f"what was brought in of run {self._name!r} was removed, because this process was "
                "silent for long: begin again"
            )
        if time.monotonic() - self._seen < _SEEN_EVERY:
            return
        told = {"run": self._name, "owner": documents.owner_document(self._owner)}
        disk.move(disk.write(self._folder, [blocks.encode(told)]), about)
        self._seen = time.monotonic()


def _make_way(path: Path) -> None:
    """Remove the empty folders of a run that somebody has begun to create and never did."""
    for folder in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    with suppress(OSError):
        path.rmdir()
