"""Files of TensorFlow's Saver that were put into one file, laid out so that TensorFlow reads them.

with path.open("rb") as file:
    tar = open_tar(file, path.stat().st_size, "the checkpoint")
    prefix = tar.write(folder)                                      # all of it, or
    prefix = tar.write_index(folder)                                # what TensorFlow asks first
    tar.write_tensors(folder, places(tar.index())["hidden1/weights"])
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from pipefit.archives import Limits
from pipefit.archives.inventory import Inventory
from pipefit.archives.tars import index, is_compressed
from pipefit.errors import ArchiveError, LoadError, PipefitError
from pipefit.loading.saver_index import Place

_PIECE = 2**20
#: Bytes; a hundred thousand tensors have some ten millions.
_LARGEST_INDEX = 2**28
# Nothing is larger than the archive, which is not compressed.
_NO_LIMITS = Limits(members=100_000, total_bytes=sys.maxsize, ratio=math.inf)

# Where every header of a tar has its magic number.
_MAGIC_AT, _MAGIC = 257, b"ustar"
_INDEX = ".index"
#: What files are called here.
_NAME = "checkpoint"
_DATA = re.compile(r"\.data-(\d{5})-of-(\d{5})")

Places = dict[str, tuple[int, int]]


def open_tar(file: IO[bytes], size: int, label: str, shards: int | None = None) -> SaverTar | None:
    """Look into a file that may be a tar with one checkpoint of Saver version 2.

    Args:
        file: seekable; read where it is looked for something, by its headers.
        size: of it.
        label: what to call the checkpoint in messages.
        shards: how many data files there must be; None: as many as they say themselves.

    Returns:
        None if it is no tar, and may be the one file of a checkpoint of Saver version 1.

    Raises:
        LoadError: the archive is damaged or hostile, or not that of one checkpoint.
    """
    if _is_tar(file):
        return SaverTar(file, label, *_checkpoint(_places(file, size, label), label, shards))
    if shards is not None or is_compressed(file):
        raise _refused(label, "it is no tar archive, or its beginning is damaged")
    return None


class SaverTar:
    """The files of a checkpoint in a tar: see `open_tar`.

    Files are written into an empty folder, under names that the tar has no say in.
    """

    def __init__(self, file: IO[bytes], label: str, prefix: str, places: Places) -> None:
        self._file = file
        self._label = label
        # Only the ending of a member's name becomes that of a file.
        self._places = {name.removeprefix(prefix): place for name, place in places.items()}
        self._shards = sorted(ending for ending in self._places if ending != _INDEX)

    @property
    def data_size(self) -> int:
        """Bytes of the data files."""
        return sum(self._places[ending][1] for ending in self._shards)

    def index(self) -> bytes:
        """The bytes of the index, which says where tensors lie.

        Raises:
            LoadError: it is cut off, or larger than any is.
        """
        offset, size = self._places[_INDEX]
        if size > _LARGEST_INDEX:
            raise _refused(self._label, f"its index has {size} bytes")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise _refused(self._label, "its tar archive ends early")
        return data

    def write(self, folder: Path) -> Path:
        """Write all files; the prefix by which TensorFlow opens them.

        Raises:
            LoadError: the archive ends early.
            OSError: they cannot be written.
        """
        for ending, (offset, size) in self._places.items():
            with _target(folder, ending).open("xb") as target:
                self._copy(offset, size, target)
        return folder / _NAME

    def write_index(self, folder: Path) -> Path:
        """Write the index, and data files of the right length without their bytes; the prefix."""
        _target(folder, _INDEX).write_bytes(self.index())
        for ending in self._shards:
            with _target(folder, ending).open("xb") as target:
                target.truncate(self._places[ending][1])
        return folder / _NAME

    def write_tensors(self, folder: Path, wanted: Iterable[Place]) -> None:
        """Put tensors to their places in what `write_index` has written.

        Raises:
            LoadError: one lies outside of the files.
            OSError: they cannot be written.
        """
        for shard, begin, size in sorted(wanted):
            ending = self._shards[shard] if shard < len(self._shards) else None
            offset, length = self._places[ending] if ending else (0, 0)
            if ending is None or begin + size > length:
                raise _refused(self._label, "its index is damaged: a tensor lies outside of it")
            with _target(folder, ending).open("rb+") as target:
                target.seek(begin)
                self._copy(offset + begin, size, target)

    def _copy(self, offset: int, size: int, target: IO[bytes]) -> None:
        self._file.seek(offset)
        while size > 0:
            piece = self._file.read(min(_PIECE, size))
            if not piece:
                raise _refused(self._label, "its tar archive ends early")
            target.write(piece)
            size -= len(piece)


def _target(folder: Path, ending: str) -> Path:
    return folder / f"{_NAME}{ending}"


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(_MAGIC_AT)
    return file.read(len(_MAGIC)) == _MAGIC


def _places(file: IO[bytes], size: int, label: str) -> Places:
    """Offset and size of all members; links, devices and names that lead outside are refused."""
    try:
        return index(file, Inventory(label, size, _NO_LIMITS))
    except ArchiveError as error:
        raise LoadError(str(error)) from error
    except PipefitError:  # of what is read through
        raise
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


def _refused(label: str, why: str) -> LoadError:
    return LoadError(f"{label} cannot be read: {why}; use another step, or save it again")
