"""What the parts that are the same for every store need of the place where things are kept.

A place keeps three things for the runs of one collection: a document per run, records about it and
files. `pipefit.store.documents` tells what they mean; `pipefit.store.layout` keeps them in MongoDB,
`pipefit.store.local` in a folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pipefit.errors import CheckpointCorrupt
from pipefit.records import Owner

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.codec import TensorIndex
    from pipefit.store.columns import Packed

Document = dict[str, Any]


CHECKPOINTS, ARTIFACTS = "checkpoints", "artifacts"


@dataclass(frozen=True)
class FoundFile:
    """A file as it is found where files are, whether anything names it or not.

    Attributes:
        id: its id.
        place: CHECKPOINTS or ARTIFACTS.
        size: bytes, as far as they are known without reading them.
        written: when its writing began.
        metadata: what it was written with, but for long texts; empty for bytes of which there is
            nothing else.
    """

    id: str
    place: str
    size: int
    written: datetime
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class StoredFile:
    """A complete file: its id, bytes, hexadecimal sha256, and what a person calls it."""

    id: str
    size: int
    sha256: str
    label: str = "file"


class Source(Protocol):
    """What is to be written; `pipefit.store.codec.TensorFile` is one."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""

    def pieces(self) -> Iterable[memoryview]:
        """The bytes in order, the same whenever they are asked for."""


@dataclass(frozen=True)
class Whole:
    """A source that is in memory in one piece."""

    data: bytes | bytearray

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.data)

    def pieces(self) -> Iterable[memoryview]:
        """The bytes in order."""
        return [memoryview(self.data)]


class Files(Protocol):
    """Files of one kind: written under a fresh id, verified, never changed.

    One exists for readers only through the record that names its id, with the length and sha256
    kept there; what no record names is garbage.
    """

    def put(
        self, data: bytes | bytearray, filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write the bytes; `filename` and `metadata` (at least the run) say whose they are."""

    def put_tensors(
        self, tensors: Mapping[str, np.ndarray], filename: str, metadata: Mapping[str, Any]
    ) -> StoredFile:
        """Write tensors in the safetensors layout."""

    def read(self, file: StoredFile) -> bytes | bytearray:
        """All bytes of a file, verified. Raises `CheckpointCorrupt`."""

    def read_tensors(self, file: StoredFile, include: str | None = None) -> dict[str, np.ndarray]:
        """The tensors whose name matches `include`; None: all, and the whole file is verified."""

    def read_index(self, file: StoredFile) -> TensorIndex:
        """What lies where in a file of tensors, of which nothing else is read."""

    def remove(self, ids: Iterable[str]) -> None:
        """Remove files; those that are gone already do not matter."""


class Backend(Protocol):
    """Where the runs, records and files of one collection are."""

    collection: str

    def find_run(self, name: str, *, light: bool = True) -> Document | None:
        """The document of one run, if it exists, with the time as `now`.

        Args:
            name: the run.
            light: without the long texts.
        """

    def list_runs(self, names: Iterable[str] | None = None) -> list[Document]:
        """Light documents of the runs of these names, None: of all; by name."""

    def run_names(self, limit: int) -> list[str]:
        """Names of runs, at most so many."""

    def find_records(
        self, run: str, kind: str, condition: Mapping[str, Any] | None = None
    ) -> list[Document]:
        """Records of one run and kind whose fields equal those of `condition`, by step.

        What is None there may also be absent.
        """

    def find_metrics(self, run: str, *, values: bool) -> list[Document]:
        """Records of metrics, by step; without `values` only what they say about their columns."""

    def records_of_runs(
        self,
        runs: Iterable[str],
        kind: str,
        steps: Collection[int],
        names: Collection[str] | None = None,
    ) -> list[tuple[Document, list[Document]]]:
        """Runs, each with its records of one kind that have one of the steps and of the names."""

    def put(self, record: Mapping[str, Any]) -> bool:
        """Write a record in the place of the one with its run, kind, name, step and branch.

        `created` is set to the time.

        Returns:
            False, with nothing written, if a newer attempt (a larger fence) wrote that one.
        """

    def put_values(self, record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> bool:
        """Write a record with values, which are called `field` in it; otherwise as `put`."""

    def drop(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Delete records."""

    def change_unowned(
        self, run: Mapping[str, Any], values: Mapping[str, Any], entries: Mapping[str, Any]
    ) -> bool:
        """Change the document of a run that nobody owns, if it still has the same fence.

        Args:
            run: its document as it was read.
            values: fields and their new values.
            entries: by field (a list) what is appended to it, which gets the time as `time`.

        Returns:
            Whether it was changed; False: somebody was faster.
        """

    def column(
        self, record: Mapping[str, Any], entry: Mapping[str, Any], label: str
    ) -> bytes | bytearray:
        """The bytes of a column that a record says something about, verified.

        Raises:
            NotFound: the record was replaced.
            CheckpointCorrupt: they are damaged.
        """

    def checkpoints_of(self, run: str) -> Files:
        """The checkpoints of a run."""

    def artifacts_of(self, run: str) -> Files:
        """All its other files."""

    def new_id(self) -> str:
        """An id that nothing has yet."""

    def own_id(self, key: str) -> str:
        """The id of a checkpoint here that has this one in another store; the same if it can be."""

    # What follows is about all that there is, whether it counts or not.

    def now(self) -> datetime:
        """The time, by the clock that `written` and `created` are of."""

    def known_runs(self) -> set[str]:
        """Names of runs of which there is a document or a record."""

    def all_records(self, run: str, *, values: bool) -> Iterator[Document]:
        """All records of a run, by kind, name, step and branch; without `values` light ones."""

    def list_files(self) -> list[FoundFile]:
        """All files, complete or not."""

    def arrivals(self) -> list[Arriving]:
        """The runs that are being brought in, or were when their process was killed."""

    def arrive(self, name: str, owner: Owner) -> Arrival:
        """Begin to bring a run in.

        Raises:
            RunOwned: another process is bringing it in.
            StoreError: there is a run of this name.
        """

    def drop_arrival(self, arriving: Arriving) -> bool:
        """Remove what was brought in, unless it was seen since; whether it was removed."""

    def drop_same(self, record: Mapping[str, Any]) -> bool:
        """Delete a record unless it was replaced since it was read; whether it was deleted."""


@dataclass(frozen=True)
class Arriving:
    """A run that is being brought in: by whom, and when that process was last seen at it.

    Attributes:
        size: bytes so far, but for those in `Backend.list_files`.
    """

    run: str
    owner: Owner
    seen: datetime
    token: str
    size: int = 0


class Arrival(Protocol):
    """Brings in a run of which nobody sees anything before `settle`.

    All methods raise `LeaseLost` if it was dropped meanwhile.
    """

    def add_file(
        self,
        place: str,
        data: bytes | bytearray,
        filename: str,
        metadata: Mapping[str, Any],
        key: str | None = None,
    ) -> str:
        """Write a file and read it back.

        Args:
            place: CHECKPOINTS or ARTIFACTS.
            data: its bytes.
            filename: what it may be called.
            metadata: what is known of its origin.
            key: its id, which this place has made with `own_id`; None: a fresh one.

        Returns:
            Its id.
        """

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a record as it is, `created` included."""

    def add_values(self, record: Mapping[str, Any], field: str, columns: Iterable[Packed]) -> None:
        """Write a record with values, which are called `field` in it."""

    def settle(self, document: Mapping[str, Any]) -> None:
        """Write the run's document: `store.content` tells what it has. This is the commit."""

    def abandon(self) -> None:
        """Remove all of it."""


@contextmanager
def undamaged(file: StoredFile) -> Iterator[None]:
    """Whatever goes wrong in decoding means that the bytes are not what was written."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(
            f"{file.label} is damaged ({error}), id {file.id}; use an earlier one"
        ) from error
