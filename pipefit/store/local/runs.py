"""The documents of runs: a light one that changes all the time, and a story of long texts.

What the newest version of a run's document names exists, everything else is a draft or garbage.
Beside the fields that `pipefit.store.documents` tells it has `inside`:

    story           file of the long texts: parts, spec, program, described, history
    checkpoints     file that lists the checkpoints, or null
    logs            [{kind, file, size}]: what was written to logs counts up to `size`
    past            file of the attempt before this one, which names the one before it, or null

`attempt.tail` is the file with the end of its log, and in `lease` there is instead of `expires` its
`ttl`: it runs out so long after the version was written, by the clock of the file system.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from pipefit.errors import StoreError
from pipefit.store.backend import Document
from pipefit.store.local import blocks, disk
from pipefit.store.local.places import RunPlace, file_in
from pipefit.store.local.versions import Version, Versions

_STORY = ("parts", "spec", "program", "described", "history")


_T = TypeVar("_T")


class RunFiles:
    """The document of one run.

    Args:
        place: its folders.
        name: the run.
    """

    def __init__(self, place: RunPlace, name: str) -> None:
        self.place = place
        self.name = name
        self.versions = Versions(place.document)

    def newest(self) -> Version | None:
        """The document as it is now; None if the run does not exist.

        Raises:
            StoreError: the folder holds another run.
        """
        version = self.versions.newest()
        if version is None or version.document["name"] == self.name:
            return version
        found = version.document["name"]
        if found.lower() == self.name.lower():
            raise StoreError(
                f"run {self.name!r} cannot be told from {found!r}: the file system does not "
                "distinguish upper and lower case; choose another name"
            )
        raise StoreError(
            f"{self.place.path} holds the run {found!r}, not {self.name!r}: move it back to where "
            "it was"
        )

    def read(self, look: Callable[[Version], _T]) -> _T | None:
        """What `look` finds in the files that the newest version names; None: no such run.

        It is repeated if it finds a file gone, because the version has been replaced.

        Raises:
            StoreError: a file is gone that the newest version names.
        """
        last: int | None = None
        while (version := self.newest()) is not None:
            try:
                return look(version)
            except FileNotFoundError as error:
                if version.number == last:
                    raise StoreError(
                        f"{error.filename} of run {self.name!r} is gone: restore it from a backup"
                    ) from error
                last = version.number
        return None

    def story(self, version: Version) -> Document:
        """The long texts of a version. Raises `FileNotFoundError` if they were replaced."""
        return read_json(file_in(self.place.stories, version.document["inside"]["story"]))

    def checkpoints(self, version: Version) -> list[Document]:
        """Records of the checkpoints of a version. Raises `FileNotFoundError` likewise."""
        name = version.document["inside"]["checkpoints"]
        if name is None:
            return []
        stored: list[Document] = read_json(file_in(self.place.checkpoints, name))["checkpoints"]
        return stored

    def attempts(self, version: Version) -> Iterator[Document]:
        """Records of the attempts of a version, the newest first."""
        attempt, past = version.document["attempt"], version.document["inside"]["past"]
        while True:
            yield attempt
            if past is None:
                return
            attempt = read_json(file_in(self.place.attempts, past))
            past = attempt["past"]


class Draft:
    """The next version of a run's document, while it is made.

        with Draft(files, version) as draft:
            draft.document["reason"] = "a change"
            draft.publish()                             # or nothing is left of it

    Args:
        files: of the run.
        before: the version that it is to replace; None: the run is new.

    Attributes:
        unclear: it may have been published.
    """

    def __init__(self, files: RunFiles, before: Version | None) -> None:
        self.document: Document = copy.deepcopy(before.document) if before else {}
        self._files = files
        self._place = files.place
        self._before = before
        self._story: Document | None = None
        self._made: list[Path] = []
        self.unclear = False
        self._replaced: list[Path] = []

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove what was written for it, unless it may have been published."""
        for path in () if self.unclear else self._made:
            disk.remove(path)

    @property
    def story(self) -> Document:
        """The long texts; to ask for them means that they are written again."""
        if self._story is None:
            self._story = self._files.story(self._before) if self._before else {}
        return self._story

    def set_checkpoints(self, records: list[Document]) -> None:
        """Let these be the checkpoints."""
        inside = self.document["inside"]
        if inside["checkpoints"] is not None:
            self._replaced.append(file_in(self._place.checkpoints, inside["checkpoints"]))
        content = {"checkpoints": records}
        inside["checkpoints"] = self._write(self._place.checkpoints, "checkpoints", content)

    def close_attempt(self, attempt: Document, program: str) -> None:
        """Let this be how the attempt before this one ended."""
        inside = self.document["inside"]
        content = {**attempt, "program": program, "past": inside["past"]}
        inside["past"] = self._write(self._place.attempts, f"{attempt['fence']}", content)

    def write_tail(self, text: str) -> str:
        """Write the end of the attempt's log; returns the name of the file."""
        data = text.encode("utf-8", "surrogatepass")
        name = f"{self.document['fence']}-{disk.token()}.log"
        self._put(self._place.attempts / name, data)
        return name

    def publish(self, updated: datetime | None = None) -> Version | None:
        """Make it the document. This is the commit: before it nobody sees anything of it.

        Args:
            updated: the time that is told as that of the last change; None: now.

        Returns:
            None, with nothing changed, if another process was faster.

        Raises:
            Overtaken: others have replaced it, or it was not published.
        """
        if self._story is not None:
            if self._before is not None:
                old = self._before.document["inside"]["story"]
                self._replaced.append(file_in(self._place.stories, old))
            story = {key: self._story.get(key) for key in _STORY}
            self.document["inside"]["story"] = self._write(self._place.stories, "story", story)
        self.document["updated"] = updated or datetime.now(UTC)
        self.unclear = True  # from here on an error does not tell
        published = self._files.versions.publish(self._before, self.document)
        if published is None:
            self.unclear = False
            return None
        # Whatever comes next is made from this version, and names these no more.
        for path in self._replaced:
            disk.remove(path)
        return published

    def _write(self, folder: Path, stem: str, document: Document) -> str:
        name = f"{stem}-{disk.token()}.json"
        self._put(folder / name, blocks.encode(document))
        return name

    def _put(self, path: Path, data: bytes) -> None:
        self._made.append(path)
        disk.move(disk.write(path.parent, [data]), path)


def public(version: Version, now: float) -> Document:
    """A version as `pipefit.store.documents` tells, without the long texts.

    Args:
        version: of a run's document.
        now: the time in seconds since the epoch.
    """
    document = {**version.document, "_id": version.document["name"], "now": _utc(now)}
    del document["inside"]
    if document["lease"] is not None:
        lease = dict(document["lease"])
        lease["expires"] = _utc(version.written + lease.pop("ttl"))
        document["lease"] = lease
    return document


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)


def read_json(path: Path) -> Document:
    """A document that has a file of its own.

    Raises:
        FileNotFoundError: it is gone.
        StoreError: it is damaged.
    """
    data = path.read_bytes()
    try:
        return blocks.decode(data)
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
