"""TFRecord files of tf.train.Example as a source that can be indexed. See `tfrecord`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pipefit.archives import remembered
from pipefit.data import Fields, FieldSpec
from pipefit.data.conversion import converted
from pipefit.data.digests import files_digest
from pipefit.data.fields import declared_specs
from pipefit.data.order import Indices
from pipefit.data.places import absent, held, located
from pipefit.data.texts import array_of
from pipefit.errors import DataError
from pipefit.refs import show
from pipefit.training.feeding.failures import reason_of
from pipefit.training.feeding.options import options

logger = logging.getLogger("pipefit.run")

#: Bytes before a record, its length and the checksum of it, and behind it, its own checksum.
_BEFORE, _BEHIND = 12, 4
#: Records looked at together while files are read through.
_AT_ONCE = 4096
_MAGIC = set("*?[")
_GZIP = b"\x1f\x8b"
_LISTS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


def tfrecord(
    path: str | Path | None = None,
    *,
    features: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    archive: Path | None = None,
) -> TFRecords:
    """A source of records, any of which is read by its index: so it resumes exactly.

    Args:
        path: of a file or a folder (of which all files with "tfrecord" in their names are read), or
            a pattern such as "train-*.tfrecord"; relative to the archive, if there is one.
        features: dtype and shape by field: "float32[28,28]", "int64[]", "str", "bytes". Numbers
            stored as bytes are those of an array, little-endian.
        names: of the feature in the file by field; default that of the field.
        archive: the unpacked archive, or with `unpack = false` the archive file.

    Raises:
        DataError: there are no such files, they are compressed or damaged, or the first record has
            no such features.
    """
    return TFRecords(_files(path, archive), features, names)


class TFRecords:
    """A source of the records of several files, in the order of the files.

    TensorFlow reads files through once, when they are seen for the first time: it verifies all
    checksums, and says how long the records are. This is kept in PIPEFIT_HOME while their sizes and
    times stay the same. Later only the records that are asked for are read.

    Args:
        files: uncompressed files by name.
        features: dtype and shape by field.
        names: of the feature in the file by field; default that of the field.

    Raises:
        DataError: as `tfrecord`.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        features: Mapping[str, str],
        names: Mapping[str, str] | None = None,
    ):
        self._specs = declared_specs(features, "tfrecord: features")
        self._names = {field: field for field in features} | dict(names or {})
        if not features or set(self._names) != set(features):
            raise DataError(
                f"tfrecord: features = {show(dict(features))}, names = {show(dict(names or {}))}: "
                f'features must have every field, such as labels = "int64[]"'
            )
        self._files = dict(files)
        self._paths = list(files.values())
        lengths = _lengths(self._files)
        self._lengths = np.concatenate(lengths)
        #: Of each file the number of its first record.
        self._firsts = np.cumsum([0, *map(len, lengths)])
        self._starts = np.concatenate(
            [np.cumsum(part + _BEFORE + _BEHIND) - part - _BEHIND for part in lengths]
        )
        if not len(self):
            raise DataError(f"tfrecord: {', '.join(files)}: no records; at least one is needed")
        self._stored = self._stored_as()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def take(self, indices: Indices) -> Fields:
        """The records of these indices, arrays of shape [len(indices), ...]."""
        records, places = self._read(indices)
        wanted = {
            self._names[field]: tf.io.FixedLenFeature(
                [] if self._packed(field) else spec.shape, _LISTS[self._stored[field]]
            )
            for field, spec in self._specs.items()
        }
        try:
            with tf.device("CPU:0"):
                parsed = tf.io.parse_example(records, wanted, places)
        except tf.errors.OpError as error:
            raise DataError(f"tfrecord: {reason_of(error)}") from error
        return {
            field: self._values(field, parsed[name].numpy(), places)
            for field, name in self._names.items()
        }

    def digest(self) -> str:
        """The sha256 of all files."""
        return files_digest(self._files)

    def _read(self, indices: Indices) -> tuple[list[bytes], list[str]]:
        """The bytes of these records, and where they are."""
        records = [b""] * len(indices)
        places = [""] * len(indices)
        of_file = np.searchsorted(self._firsts, indices, side="right") - 1
        for number in np.unique(of_file):
            path = self._paths[number]
            try:
                with path.open("rb", buffering=0) as file:
                    for i in np.flatnonzero(of_file == number):
                        record = int(indices[i])
                        length = int(self._lengths[record])
                        records[i] = os.pread(file.fileno(), length, int(self._starts[record]))
                        places[i] = f"{path}, record {record - self._firsts[number]}"
                        if len(records[i]) != length:
                            raise DataError(f"tfrecord: {places[i]}: cut off; was it changed?")
            except OSError as error:
                raise DataError(f"tfrecord: {path}: cannot be read: {error.strerror}") from error
        return records, places

    def _stored_as(self) -> dict[str, str]:
        """By field the kind of list it is in the first record."""
        records, places = self._read(np.zeros(1, np.int64))
        try:
            found = tf.train.Example.FromString(records[0]).features.feature
        except Exception as error:  # of protobuf, whose own module is none of our dependencies
            raise DataError(f"tfrecord: {places[0]}: holds no tf.train.Example: {error}") from error
        kinds = {}
        for field, name in self._names.items():
            if name not in found:
                raise DataError(f"tfrecord: {places[0]}: {absent('feature', name, found)}")
            kinds[field] = found[name].WhichOneof("kind") or "bytes_list"
            numbers = self._specs[field].dtype.kind not in "SU"
            if not numbers and kinds[field] != "bytes_list":
                raise DataError(
                    f"tfrecord: {places[0]}: feature {name!r} holds numbers ({kinds[field]}), "
                    f"declared is {self._specs[field]}"
                )
        return kinds

    def _packed(self, field: str) -> bool:
        """Whether its numbers are stored as the bytes of an array."""
        return self._stored[field] == "bytes_list" and self._specs[field].dtype.kind not in "SU"

    def _values(self, field: str, found: npt.NDArray[Any], places: list[str]) -> npt.NDArray[Any]:
        spec = self._specs[field]
        origin = f"tfrecord: {places[0]} and others: feature {self._names[field]!r}"
        if self._packed(field):
            return _unpacked(found, spec, places, self._names[field])
        if found.dtype != object:
            return converted(found, spec, origin)
        texts = found.ravel().tolist()
        if spec.dtype.kind == "U":
            texts = [text.decode() for text in texts]
        return array_of(texts, origin).reshape(found.shape)


def _unpacked(
    found: npt.NDArray[Any], spec: FieldSpec, places: list[str], name: str
) -> npt.NDArray[Any]:
    dtype = spec.dtype.newbyteorder("<")
    size = int(np.prod(spec.shape)) * dtype.itemsize
    for data, place in zip(found, places, strict=True):
        if len(data) != size:
            raise DataError(
                f"tfrecord: {place}: feature {name!r} has {len(data)} bytes; {spec} has {size}"
            )
    values = np.frombuffer(b"".join(found), dtype).reshape(len(found), *spec.shape)
    return values.astype(spec.dtype)


def _files(path: str | Path | None, archive: Path | None) -> dict[str, Path]:
    """The files that are meant, by name, in the order of their names."""
    place = located("tfrecord", path, archive)
    if place.is_file():
        return {place.name: place}
    root, pattern = place, "**/*tfrecord*"
    if not place.is_dir():
        fixed = len(archive.parts) if archive else 0
        parts = place.parts
        first = next((i for i in range(fixed, len(parts)) if _MAGIC & set(parts[i])), len(parts))
        root, pattern = Path(*parts[:first]), "/".join(parts[first:]) or "nothing"
    found = {p.relative_to(root).as_posix(): p for p in root.glob(pattern) if p.is_file()}
    if not found:
        where = next((p for p in (place, *place.parents) if p.is_dir()), Path())
        raise DataError(f"tfrecord: there are no files {place}; in {where} there is {held(where)}")
    return dict(sorted(found.items()))


def _lengths(files: Mapping[str, Path]) -> list[npt.NDArray[np.int64]]:
    """For each file the lengths of its records; all checksums were right when they were found."""
    try:
        text = remembered(
            "tfrecord", files, lambda: "".join(_look_through(path) for path in files.values())
        )
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return [np.array(line.split(), np.int64) for line in text.splitlines()]


def _look_through(path: Path) -> str:
    """The lengths of a file's records, in a line of text."""
    logger.info("reading %s through, to verify it and find its records", path)
    dataset = tf.data.TFRecordDataset(str(path)).map(tf.strings.length).batch(_AT_ONCE)
    dataset = dataset.with_options(options())
    try:
        lengths = [str(length) for batch in dataset for length in batch.numpy()]
    except tf.errors.DataLossError as error:
        with path.open("rb") as file:
            zipped = file.read(2) == _GZIP
        advice = (
            "it is compressed by gzip, so its records cannot be found by their places: unpack it "
            "(gunzip), or return a tf.data.TFRecordDataset(..., compression_type='GZIP') that is "
            "parsed by .map() from a builder of your own"
            if zipped
            else "it is damaged, or no TFRecord file"
        )
        raise DataError(f"tfrecord: {path}: {reason_of(error)}; {advice}") from error
    return " ".join(lengths) + "\n"
