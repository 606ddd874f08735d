"""Where the files of a source are, and which of the things in them are asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path

from pipefit.errors import DataError
from pipefit.refs import nearest, show

_SHOWN = 20


def located(builder: str, path: str | Path | None, archive: Path | None) -> Path:
    """The place that a builder's arguments `path` and `archive` mean; it may not exist.

    Args:
        builder: name of the builder, for messages.
        path: relative to the archive, or to the current folder if there is none.
        archive: folder of an unpacked archive, or the archive file itself.

    Raises:
        DataError: neither is given, or an absolute path beside an archive.
    """
    if path is None and archive is None:
        raise DataError(
            f'{builder}: says no place; give path = "...", or archive = "NAME" of an '
            "[archives.NAME] table"
        )
    if archive is None:
        return Path(str(path)).expanduser()
    if path is None:
        return Path(archive)
    if Path(path).is_absolute():
        raise DataError(
            f"{builder}: path = {show(str(path))} must be relative: it is looked up in the archive"
        )
    return Path(archive) / path


def located_file(builder: str, path: str | Path | None, archive: Path | None) -> Path:
    """As `located`, for builders that read one file.

    Raises:
        DataError: as well, if there is no such file.
    """
    place = located(builder, path, archive)
    if place.is_dir():
        raise DataError(
            f"{builder}: {place} is a folder; give the path of a file in it: {held(place)}"
        )
    if not place.is_file():
        where = next((parent for parent in place.parents if parent.exists()), Path("/"))
        inside = f": {held(where)}" if where.is_dir() else ""
        raise DataError(f"{builder}: there is no file {place}; in {where} there is{inside}")
    return place


def held(folder: Path) -> str:
    """The first names in a folder, for messages."""
    return shortened(sorted(entry.name for entry in folder.iterdir()))


def shortened(names: Collection[str]) -> str:
    """Names for messages, no more than a line or two of them.

    >>> shortened(["a", "b"]), shortened([])
    ('a, b', 'nothing')
    """
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(islice(names, _SHOWN)) + more or "nothing"


def wanted(
    origin: str,
    kind: str,
    given: Mapping[str, str] | Collection[str] | None,
    there: Collection[str],
) -> dict[str, str]:
    """Which things in a file become which fields.

    Args:
        origin: builder and file, for messages.
        kind: of the things, such as "array".
        given: names in the file by field, names that fields have too, or None for all.
        there: the names in the file.

    Raises:
        DataError: one of them is not there.
    """
    if isinstance(given, str):
        raise DataError(f"{origin}: {kind}s = {show(given)} must be a list or a table of names")
    names = given if isinstance(given, Mapping) else {name: name for name in given or there}
    for field, name in names.items():
        if name not in there:
            raise DataError(f"{origin}: {absent(kind, name, there)} (for field {field!r})")
    return dict(names)


def absent(kind: str, name: str, there: Collection[str]) -> str:
    """The half sentence about a name that is not among those there."""
    close = nearest(name, there)
    hint = f", the nearest is {close!r}" if close else ""
    return f"there is no {kind} {name!r}{hint}; there is {shortened(there)}"
