"""What a run's document tells about the run itself: its model, longer texts, what happened.

The texts are files of the artifacts. The document names all of them at once, so model and texts
belong together whenever they are read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipefit.errors import StoreError
from pipefit.store.backend import Document, Files, StoredFile
from pipefit.store.plain import plain

# A run's document stays small.
_MODEL_CHARACTERS = 400_000
_NOTE_CHARACTERS = 20_000
_REASON_CHARACTERS = 20_000
_RESERVED = frozenset({"time", "fence", "number", "changes"})


def model_text(model: Mapping[str, Any]) -> str:
    """A model's description as it is stored.

    Raises:
        StoreError: it is not plain data, or too long.
    """
    text = json.dumps(plain(model))
    if len(text) > _MODEL_CHARACTERS:
        raise StoreError(
            f"the description of the model has {len(text)} characters, at most "
            f"{_MODEL_CHARACTERS} fit into the run's document: give longer texts as artifacts"
        )
    return text


def shortened(reason: str | None) -> str | None:
    """Why a run failed, such as it fits into the run's document; the log has all of it."""
    if reason is None or len(reason) <= _REASON_CHARACTERS:
        return reason
    return f"{reason[:_REASON_CHARACTERS]} ... ({len(reason)} characters)"


def put_artifacts(
    files: Files, artifacts: Mapping[str, bytes], run: str, fence: int
) -> dict[str, StoredFile]:
    """Write the texts; nothing names them yet."""
    return {
        name: files.put(data, f"{run}/{name}", {"run": run, "fence": fence, "artifact": name})
        for name, data in artifacts.items()
    }


def description(
    model: str, artifacts: Mapping[str, StoredFile], fence: int, before: Mapping[str, Any] | None
) -> Document:
    """Model and texts as the run's document names them.

    Args:
        model: its text.
        artifacts: the texts of this attempt.
        fence: the attempt.
        before: what the document has said so far. Of texts of earlier attempts those stay that
            this one has not, or otherwise: as NAME@FENCE.
    """
    files = [
        {"name": name, "file": file.id, "size": file.size, "sha256": file.sha256, "fence": fence}
        for name, file in artifacts.items()
    ]
    return {"model": model, "artifacts": [*_earlier(before, artifacts, fence), *files]}


def _earlier(
    before: Mapping[str, Any] | None, artifacts: Mapping[str, StoredFile], fence: int
) -> Iterator[Document]:
    for entry in before["artifacts"] if before else ():
        name = entry["name"]
        writer = entry.get("fence", fence - 1)  # earlier versions did not say which
        if writer < fence and name.endswith(f"@{writer}"):
            yield entry
        elif writer < fence and (
            name not in artifacts or artifacts[name].sha256 != entry["sha256"]
        ):
            yield {**entry, "name": f"{name}@{writer}", "fence": writer}


def described_files(run: Mapping[str, Any]) -> dict[str, StoredFile]:
    """By name the texts that a run's whole document names."""
    described = run.get("described") or {"artifacts": ()}
    return {
        file["name"]: StoredFile(
            file["file"],
            file["size"],
            file["sha256"],
            f"artifact {file['name']!r} of run {run['_id']!r}",
        )
        for file in described["artifacts"]
    }


class Notes:
    """Numbers what an attempt adds to its run's history, so that nothing is added twice.

    Args:
        history: of the run, if another handle may have added to it.
        fence: of the attempt.
    """

    def __init__(self, history: Iterable[Mapping[str, Any]] = (), fence: int = 0) -> None:
        self._lock = threading.Lock()
        mine = (entry.get("number", 0) for entry in history if entry.get("fence") == fence)
        self._number = max(mine, default=0)
        self._pending: Document | None = None

    @contextmanager
    def added(self, event: Mapping[str, Any]) -> Iterator[Document]:
        """What the history says about the event, but for time and fence: its number comes first.

        Raises:
            StoreError: the event is not plain data, or uses a reserved key.
        """
        said: Document = plain(event)
        if (length := len(repr(said))) > _NOTE_CHARACTERS:
            longest = max(said, key=lambda key: len(repr(said[key])))
            raise StoreError(
                f"the note has {length} characters, most of them as its {longest!r}: at most "
                f"{_NOTE_CHARACTERS} fit into the history of a run; give longer texts as artifacts"
            )
        if reserved := sorted(_RESERVED & said.keys()):
            raise StoreError(
                f"the note {said!r} has a key {reserved[0]!r}: history has its own, choose another"
            )
        with self._lock:
            # The event whose writing failed, be it that only the answer was lost, keeps its number.
            if said != self._pending:
                self._number += 1
            self._pending = said
            yield {"number": self._number, **said}
            self._pending = None
