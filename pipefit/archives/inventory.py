"""What an archive may hold: names that stay inside, no two for one file, within limits.

The rules are those of all formats; `tars` and `zips` read the members and ask here about each one
before anything is written.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from pipefit.archives.cache import human
from pipefit.errors import ArchiveError

# Below this no ratio is suspicious: a tar of empty files shrinks a hundredfold.
_SMALL = 2**20
_LONGEST_NAME = 4096


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much an archive may hold; all are refused before anything is unpacked.

    Attributes:
        members: files and folders.
        total_bytes: bytes unpacked.
        ratio: bytes unpacked for one byte of the archive (not asked under 1 MiB unpacked).
    """

    members: int = 1_000_000
    total_bytes: int = 256 * 2**30
    ratio: float = 200.0

    def __post_init__(self) -> None:
        for name in ("members", "total_bytes", "ratio"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be larger than 0")

    @classmethod
    def of(cls, *, total_bytes: int | None, members: int | None) -> Limits:
        """The usual limits, but for those that are given (neither None nor 0)."""
        usual = cls()
        return cls(
            members=members or usual.members,
            total_bytes=total_bytes or usual.total_bytes,
            # Who says how many bytes to expect needs no guess from the size of the archive.
            ratio=math.inf if total_bytes else usual.ratio,
        )


class Inventory:
    """The members of one archive, checked as they are added.

    Attributes:
        digest: sha256 of the archive, or its path where it is read in place; for messages.
        files: size in bytes of every file by its path, "/" between folders.
    """

    def __init__(self, digest: str, archive_bytes: int, limits: Limits) -> None:
        self.digest = digest
        self.files: dict[str, int] = {}
        self._archive_bytes = archive_bytes
        self._limits = limits
        self._members = 0
        self._total = 0
        self._taken: dict[str, tuple[str, bool]] = {}
        self._folders: set[str] = set()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return self._total

    def add_file(self, name: str, size: int) -> str:
        """Check one file.

        Args:
            name: as it stands in the archive.
            size: bytes unpacked.

        Returns:
            Its path, as in `files`.

        Raises:
            ArchiveError: the name or size is refused.
        """
        path = self._path(name)
        if size < 0 or not path:
            self.refuse(name, f"is a file of {size} bytes" if path else "is a file without a name")
        self._add_parents(name, path)
        self._take(name, path, is_file=True)
        self.files[path] = size
        self._total += size
        self.check_bytes(self._total)
        return path

    def add_folder(self, name: str) -> None:
        """Check one folder; the same one may stand in the archive several times.

        Raises:
            ArchiveError: the name is refused.
        """
        path = self._path(name)
        if path:
            self._add_parents(name, path)
            self._take(name, path, is_file=False)

    def check_bytes(self, unpacked: int) -> None:
        """Refuse if so many bytes come out of the archive.

        Raises:
            ArchiveError: more than a limit.
        """
        limits = self._limits
        if unpacked > limits.total_bytes:
            found = f"more than {human(limits.total_bytes)}"
            self._exceeded(found, "total_bytes", limits.total_bytes, "max_bytes")
        if unpacked > max(_SMALL, limits.ratio * self._archive_bytes):
            found = f"more than {limits.ratio:g} times its {human(self._archive_bytes)}"
            self._exceeded(found, "ratio", limits.ratio, "max_bytes")

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise the error for a member that must not be taken out."""
        shown = name if len(name) <= 200 else name[:200] + "..."
        raise ArchiveError(
            f"archive {self.digest}: the member {shown!r} {problem}; only plain files and folders "
            "with relative names are taken out: pack the archive again without it"
        )

    def _exceeded(self, found: str, limit: str, value: float, key: str) -> NoReturn:
        raise ArchiveError(
            f"archive {self.digest} holds {found}, over the limit {limit} = {value:.12g}; if you "
            f"trust it, set {key} for it in the experiment file (in Python: unpack it with "
            f"pipefit.archives.Limits({limit}=...))"
        )

    def _path(self, name: str) -> str:
        """The normal form of a name, "" for the top folder; counts the member."""
        self._members += 1
        if self._members > self._limits.members:
            most = self._limits.members
            self._exceeded(f"more than {most} members", "members", most, "max_members")
        if len(name) > _LONGEST_NAME:
            self.refuse(name, f"has a name of {len(name)} characters")
        if "\0" in name or "\\" in name:
            self.refuse(name, "has a backslash or a zero byte in its name")
        if name.startswith("/") or re.match("[A-Za-z]:", name):
            self.refuse(name, "has an absolute name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            self.refuse(name, "has '..' in its name")
        return "/".join(parts)

    def _add_parents(self, name: str, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self._folders:
            self._add_parents(name, parent)
            self._take(name, parent, is_file=False)
            self._folders.add(parent)

    def _take(self, name: str, path: str, *, is_file: bool) -> None:
        """Claim a path; names that some file systems take for one are one."""
        key = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
        other, other_is_file = self._taken.setdefault(key, (path, is_file))
        if other != path:
            self.refuse(name, f"and {other!r} have one name where case or accents do not count")
        if is_file != other_is_file:
            self.refuse(name, f"needs {path!r} as a file and as a folder")
        if is_file and path in self.files:
            self.refuse(name, "stands twice in the archive")
