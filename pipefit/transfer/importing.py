"""Reading runs from an archive, which may come from anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipefit import archives
from pipefit.archives import Members
from pipefit.errors import ArchiveError
from pipefit.store import Store
from pipefit.store.content import Part, named_files
from pipefit.store.jsontext import decode
from pipefit.transfer.archive import FORMAT, MANIFEST, RECORDS, RUN, VERSION, Member, file_member

#: Bytes of one line, or of a member that is read as one text.
_LONGEST = 256 * 2**20


@dataclass(frozen=True)
class Imported:
    """A run of an archive; `new`: whether it was stored, as opposed to being there already."""

    collection: str
    name: str
    new: bool


def import_runs(
    store: Store, path: Path, *, tell: Callable[[str], None] = lambda name: None
) -> list[Imported]:
    """Store the runs of an archive; each becomes visible when all of it is stored.

    The archive is read to its end, and every hash compared, before anything is written. A run that
    is there already and is the same is left alone, so what was interrupted may be repeated.

    Args:
        store: where to.
        path: of the archive.
        tell: is called with the name of every run before it is stored.

    Raises:
        ArchiveError: it is damaged, no archive of runs, or has members that none has.
        StoreError: there is another run of one of the names; then none is stored.
        RunOwned: another process is importing it.
    """
    archive = _Archive(archives.open_members(path))
    try:
        archive.verify()
        runs = archive.runs()
        # Those that exist first: if one of them is another run, nothing has been written.
        there = [bool(store.statuses(run.collection, [run.name])) for run in runs]
        imported = []
        for _, run in sorted(zip(there, runs, strict=True), key=lambda pair: not pair[0]):
            tell(run.name)
            imported.append(Imported(run.collection, run.name, store.import_run(run)))
        return imported
    finally:
        archive.close()


class _Archive:
    """An archive as its manifest tells it.

    Raises:
        ArchiveError: there is no manifest, or it is of a newer version.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        if MANIFEST not in members.names:
            raise self._refused(f"it has no {MANIFEST}: it is none, or was cut off")
        told = self._json(self._text(MANIFEST))
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise self._refused(f"its {MANIFEST} is of something else")
        if not isinstance(told.get("version"), int) or told["version"] > VERSION:
            raise ArchiveError(
                f"{members.path} is an archive of version {str(told.get('version'))[:20]}, this "
                f"Pipefit knows those up to {VERSION}: install a newer Pipefit"
            )
        try:
            self._known = {name: Member(**facts) for name, facts in told["members"].items()}
            self._runs = [(r["collection"], r["name"], r["folder"]) for r in told["runs"]]
            if not all(isinstance(word, str) for run in self._runs for word in run):
                raise TypeError
        except (KeyError, TypeError, AttributeError):
            raise self._refused(f"its {MANIFEST} is not complete") from None

    def close(self) -> None:
        """Close the file."""
        self._members.close()

    def verify(self) -> None:
        """Raise `ArchiveError` unless every member is there, with its hash, and no other."""
        there = set(self._members.names) - {MANIFEST}
        if there != self._known.keys():
            name = sorted(there ^ self._known.keys())[0]
            what = "has the unknown member" if name in there else "lacks the member"
            raise self._refused(f"it {what} {name[:200]!r}")
        for name, member in self._known.items():
            digest, size = hashlib.sha256(), 0
            for piece in self._members.pieces(name):
                digest.update(piece)
                size += len(piece)
            if (size, digest.hexdigest()) != (member.size, member.sha256):
                raise self._refused(
                    f"the member {name!r} has {size} bytes with sha256 {digest.hexdigest()}, not "
                    f"{member.size} with {member.sha256}"
                )

    def runs(self) -> list[_ArchivedRun]:
        """The runs."""
        return [_ArchivedRun(self, *told) for told in self._runs]

    def document(self, folder: str) -> dict[str, Any]:
        """The document of the run in a folder."""
        return self._mapping(self._text(f"{folder}/{RUN}"))

    def records(self, folder: str) -> Iterator[dict[str, Any]]:
        """The records of the run in a folder."""
        rest = b""
        for piece in self._pieces(f"{folder}/{RECORDS}"):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST:
                raise self._refused("a line of its records is longer than any can be")
            yield from map(self._mapping, lines)
        if rest:
            raise self._refused("its records end within a line")

    def part(self, size: int, sha256: str) -> Part:
        """The bytes with this hash."""
        return Part(size, sha256, partial(self._bytes, file_member(sha256)))

    def _bytes(self, name: str) -> bytearray:
        """All of a member whose size has been verified: it is in memory once, and only for now."""
        data, at = bytearray(self._known[name].size if name in self._known else 0), 0
        for piece in self._pieces(name):
            data[at : at + len(piece)] = piece
            at += len(piece)
        return data

    def _text(self, name: str) -> bytes:
        data = bytearray()
        for piece in self._pieces(name):
            data += piece
            if len(data) > _LONGEST:
                raise self._refused(f"the member {name!r} is longer than any can be")
        return bytes(data)

    def _pieces(self, name: str) -> Iterator[bytes]:
        if name not in self._members.names:
            raise self._refused(f"it lacks the member {name[:200]!r}")
        return self._members.pieces(name)

    def _mapping(self, line: bytes) -> dict[str, Any]:
        told = self._json(line)
        if not isinstance(told, dict):
            raise self._refused("a record or a run in it is none")
        return told

    def _json(self, text: bytes) -> Any:
        try:
            return decode(text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._refused(f"a text in it cannot be read: {str(error)[:200]}") from None

    def _refused(self, why: str) -> ArchiveError:
        return ArchiveError(
            f"{self._members.path} is no whole archive of runs: {why}; nothing is imported: export "
            "them again, or copy the archive again and compare its sha256"
        )


class _ArchivedRun:
    """`pipefit.store.content.RunContent` of a run in an archive."""

    def __init__(self, archive: _Archive, collection: str, name: str, folder: str) -> None:
        self.collection = collection
        self.name = name
        self._archive = archive
        self._folder = folder

    def document(self) -> tuple[dict[str, Any], Sequence[Part]]:
        """The document of the run, and the texts that it names."""
        told = self._archive.document(self._folder)
        return told, self._parts(told)

    def records(self) -> Iterator[tuple[dict[str, Any], Sequence[Part]]]:
        """The records, each with what it names."""
        for record in self._archive.records(self._folder):
            yield record, self._parts(record)

    def _parts(self, told: dict[str, Any]) -> list[Part]:
        return [self._archive.part(size, sha256) for size, sha256 in named_files(told)]
