"""What there is of a collection in a folder, whether it counts or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.store import documents
from pipefit.store.backend import ARTIFACTS, CHECKPOINTS, Document, FoundFile
from pipefit.store.documents import (
    ARTIFACT,
    ATTEMPT,
    CHECKPOINT,
    METRICS,
    OUTPUTS,
    SUMMARY,
    VALIDATED,
    VALIDATION,
)
from pipefit.store.local import blocks, disk
from pipefit.store.local.places import run_names, run_place

if TYPE_CHECKING:
    from pipefit.store.local.backend import LocalBackend

_KINDS = (ARTIFACT, ATTEMPT, CHECKPOINT, METRICS, OUTPUTS, SUMMARY, VALIDATED, VALIDATION)

#: Kinds of records that have a file each; the others are lines of larger ones.
_IN_FILES = (ARTIFACT, OUTPUTS, SUMMARY, VALIDATED)

_STATE = ".safetensors"


def all_records(backend: LocalBackend, name: str, *, values: bool) -> Iterator[Document]:
    """All records of a run, by kind, name, step and branch, but for drafts in logs.

    A log is removed whole by the next attempt, once nothing in it counts.
    """
    run = backend.find_run(name)
    if run is None:
        return
    for kind in _KINDS:
        if kind == METRICS:
            stored = backend.find_metrics(name, values=values)
        else:
            stored = backend.find_records(name, kind)
        kept = [{**r, "run": name, "kind": kind} for r in stored]
        if kind in (METRICS, VALIDATION):
            kept = [r for r in kept if _counts(run, r)]
        yield from sorted(kept, key=_order)


def _counts(run: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    return documents.counts(run, record) or documents.in_closed_line(run, record)


def _order(record: Mapping[str, Any]) -> tuple[str, int, int]:
    return record.get("name", ""), record["step"], record.get("branch", 0)


def drop_same(record: Mapping[str, Any]) -> bool:
    """Delete a record unless it was replaced since it was read; whether it was deleted."""
    if record["kind"] not in _IN_FILES:
        return False
    path = Path(record["_file"])
    try:
        with path.open("rb") as file:
            again = blocks.decode(file.readline())
        if again["created"] != record["created"]:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def list_files(path: Path) -> list[FoundFile]:
    """All files of the runs of a collection, complete or not.

    Only owners write checkpoints; who wrote one of the others it does not say.
    """
    return [file for name in run_names(path) for file in _files_of(path, name)]


def _files_of(collection: Path, name: str) -> Iterator[FoundFile]:
    place = run_place(collection, name)
    if place is None:
        return
    of_owner = {"run": name, "fence": 0}
    for file in disk.names_in(place.checkpoints):
        if file.endswith(_STATE) or disk.is_draft(file):
            yield from _found(place.checkpoints / file, CHECKPOINTS, of_owner)
    for file in disk.names_in(place.artifacts):
        yield from _found(place.artifacts / file, ARTIFACTS, {"run": name})


def _found(path: Path, place: str, metadata: Mapping[str, Any]) -> Iterator[FoundFile]:
    try:
        facts = path.stat()
    except FileNotFoundError:  # just now
        return
    written = datetime.fromtimestamp(facts.st_mtime, UTC)
    yield FoundFile(path.name, place, facts.st_size, written, metadata)
