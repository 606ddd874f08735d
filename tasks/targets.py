"""Targets: plain names and numbers that are asked for in the store or the cache when needed."""

from __future__ import annotations

import luigi

from pipefit import archives
from pipefit.errors import ArchiveError
from pipefit.records import RunOrder
from tasks.base import store


class ArchiveTarget(luigi.Target):
    """An archive in the cache, verified."""

    def __init__(self, sha256: str):
        self.sha256 = sha256

    def exists(self) -> bool:
        """One look at the file's size and time, unless they changed."""
        return archives.cached(self.sha256) is not None

    @property
    def path(self) -> str:
        """The file.

        Raises:
            ArchiveError: it is not there, or damaged.
        """
        file = archives.cached(self.sha256)
        if file is None:
            raise ArchiveError(f"archive {self.sha256} is not there, or was damaged; run again")
        return str(file)

    def __str__(self) -> str:
        return f"archive {self.sha256}"


class UnpackedTarget(luigi.Target):
    """The folder of an archive's files, each there with its size."""

    def __init__(self, sha256: str):
        self.sha256 = sha256

    def exists(self) -> bool:
        """One look at every file's size."""
        return archives.unpacked(self.sha256) is not None

    @property
    def path(self) -> str:
        """The folder.

        Raises:
            ArchiveError: it is not there, or not whole.
        """
        folder = archives.unpacked(self.sha256)
        if folder is None:
            raise ArchiveError(f"archive {self.sha256} is not unpacked, or was damaged; run again")
        return str(folder)

    def __str__(self) -> str:
        return f"files of archive {self.sha256}"


class CheckpointTarget(luigi.Target):
    """The committed checkpoint of a run at a step."""

    def __init__(self, collection: str, run: str, step: int):
        self.collection, self.run, self.step = collection, run, step

    def exists(self) -> bool:
        """One indexed question; raises StoreUnavailable if it cannot be asked."""
        return bool(store().committed(self.collection, [(self.run, self.step)]))

    def __str__(self) -> str:
        return f"checkpoint of step {self.step} of {self.collection}/{self.run}"


class BegunTarget(luigi.Target):
    """Any committed checkpoint of a run."""

    def __init__(self, order: RunOrder):
        self.order = order

    def exists(self) -> bool:
        """One indexed question; raises StoreUnavailable if it cannot be asked."""
        name = self.order.name
        status = store().statuses(self.order.collection, [name]).get(name)
        return status is not None and status.step is not None

    def __str__(self) -> str:
        return f"a checkpoint of {self.order.collection}/{self.order.name}"


class ValidationTarget(luigi.Target):
    """The validation of a run's committed checkpoint on one set."""

    def __init__(self, collection: str, run: str, name: str, step: int):
        self.collection, self.run, self.name, self.step = collection, run, name, step

    def exists(self) -> bool:
        """One indexed question; raises StoreUnavailable if it cannot be asked."""
        return bool(store().validated(self.collection, [(self.run, self.name, self.step)]))

    def __str__(self) -> str:
        return f"validation {self.name} at step {self.step} of {self.collection}/{self.run}"


class SummaryTarget(luigi.Target):
    """Aggregate's record of a run at a step."""

    def __init__(self, collection: str, run: str, step: int):
        self.collection, self.run, self.step = collection, run, step

    def exists(self) -> bool:
        """One indexed question; raises StoreUnavailable if it cannot be asked."""
        return store().summary(self.collection, self.run, self.step) is not None

    def __str__(self) -> str:
        return f"summary of step {self.step} of {self.collection}/{self.run}"
