"""Arrays in memory as a source, and files that are read into it whole.

>>> import numpy as np
>>> source = Arrays(x=np.zeros((3, 2), np.float32), labels=np.array([0, 1, 1]))
>>> len(source), source.take(np.array([2]))["labels"].tolist()
(3, [1])
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.digests import arrays_digest
from pipefit.data.fields import Fields
from pipefit.data.places import located_file, wanted
from pipefit.errors import DataError

_ALIGNMENT = 64


class Arrays:
    """A source of arrays in memory.

    TensorFlow can share their memory instead of copying it, if it begins at a multiple of 64 bytes;
    NumPy's seldom does, so an array of numbers is copied here, once: keep no reference to it.

    Args:
        fields: arrays of shape [examples, ...], all with the same number of examples.

    Raises:
        DataError: for no field, no example, fields of unequal lengths, or a label that is NaN.
    """

    def __init__(self, **fields: npt.ArrayLike):
        self.fields: Fields = {name: aligned(np.asarray(value)) for name, value in fields.items()}
        self._length = common_length(
            "Arrays()", {name: value.shape for name, value in self.fields.items()}
        )
        _check_labels("Arrays()", self.fields)

    def __len__(self) -> int:
        return self._length

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices, arrays of shape [len(indices), ...]."""
        return {name: value[indices] for name, value in self.fields.items()}

    def digest(self) -> str:
        """The sha256 of all arrays; costs reading them once, 0.6 to 1.9 GB a second."""
        return arrays_digest(self.fields)


def arrays_of(origin: str, fields: Fields) -> Arrays:
    """`Arrays` of what was read from a file, which messages name.

    Raises:
        DataError: as `Arrays` does.
    """
    common_length(origin, {name: value.shape for name, value in fields.items()})
    _check_labels(origin, fields)
    return Arrays(**fields)


def common_length(origin: str, shapes: Mapping[str, Sequence[int]]) -> int:
    """The number of examples that all fields have.

    Args:
        origin: what has the fields, for messages.
        shapes: of the whole fields, [examples, ...].

    Raises:
        DataError: there is no field, they have unequal lengths, or there are no examples.
    """
    lengths = {name: shape[0] if len(shape) else 0 for name, shape in shapes.items()}
    if not lengths:
        raise DataError(f"{origin}: no fields given; give at least one array by name")
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"{origin}: all fields must have the same number of examples, {given}")
    length = next(iter(lengths.values()))
    if not length:
        raise DataError(f"{origin}: no examples in {', '.join(lengths)}; at least one is needed")
    return length


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers in memory that TensorFlow can share; texts and objects as they are.

    Returns:
        The array itself if it is fit, else a copy: contiguous, in this machine's byte order, and
        beginning at a multiple of 64 bytes.
    """
    if array.dtype.kind in "OSUV":
        return array
    native = array.dtype.newbyteorder("=")
    fit = array.flags.c_contiguous and array.flags.writeable and array.dtype == native
    if fit and array.ctypes.data % _ALIGNMENT == 0:
        return array
    memory = np.empty(array.size * native.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.size * native.itemsize].view(native).reshape(array.shape)
    copy[...] = array
    return copy


def npz(
    path: str | Path | None = None,
    *,
    arrays: Mapping[str, str] | Collection[str] | None = None,
    archive: Path | None = None,
) -> Arrays:
    """The arrays of a file that `numpy.savez` wrote; they are read into memory.

    Args:
        path: of the file; relative to the archive, if there is one.
        arrays: which: names in the file by field, or only names; default all.
        archive: the unpacked archive.

    Raises:
        DataError: the file cannot be read, or holds no such array, or Python objects.
    """
    place = located_file("npz", path, archive)
    try:
        file = np.load(place, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array, as numpy.save writes it")
        with file:
            names = wanted(f"npz: {place}", "array", arrays, file.files)
            # One after the other: not all of them twice in memory.
            fields = {field: aligned(file[name]) for field, name in names.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"npz: cannot read {place}: {error}") from error
    return arrays_of(f"npz: {place}", fields)


def digits(archive: Path, split: str) -> Arrays:
    """The 1,797 handwritten digits of configs/archives/optdigits.tar.gz.

    Args:
        archive: the unpacked archive, holding optdigits.csv: rows of 64 pixels 0..16 and a label.
        split: "train" (the first 1,437 rows) or "test" (the last 360).

    Returns:
        Fields images, float32 [8, 8, 1] in 0..1, and labels, int64 in 0..9.

    Raises:
        DataError: for another split, or a file that has other rows.
    """
    splits = {"train": slice(0, 1437), "test": slice(1437, 1797)}
    if split not in splits:
        raise DataError(f"digits: split = {split!r}: allowed are {', '.join(map(repr, splits))}")
    path = Path(archive) / "optdigits.csv"
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"digits: cannot read {path}: {error}") from error
    if rows.shape != (1797, 65) or rows.min() < 0 or rows[:, :64].max() > 16:
        raise DataError(
            f"digits: {path} has shape {rows.shape}, expected 1797 rows of 64 + 1 numbers"
        )
    rows = rows[splits[split]]
    images = (rows[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return Arrays(images=images, labels=rows[:, 64])


def _check_labels(origin: str, fields: Fields) -> None:
    """Refuse labels that are NaN; where an example has several, the loss may leave some out."""
    labels = fields.get("labels")
    if labels is None or labels.ndim != 1 or labels.dtype.kind != "f":
        return
    wrong = np.flatnonzero(np.isnan(labels))
    if wrong.size:
        raise DataError(
            f"{origin}: field 'labels' is NaN for {wrong.size} of {len(labels)} examples, first "
            f"for number {wrong[0]}; leave these examples out or give them labels"
        )
