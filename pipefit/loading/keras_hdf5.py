"""HDF5 files of Keras, told apart by their layout."""

from __future__ import annotations

from pathlib import Path

from pipefit.errors import LoadError
from pipefit.loading import keras2, keras3
from pipefit.loading.apart import Apart
from pipefit.loading.filesource import Kind, Origin
from pipefit.loading.hdf5 import MAGIC, Hdf5, Hdf5Source

_NAME = "HDF5 file of Keras 2 (.h5) or Keras 3 (.weights.h5)"


def open_file(path: Path, origin: Origin) -> Hdf5Source:
    """The weights in a file; in a process that may be lost, see `pipefit.loading.apart`.

    Raises:
        LoadError: it is damaged, or Keras has not written it.
    """
    file = Hdf5(path, path.stat().st_size, origin)
    try:
        if keras2.matches(file):
            return keras2.open_keras2(file)
        if keras3.matches(file):
            return keras3.open_keras3(file)
        raise LoadError(
            f"{origin.label} is an HDF5 file without Keras' groups of weights; save its arrays as "
            ".npz or safetensors, with the names they shall have"
        )
    except BaseException:
        file.close()
        raise


def _matches(path: Path, start: bytes) -> bool:
    return start.startswith(MAGIC)


def _open_apart(path: Path, origin: Origin) -> Apart:
    return Apart("file", path, origin)


KIND = Kind(_NAME, _matches, _open_apart)
