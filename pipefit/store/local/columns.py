"""Values of records: how they lie behind the line of their block, and how they are read.

In the line every column says where its bytes are (`at`, `size`) and how they are checked: small
ones by a CRC-32, because there are many, large ones by a sha256.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pipefit.errors import CheckpointCorrupt, NotFound
from pipefit.store.backend import Document
from pipefit.store.local import blocks

if TYPE_CHECKING:
    from pipefit.store.columns import Packed

FIELDS = ("columns", "values")


def with_columns(record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> bytes:
    """A record with these values, called `field` in it, as a block."""
    entries, data = [], bytearray()
    for column in columns:
        place = {"at": len(data), "size": len(column.data)}
        entries.append({**column.entry, **place, **_check(column.data, large=column.large)})
        data += column.data
    return blocks.encode({**record, field: entries}, bytes(data))


def _check(data: bytes, *, large: bool) -> Document:
    return {"sha256": hashlib.sha256(data).hexdigest()} if large else {"crc": zlib.crc32(data)}


def with_values(record: Document, file: BinaryIO, begin: int) -> Document:
    """The record with the bytes of its small columns as `data`; large ones say `file`.

    Args:
        record: the line of a block.
        file: where it lies.
        begin: where its bytes begin.

    Raises:
        ValueError: they are damaged.
    """
    for field in FIELDS:
        if field in record:
            _add_values(record[field], file, begin)
    return record


def _add_values(entries: Iterable[Document], file: BinaryIO, begin: int) -> None:
    small = [entry for entry in entries if "crc" in entry]
    for entry in entries:
        if "sha256" in entry and "at" in entry:  # else what outputs say about theirs
            entry["file"] = file.name
    # All at once, or every small column of every small record would be read for itself.
    start = min((entry["at"] for entry in small), default=0)
    end = max((entry["at"] + entry["size"] for entry in small), default=0)
    together = end - start == sum(entry["size"] for entry in small)
    data = _read(file, begin + start, end - start) if small and together else b""
    for entry in small:
        at, size = entry["at"] - start, entry["size"]
        value = data[at : at + size] if together else _read(file, begin + entry["at"], size)
        if len(value) != size or zlib.crc32(value) != entry["crc"]:
            raise _changed(entry)
        entry["data"] = value


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _changed(entry: Mapping[str, Any]) -> ValueError:
    return ValueError(f"the bytes of column {entry['name']!r} are not those it had")


def _checked(entry: Mapping[str, Any], data: bytes) -> bytes:
    expected = {key: entry[key] for key in ("sha256", "crc") if key in entry}
    if len(data) != entry["size"] or _check(data, large="sha256" in entry) != expected:
        raise _changed(entry)
    return data


def read_column(record: Mapping[str, Any], entry: Mapping[str, Any], label: str) -> bytes:
    """The bytes of a column.

    Args:
        record: with `_file`, where it lies, and where its line and its bytes begin.
        entry: what it says about the column.
        label: what a person calls it.

    Raises:
        NotFound: the record was replaced.
        CheckpointCorrupt: they are damaged.
    """
    path = Path(record["_file"])
    try:
        with path.open("rb") as file:
            return _checked(entry, _read(file, record["_begin"] + entry["at"], entry["size"]))
    except FileNotFoundError:
        raise NotFound(f"{label} was replaced just now: ask again") from None
    except ValueError as error:
        if _is_replaced(record):
            raise NotFound(f"{label} was replaced just now: ask again") from None
        raise CheckpointCorrupt(f"{label} is damaged ({error}), in {path}") from error


def _is_replaced(record: Mapping[str, Any]) -> bool:
    try:
        with Path(record["_file"]).open("rb") as file:
            file.seek(record["_line"])
            again = blocks.decode(file.readline())
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return bool(again["created"] != record["created"])
