r"""Blocks: how documents and records lie in files. One line of JSON, then bytes.

    >>> data = encode({"kind": "metrics", "step": 7}, b"1234")
    >>> data
    b'{"kind":"metrics","step":7,"bytes":4,"check":"e7635ba6"}\n1234'
    >>> import io
    >>> list(scan(io.BytesIO(data + data), 2 * len(data)))[1]
    ({'kind': 'metrics', 'step': 7, 'bytes': 4}, 118)

`check` is the CRC-32 of the line before it; who writes bytes keeps their own checks in the line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from pipefit.store import jsontext
from pipefit.store.backend import Document

_END = b',"check":"%08x"}\n'
_END_LENGTH = len(_END % 0)


def encode(header: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A block; the header has at least one field."""
    size = {"bytes": len(data)} if data else {}
    line = jsontext.encode({**header, **size}).encode("ascii")[:-1]
    return line + _END % zlib.crc32(line) + data


def decode(line: bytes) -> Document:
    """The header of a block, from its line.

    Raises:
        ValueError: it is damaged.
    """
    begin, end = line[:-_END_LENGTH], line[-_END_LENGTH:]
    if end != _END % zlib.crc32(begin):
        raise ValueError("a line has another checksum than it says")
    header: Document = jsontext.decode(begin + b"}")
    return header


def scan(file: BinaryIO, end: int) -> Iterator[tuple[Document, int]]:
    """The headers of the blocks of a file up to `end`, each with the place of its bytes.

    Raises:
        ValueError: it is damaged, or shorter.
    """
    at = 0
    while at < end:
        line = file.readline()
        header = decode(line)
        begin = at + len(line)
        yield header, begin
        at = begin + header.get("bytes", 0)
        file.seek(at)
    if at != end:
        raise ValueError(f"it ends after {at} bytes, not {end}")
