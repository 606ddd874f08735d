"""Checkpoints in databases of tfutils as sources of weights.

uri = "mongodb://db.example.org:27017/tfutils_db/digits"
with open_tfutils(uri, "training0", step=1000) as source:
    weights = source.read(["hidden1/weights", "hidden1/bias"])
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipefit.errors import CheckpointCorrupt, LoadError, NotFound
from pipefit.loading.saver_index import Place, places
from pipefit.loading.savers import SaverTar, open_tar
from pipefit.store.tfutils import PartialFile, TfutilsCheckpoint, TfutilsDatabase

if TYPE_CHECKING:
    import numpy as np

    from pipefit.loading import Source, TensorInfo

#: Bytes from which on a checkpoint is fetched in parts; with smaller ones all of it is verified.
_LARGE = 16 * 2**20
_STEP = "global_step"

#: Opens the files of a Saver by their prefix; the second argument is what to call it in messages.
OpenSaver = Callable[[Path, str], "Source"]


def open_tfutils(
    uri: str, exp_id: str, step: int | None = None, *, open_saver: OpenSaver | None = None
) -> TfutilsSource:
    """Open a checkpoint of an experiment.

    Args:
        uri: mongodb://USER:PASSWORD@HOST:PORT/DATABASE/COLLECTION.
        exp_id: the experiment.
        step: of the checkpoint; None: the newest one, be it a recent one.
        open_saver: reads the files; None: TensorFlow does, which is loaded then.

    Raises:
        LoadError: there is no such database, collection, experiment or step (the message names what
            there is), or the checkpoint is damaged or hostile.
        StoreUnavailable: the database cannot be reached.
    """
    try:
        database = TfutilsDatabase(uri)
        checkpoint = database.checkpoint(exp_id, step)
    except NotFound as error:
        raise LoadError(str(error)) from error
    return open_checkpoint(database, checkpoint, open_saver)


def open_checkpoint(
    database: TfutilsDatabase, checkpoint: TfutilsCheckpoint, open_saver: OpenSaver | None = None
) -> TfutilsSource:
    """Open a checkpoint of a database.

    Of a large one only what is asked for is fetched. What is fetched lies in a temporary folder
    until the source is closed.

    Raises:
        LoadError: it is damaged or hostile, or cannot be written to the temporary folder.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipefit-tfutils-"))
        files = _Files(database, checkpoint, Path(folder))
        source = TfutilsSource(files, open_saver or _open_saver)
        source.closing = stack.pop_all()
        return source


def _open_saver(prefix: Path, label: str) -> Source:
    from pipefit.execution.worker import savers  # loads TensorFlow

    return savers.open_saver(prefix, label)


class _Files:
    """The files of a checkpoint in a temporary folder, all or in part.

    Attributes:
        digest: sha256 of what was stored; None as long as not all of it was read.
    """

    def __init__(
        self, database: TfutilsDatabase, checkpoint: TfutilsCheckpoint, folder: Path
    ) -> None:
        self.checkpoint = checkpoint
        self.label = f"{checkpoint.file.label} of {database.shown}"
        self.digest: str | None = None
        self._database = database
        self._folder = folder
        self._tar: SaverTar | None = None
        self._places: Mapping[str, Place] = {}
        with self._told():
            if checkpoint.file.size >= _LARGE and self._begin():
                return
            self.prefix = self._whole()

    def bring(self, names: Collection[str]) -> None:
        """Fetch some variables, or all if that is not much more."""
        if self._tar is None:
            return
        places = [self._places[name] for name in names if name in self._places]
        with self._told():
            if 2 * sum(place.size for place in places) > self._tar.data_size:
                self.prefix, self._tar = self._whole(), None
            else:
                self._tar.write_tensors(self.prefix.parent, places)

    def _begin(self) -> bool:
        """Fetch only what says where variables lie; False if that is not to be found."""
        stored = self.checkpoint
        file = io.BufferedReader(PartialFile(self._database, stored.file))
        tar = open_tar(file, stored.file.size, self.label, stored.shards)
        if tar is None:
            return False
        try:
            self._places = places(tar.index())
        except ValueError:
            return False
        self.prefix = tar.write_index(self._new_folder("part"))
        self._tar = tar
        # Who opens it wants to know the step.
        self.bring([_STEP])
        return True

    def _whole(self) -> Path:
        stored = self._folder / "stored"
        self.digest = self._database.copy(self.checkpoint.file, stored)
        with stored.open("rb") as file:
            size, shards = self.checkpoint.file.size, self.checkpoint.shards
            tar = open_tar(file, size, self.label, shards)
            if tar is None:
                return stored
            prefix = tar.write(self._new_folder("whole"))
        stored.unlink()
        return prefix

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what can go wrong into errors of loading."""
        try:
            yield
        except CheckpointCorrupt as error:
            raise LoadError(str(error)) from error
        except OSError as error:
            raise LoadError(
                f"{self.label} cannot be kept in {self._folder}: {error.strerror or error}; set "
                "TMPDIR to a folder that can be written and has enough space"
            ) from error


class TfutilsSource:
    """`pipefit.loading.Source` of a checkpoint of tfutils, by the names of its variables.

    Attributes:
        digest: sha256 of what was stored; None as long as not all of it was read.
    """

    closing: ExitStack | None = None

    def __init__(self, files: _Files, open_saver: OpenSaver) -> None:
        self.label = files.label
        self.step: int | None = files.checkpoint.step
        self.digest: str | None = files.digest
        self._files = files
        self._open_saver = open_saver
        saved = self._opened()
        self._tensors = saved.tensors()
        saved.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tensors(self) -> dict[str, TensorInfo]:
        """All variables by name."""
        return dict(self._tensors)

    def read(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named variables.

        Raises:
            LoadError: there is no such variable, or it is damaged.
        """
        self._files.bring(names)
        self.digest = self._files.digest
        # TensorFlow keeps what it has read of a file, so it is not to see it before it is there.
        saved = self._opened()
        try:
            return saved.read(names)
        finally:
            saved.close()

    def close(self) -> None:
        """Remove what was fetched."""
        if self.closing is not None:
            self.closing.close()

    def _opened(self) -> Source:
        return self._open_saver(self._files.prefix, self.label)
