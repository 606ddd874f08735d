"""HDF5 files from anyone: groups and datasets by name, never anything outside of the file.

Links to other files, virtual datasets and data in other files are refused, and so are soft links,
which Keras never writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from pipefit.errors import LoadError
from pipefit.loading.base import TensorInfo
from pipefit.loading.filesource import FileSource, Origin
from pipefit.loading.names import Role

if TYPE_CHECKING:
    import numpy as np

NAME = "HDF5 file"
MAGIC = b"\x89HDF\r\n\x1a\n"

# Names in one attribute; HDF5 keeps no more than 64 KiB in one, unless it is stored apart.
_LONGEST_LIST = 1_000_000


class Hdf5:
    """A file that is open for reading.

    Args:
        file: path, or an open file with the bytes.
        size: bytes of it.
        origin: where it came from.

    Raises:
        LoadError: it is damaged.
    """

    def __init__(self, file: Path | IO[bytes], size: int, origin: Origin):
        import h5py

        self.origin = origin
        self.size = size
        with self.damage():
            # Where the file system has no locks, do without.
            locking = {"locking": "best-effort"} if isinstance(file, Path) else {}
            self._file = h5py.File(file, "r", **locking)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def root(self) -> Any:
        """The group at the top."""
        return self._file

    def children(self, group: Any) -> dict[str, Any]:
        """The groups and datasets in a group.

        Raises:
            LoadError: one of them is, or may be, outside of the file.
        """
        with self.damage():
            return {name: self._one(group, name) for name in group}

    def child(self, group: Any, path: str) -> Any:
        """A group or dataset by its path from a group; None if there is none.

        Raises:
            LoadError: as `children` does.
        """
        with self.damage():
            for part in path.split("/"):
                if not is_group(group) or part in ("", ".", "..") or part not in group:
                    return None
                group = self._one(group, part)
        return group

    def _one(self, group: Any, name: str) -> Any:
        import h5py

        where = f"{group.name.rstrip('/')}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            self._refuse(where, "is a link")
        found = group[name]
        # Before anything else is asked of it: the shape of a virtual dataset may be looked for in
        # other files.
        if isinstance(found, h5py.Dataset) and (found.is_virtual or found.external):
            self._refuse(where, "lies in other files")
        # A group may be in itself.
        if is_group(found) and h5py.h5o.get_info(found.id).rc > 1:
            self._refuse(where, "has several names")
        return found

    def datasets(self, group: Any) -> Iterator[tuple[str, Any]]:
        """All datasets in a group and the groups in it, by their paths from there."""
        for name, thing in self.children(group).items():
            if is_group(thing):
                inner = self.datasets(thing)
                yield from ((f"{name}/{path}", dataset) for path, dataset in inner)
            else:
                yield name, thing

    def texts(self, thing: Any, name: str) -> list[str] | None:
        """An attribute that is a text or a list of texts; long lists are cut in several by Keras.

        Raises:
            LoadError: it is damaged.
        """
        with self.damage(f"attribute {name!r}"):
            if name in thing.attrs:
                return self._texts(thing, name)
            pieces = (f"{name}{number}" for number in count())
            found = [self._texts(thing, p) for p in takewhile(thing.attrs.__contains__, pieces)]
            return [text for piece in found for text in piece] if found else None

    def info(self, dataset: Any, role: Role) -> TensorInfo:
        """What is known of a dataset before it is read."""
        with self.damage():
            shape = tuple(dataset.shape or ())
            # Keras marks what HDF5 has no type for.
            if self.texts(dataset, "dtype") == ["bfloat16"]:
                return TensorInfo("bfloat16", shape, role)
            return TensorInfo(dataset.dtype.newbyteorder("=").name, shape, role)

    def values(self, dataset: Any, name: str) -> np.ndarray:
        """All of a dataset."""
        import numpy as np

        with self.damage(f"tensor {name!r}"):
            found = np.empty(dataset.shape, dataset.dtype)
            if found.size:
                dataset.read_direct(found)
            if self.texts(dataset, "dtype") == ["bfloat16"]:
                import ml_dtypes

                return found.view(ml_dtypes.bfloat16)
            return found.astype(found.dtype.newbyteorder("="), copy=False)

    def _texts(self, thing: Any, name: str) -> list[str]:
        import numpy as np

        shape = thing.attrs.get_id(name).shape
        if math.prod(shape) > _LONGEST_LIST:
            raise ValueError(f"it claims {math.prod(shape)} texts")
        values = np.atleast_1d(np.asarray(thing.attrs[name], object)).ravel()
        return [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in values]

    def _refuse(self, where: str, problem: str) -> NoReturn:
        raise LoadError(
            f"{self.origin.label}: {where} {problem}; only what lies in the file itself is read: "
            "save it again without"
        )

    @contextmanager
    def damage(self, about: str | None = None) -> Iterator[None]:
        """Turn what h5py raises for damage, a dozen types, into a LoadError."""
        try:
            yield
        except LoadError:
            raise
        except Exception as error:
            before = "" if about is None else f"{about}: "
            raise self.origin.damaged(NAME, f"{before}{error}") from error


class Hdf5Source(FileSource):
    """Datasets of one file as a source.

    Args:
        file: closed with the source.
        datasets: by the names that tensors have here, with what each is for.
        step: it was saved at.
    """

    def __init__(self, file: Hdf5, datasets: dict[str, tuple[Any, Role]]):
        self._file = file
        self._datasets = datasets
        self._others = ExitStack()
        tensors = {name: file.info(dataset, role) for name, (dataset, role) in datasets.items()}
        super().__init__(file.origin, tensors)

    def also_close(self, others: ExitStack) -> None:
        """Close these, too, when the source is closed."""
        self._others = others

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._others.close()

    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""
        dataset = self._datasets[name][0]
        with self._file.damage():
            size = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
            return size, dataset.id.get_storage_size()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def _read(self, name: str) -> np.ndarray:
        return self._file.values(self._datasets[name][0], name)


def is_group(thing: Any) -> bool:
    """Whether something in a file is a group."""
    import h5py

    return isinstance(thing, h5py.Group)
