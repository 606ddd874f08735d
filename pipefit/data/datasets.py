"""HDF5 files as a source: only the rows asked for are read. See `hdf5`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.arrays import common_length
from pipefit.data.digests import file_digest
from pipefit.data.fields import Fields
from pipefit.data.places import absent, located_file, shortened, wanted
from pipefit.data.texts import array_of
from pipefit.errors import DataError


def hdf5(
    path: str | Path | None = None,
    *,
    datasets: Mapping[str, str] | Collection[str] | None = None,
    archive: Path | None = None,
) -> Hdf5:
    """The datasets of an HDF5 file, read row by row as they are asked for.

    Args:
        path: of the file; relative to the archive, if there is one.
        datasets: which: paths in the file by field ({images = "/train/images"}), or names of
            datasets at its top; default all of these.
        archive: the unpacked archive.

    Raises:
        DataError: the file cannot be read, or a dataset is missing, not an array of examples, or of
            a type that is no number, text or bytes.
    """
    return Hdf5(located_file("hdf5", path, archive), datasets)


class Hdf5:
    """A source that reads rows of datasets.

    The HDF5 library lets one thread read at a time. Rows lie in chunks that are read whole, so
    chunks of one example each are the fastest for training; neighbouring rows are read at once.

    Args:
        path: of the file.
        datasets: see `hdf5`.
    """

    def __init__(self, path: Path, datasets: Mapping[str, str] | Collection[str] | None = None):
        import h5py

        self.path = path
        self._origin = f"hdf5: {path}"
        try:
            # Where the file system has no locks, do without.
            self._file = h5py.File(path, "r", locking="best-effort")
        except OSError as error:
            raise DataError(f"hdf5: cannot read {path}: {error}") from error
        try:
            self._datasets = self._chosen(datasets)
            shapes = {name: dataset.shape for name, dataset in self._datasets.items()}
            self._length = common_length(self._origin, shapes)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return self._length

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices, arrays of shape [len(indices), ...]."""
        rows, places = np.unique(indices, return_inverse=True)
        return {name: self._rows(name, rows)[places] for name in self._datasets}

    def digest(self) -> str:
        """The sha256 of the file; it is read once and kept until the file changes."""
        return file_digest(self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _chosen(self, datasets: Mapping[str, str] | Collection[str] | None) -> dict[str, Any]:
        import h5py

        top = [name for name, thing in self._file.items() if isinstance(thing, h5py.Dataset)]
        if datasets is None and not top:
            raise DataError(
                f"{self._origin}: no datasets at the top of the file; name them by field: "
                f'datasets = {{ images = "..." }}; there is {shortened(_inside(self._file))}'
            )
        if datasets is None or not isinstance(datasets, Mapping):
            names = wanted(self._origin, "dataset", datasets, top)
        else:
            names = dict(datasets)
        return {field: self._dataset(name) for field, name in names.items()}

    def _dataset(self, name: str) -> Any:
        import h5py

        dataset = self._file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            raise DataError(f"{self._origin}: {absent('dataset', name, _inside(self._file))}")
        text = h5py.check_string_dtype(dataset.dtype)
        if text is None and dataset.dtype.kind not in "biufc":
            raise DataError(
                f"{self._origin}: dataset {name!r} holds {dataset.dtype}; give numbers or texts"
            )
        if not dataset.shape:
            raise DataError(f"{self._origin}: dataset {name!r} is a single value, no examples")
        return dataset

    def _rows(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The rows of these different, ascending numbers."""
        import h5py

        dataset = self._datasets[name]
        found = np.empty((len(rows), *dataset.shape[1:]), dataset.dtype.newbyteorder("="))
        ends = [*np.flatnonzero(np.diff(rows) != 1) + 1, len(rows)]
        try:
            # h5py's own reading by a list of numbers takes 3 to 50 times as long.
            for start, end in zip([0, *ends], ends, strict=False):
                first = int(rows[start])
                found[start:end] = (
                    dataset[first] if end - start == 1 else dataset[first : first + end - start]
                )
        except (OSError, ValueError, IndexError, RuntimeError) as error:
            raise DataError(
                f"{self._origin}: field {name!r}: rows {rows[0]} to {rows[-1]} cannot be read: "
                f"{error}"
            ) from error
        text = h5py.check_string_dtype(dataset.dtype)
        return found if text is None else self._texts(name, found, text.encoding)

    def _texts(self, name: str, found: npt.NDArray[Any], encoding: str) -> npt.NDArray[Any]:
        origin = f"{self._origin}: field {name!r}"
        values = [bytes(value) for value in found.ravel()]
        if encoding != "utf-8":
            return array_of(values, origin).reshape(found.shape)
        try:
            texts = [value.decode("utf-8") for value in values]
        except UnicodeDecodeError as error:
            raise DataError(f"{origin}: a text is not UTF-8: {error}") from error
        return array_of(texts, origin).reshape(found.shape)


def _inside(file: Any) -> list[str]:
    """The paths of all datasets in a file."""
    import h5py

    found: list[str] = []

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            found.append(name)

    file.visititems(visit)
    return found
