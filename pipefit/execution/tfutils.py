"""Checkpoints in databases of tfutils as sources of weights.

uri = "mongodb://db.example.org:27017/tfutils_db/digits"
with open_tfutils(uri, "training0", step=1000) as source:
    weights = source.read(["hidden1/weights", "hidden1/bias"])
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipefit.errors import CheckpointCorrupt, LoadError, NotFound
from pipefit.loading.savers import lay_out
from pipefit.store.tfutils import TfutilsCheckpoint, TfutilsDatabase

if TYPE_CHECKING:
    import numpy as np

    from pipefit.loading import Source, TensorInfo

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
        database.experiments()
        checkpoint = database.checkpoint(exp_id, step)
    except NotFound as error:
        raise LoadError(str(error)) from error
    return open_checkpoint(database, checkpoint, open_saver)


def open_checkpoint(
    database: TfutilsDatabase, checkpoint: TfutilsCheckpoint, open_saver: OpenSaver | None = None
) -> TfutilsSource:
    """Open a checkpoint of a database; its files lie in a temporary folder until it is closed.

    Raises:
        LoadError: it is damaged or hostile, or cannot be written to the temporary folder.
    """
    label = f"{checkpoint.file.label} of {database.shown}"
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipefit-tfutils-"))
        try:
            tar = Path(folder) / "saved"
            digest = database.copy(checkpoint.file, tar)
            files = Path(folder) / "files"
            files.mkdir()
            prefix = lay_out(tar, files, label, checkpoint.shards)
            if prefix != tar:
                tar.unlink()
        except CheckpointCorrupt as error:
            raise LoadError(str(error)) from error
        except OSError as error:
            raise LoadError(
                f"{label} cannot be kept in {folder}: {error.strerror or error}; set TMPDIR to a "
                "folder that can be written and has enough space"
            ) from error
        saved = (open_saver or _open_saver)(prefix, label)
        stack.callback(saved.close)
        return TfutilsSource(label, checkpoint.step, digest, saved, stack.pop_all())


def _open_saver(prefix: Path, label: str) -> Source:
    from pipefit.execution.worker import savers  # loads TensorFlow

    return savers.open_saver(prefix, label)


class TfutilsSource:
    """`pipefit.loading.Source` of a checkpoint of tfutils, by the names of its variables."""

    def __init__(
        self, label: str, step: int, digest: str, saved: Source, resources: ExitStack
    ) -> None:
        self.label = label
        self.step: int | None = step
        self.digest: str | None = digest
        self._saved = saved
        self._resources = resources

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tensors(self) -> dict[str, TensorInfo]:
        """All variables by name."""
        return self._saved.tensors()

    def read(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named variables.

        Raises:
            LoadError: there is no such variable, or it is damaged.
        """
        return self._saved.read(names)

    def close(self) -> None:
        """Remove the copy."""
        self._resources.close()
