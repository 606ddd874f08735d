"""Whether the index of a checkpoint adds up, asked before TensorFlow reads it.

TensorFlow compares checksums, which find damage. What was forged with right checksums ends its
process, or makes it ask for all memory; here that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_slice_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

from pipefit.loading.sstable import entries

# TensorFlow aborts at shapes of more dimensions, or of as many numbers.
_MOST_DIMENSIONS = 254
_MOST = 2**62
_LITTLE = 0


def check_index(index: Path, shards: Sequence[int]) -> None:
    """Check that every tensor of an index has a shape and type, and lies in its data files.

    Args:
        index: the file.
        shards: bytes of the data files, in their order.

    Raises:
        ValueError: it does not.
        google.protobuf.message.DecodeError: it is damaged.
    """
    found = list(entries(index.read_bytes()))
    if not found or found[0][0]:
        raise ValueError("its index has no header")
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(found[0][1])
    if header.num_shards != len(shards):
        raise ValueError(f"it has {len(shards)} data files instead of {header.num_shards}")
    if header.endianness != _LITTLE:
        raise ValueError("it was written by a machine with another order of bytes")
    for key, value in found[1:]:
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        try:
            _check(entry, shards)
        except (ValueError, TypeError) as error:
            raise ValueError(f"tensor {key.decode(errors='replace')!r}: {error}") from error


def _check(entry: Any, shards: Sequence[int]) -> None:
    dtype = tf.as_dtype(entry.dtype)
    sizes = [dimension.size for dimension in entry.shape.dim]
    numbers = math.prod(sizes)
    if entry.shape.unknown_rank or len(sizes) > _MOST_DIMENSIONS or min(sizes, default=0) < 0:
        raise ValueError(f"the shape {sizes} is none")
    if math.prod(size or 1 for size in sizes) > _MOST or dtype._is_ref_dtype:
        raise ValueError(f"{dtype.name}{sizes} is too large")
    if entry.slices:
        for part in entry.slices:
            _check_slice(part, sizes)
        return
    if not 0 <= entry.shard_id < len(shards):
        raise ValueError(f"there is no data file {entry.shard_id}")
    if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > shards[entry.shard_id]:
        raise ValueError(f"it lies outside of its data file of {shards[entry.shard_id]} bytes")
    # Of what has no size of its own each takes at least a byte.
    fits = numbers <= entry.size if dtype in _OPEN else numbers * dtype.size == entry.size
    if not fits:
        raise ValueError(f"{dtype.name}{sizes} cannot have {entry.size} bytes")


_OPEN = (tf.string, tf.variant, tf.resource)


def _check_slice(part: tensor_slice_pb2.TensorSliceProto, sizes: Sequence[int]) -> None:
    if len(part.extent) != len(sizes):
        raise ValueError(f"a slice of it has {len(part.extent)} dimensions")
    for extent, size in zip(part.extent, sizes, strict=True):
        whole = not extent.HasField("length")
        length = size if whole else extent.length
        if extent.start < 0 or length < 0 or extent.start + length > size:
            raise ValueError("a slice of it lies outside")
