"""Where the tensors of a checkpoint of TensorFlow's Saver (version 2) lie in its data files.

    place = places(Path("checkpoint.index").read_bytes())["hidden1/weights"]
    place.shard, place.offset, place.size

TensorFlow says how large its tensors are, but not where they lie. The index file is a sorted table
of LevelDB: blocks of keys and values, of which a footer names the one that lists the others; a
value is a protocol buffer, BundleEntryProto. What is read by these places is verified by
TensorFlow, which has the checksum of every tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_BEHIND_BLOCK = 5  # kind of compression, checksum
_PLAIN = 0

# Fields of BundleEntryProto, and the kinds of fields of protocol buffers.
_SHARD, _OFFSET, _SIZE, _SLICES = 3, 4, 5, 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Place(NamedTuple):
    """Where a tensor lies: in which data file, from where, how many bytes."""

    shard: int
    offset: int
    size: int


def places(index: bytes) -> dict[str, Place]:
    """The place of every tensor by name.

    Args:
        index: the bytes of the index file.

    Raises:
        ValueError: they are no such index, or one that says it in another way, compressed or in
            slices of tensors; then the checkpoint must be read as a whole.
    """
    if index[-8:] != _MAGIC:
        raise ValueError("the index has no footer")
    footer = index[-_FOOTER:]
    try:
        _, at = _handle(footer, 0)
        (begin, size), _ = _handle(footer, at)
        found = {}
        for _, value in _entries(_block(index, begin, size)):
            for key, entry in _entries(_block(index, *_handle(value, 0)[0])):
                if key:  # that of the header is empty
                    found[key.decode("utf-8")] = _place(entry)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"the index is damaged: {error}") from None
    return found


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where what follows begins."""
    begin, at = _varint(data, at)
    size, at = _varint(data, at)
    return (begin, size), at


def _block(index: bytes, begin: int, size: int) -> bytes:
    block = index[begin : begin + size + _BEHIND_BLOCK]
    if len(block) != size + _BEHIND_BLOCK or block[size] != _PLAIN:
        raise ValueError("a block of the index is compressed or missing")
    return block[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; a key is told by what it has other than the one before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + length]
        at += length
    if at != end:
        raise ValueError("a block of the index is damaged")


def _place(entry: bytes) -> Place:
    told = {}
    at = 0
    while at < len(entry):
        tag, at = _varint(entry, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            told[field], at = _varint(entry, at)
        elif kind == _BYTES:
            length, at = _varint(entry, at)
            at += length
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"an entry of the index has a field of kind {kind}")
        if field == _SLICES:
            raise ValueError("a tensor is stored in slices")
    return Place(told.get(_SHARD, 0), told.get(_OFFSET, 0), told.get(_SIZE, 0))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where what follows begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of the index is too long")
