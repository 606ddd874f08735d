"""Files of TensorFlow's Saver that were put into one file, laid out so that TensorFlow reads them.

prefix = lay_out(Path("checkpoint-1000.tar"), folder, "the checkpoint", shards=1)
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import IO

from pipefit.archives import Limits
from pipefit.archives.inventory import Inventory
from pipefit.archives.tars import index, is_compressed
from pipefit.errors import ArchiveError, LoadError

_PIECE = 2**20
# Nothing is larger than the archive, which is not compressed.
_NO_LIMITS = Limits(members=100_000, total_bytes=sys.maxsize, ratio=math.inf)

# Where every header of a tar has its magic number.
_MAGIC_AT, _MAGIC = 257, b"ustar"
_INDEX = ".index"
_DATA = re.compile(r"\.data-(\d{5})-of-(\d{5})")

Places = dict[str, tuple[int, int]]


def lay_out(path: Path, folder: Path, label: str, shards: int | None = None) -> Path:
    """Write the files of a checkpoint into a folder.

    Args:
        path: a tar with one index and its data files (Saver version 2), or the one file of a
            checkpoint of version 1.
        folder: empty.
        label: what to call the checkpoint in messages.
        shards: how many data files there must be; None: as many as they say themselves.

    Returns:
        The prefix by which TensorFlow opens it.

    Raises:
        LoadError: the archive is damaged or hostile, or not that of one checkpoint; nothing has
            been written.
        OSError: it cannot be written.
    """
    with path.open("rb") as file:
        if not _is_tar(file):
            if shards is not None or is_compressed(file):
                raise _refused(label, "it is no tar archive, or its beginning is damaged")
            return path
        prefix, places = _checkpoint(_places(file, path, label), label, shards)
        for name, (offset, size) in places.items():
            # Only the ending of a member's name becomes that of a file.
            target = folder / f"checkpoint{name.removeprefix(prefix)}"
            _copy(file, offset, size, target, label)
        return folder / "checkpoint"


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(_MAGIC_AT)
    return file.read(len(_MAGIC)) == _MAGIC


def _places(file: IO[bytes], path: Path, label: str) -> Places:
    """Offset and size of all members; links, devices and names that lead outside are refused."""
    try:
        return index(file, Inventory(label, path.stat().st_size, _NO_LIMITS))
    except ArchiveError as error:
        raise LoadError(str(error)) from error
    except Exception as error:  # tarfile has a dozen types for damage
        raise _refused(label, f"its tar archive is damaged: {error}") from error


def _checkpoint(places: Places, label: str, shards: int | None) -> tuple[str, Places]:
    """The prefix of the one checkpoint in an archive, and the places of its files."""
    prefixes = [name.removesuffix(_INDEX) for name in places if name.endswith(_INDEX)]
    if len(prefixes) != 1:
        raise _refused(label, f"its tar archive has {len(prefixes)} files *.index instead of one")
    prefix = prefixes[0]
    found = {}
    for name in places:
        data = _DATA.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if data:
            found[name] = int(data[1]), int(data[2])
    total = len(found) if shards is None else shards
    if not found or sorted(found.values()) != [(number, total) for number in range(total)]:
        raise _refused(
            label,
            f"its tar archive has {len(found)} data files that belong together instead of "
            f"{total or 'at least 1'}",
        )
    return prefix, {name: places[name] for name in (prefix + _INDEX, *found)}


def _copy(file: IO[bytes], offset: int, size: int, target: Path, label: str) -> None:
    file.seek(offset)
    with target.open("xb") as written:
        while size > 0:
            piece = file.read(min(_PIECE, size))
            if not piece:
                raise _refused(label, "its tar archive ends early")
            written.write(piece)
            size -= len(piece)


def _refused(label: str, why: str) -> LoadError:
    return LoadError(f"{label} cannot be read: {why}; use another step, or save it again")
