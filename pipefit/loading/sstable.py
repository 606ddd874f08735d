"""Reading the table in which TensorFlow keeps the index of a checkpoint (that of LevelDB).

Only what TensorFlow writes there is read: blocks without compression. Everything is held against
the bounds of the file; checksums are left to TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator

#: How a table ends.
MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")

_FOOTER = 48
# Of a block, after its bytes: how it is compressed, and a checksum.
_TRAILER = 5


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in their order.

    Args:
        data: the whole table.

    Raises:
        ValueError: it is no such table, or damaged.
    """
    if len(data) < _FOOTER or not data.endswith(MAGIC):
        raise ValueError("it does not end as a table")
    footer, at = data[-_FOOTER:], 0
    for _ in range(2):  # the place of another block, of which there is nothing to know
        _, at = _number(footer, at)
    for _, handle in _block(data, footer, at):
        yield from _block(data, handle, 0)


def _block(data: bytes, handle: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the block that a handle, offset and size, points to."""
    offset, at = _number(handle, at)
    size, _ = _number(handle, at)
    if offset + size + _TRAILER > len(data) or size < 4:
        raise ValueError("a block lies outside of it")
    if data[offset + size]:
        raise ValueError("a block of it is compressed")
    block = data[offset : offset + size]
    restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 - 4 * restarts
    if not restarts or end < 0:
        raise ValueError("a block has no entries")
    key, at = b"", 0
    while at < end:
        shared, at = _number(block, at)
        more, at = _number(block, at)
        length, at = _number(block, at)
        if shared > len(key) or at + more + length > end:
            raise ValueError("an entry lies outside of its block")
        key = key[:shared] + block[at : at + more]
        at += more + length
        yield key, block[at - length : at]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number is cut")
