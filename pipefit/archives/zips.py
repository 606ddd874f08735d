"""Reading zip archives; `zipfile` parses, and extracts what the inventory has admitted."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path
from typing import IO

from pipefit.archives.inventory import Inventory

#: How a zip archive begins (the second: an empty one).
MAGIC = (b"PK\x03\x04", b"PK\x05\x06")

# The others expand what they are given at once, without a bound.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
# A member that expands more is refused where members are read into memory; not asked under 1 MiB.
_RATIO = 200
_SMALL = 2**20


def scan(file: IO[bytes], inventory: Inventory) -> None:
    """Add every member to the inventory, from the directory of the archive alone.

    The sizes there bound what is written: zipfile stops at them, and fails if there is more.

    Raises:
        ArchiveError: a member is refused, or a limit is exceeded.
        Exception: whatever zipfile raises on damaged archives.
    """
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            _add(info, inventory)


def extract(file: IO[bytes], folder: Path) -> None:
    """Write a scanned archive into `folder`; owners, times and modes are not taken over.

    Raises:
        OSError: a file cannot be written.
        Exception: whatever zipfile raises on damaged archives.
    """
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            archive.extract(info, folder)


def index(archive: zipfile.ZipFile, inventory: Inventory) -> dict[str, zipfile.ZipInfo]:
    """The files of an archive by their paths.

    Raises:
        ArchiveError: a member is refused.
    """
    found = {}
    for info in archive.infolist():
        path = _add(info, inventory)
        if path is None:
            continue
        # Each is read into memory at once.
        if info.file_size > max(_SMALL, _RATIO * info.compress_size):
            inventory.refuse(
                info.filename,
                f"expands to {info.file_size} bytes, more than {_RATIO} times what is stored (or "
                "store it uncompressed: zip -0)",
            )
        found[path] = info
    return found


def _add(info: zipfile.ZipInfo, inventory: Inventory) -> str | None:
    """Add a member to the inventory; the path of a file, None for a folder."""
    name = info.filename  # what zipfile goes by: without what follows a zero byte
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        inventory.refuse(name, "is a symbolic link" if stat.S_ISLNK(kind) else "is a special file")
    if "\0" in info.orig_filename:
        inventory.refuse(name, "has a zero byte in its name")
    if info.flag_bits & _ENCRYPTED:
        inventory.refuse(name, "is encrypted")
    if info.compress_type not in _METHODS:
        inventory.refuse(
            name, f"is compressed by method {info.compress_type}, not stored or deflated"
        )
    if info.is_dir():
        inventory.add_folder(name)
        return None
    return inventory.add_file(name, info.file_size)
