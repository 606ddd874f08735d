"""The contract of a store. See `Store`, `RunWriter` and `RunReader`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pipefit.records import (
    Attempt,
    Best,
    CheckpointInfo,
    ClosedLine,
    Ended,
    Garbage,
    Lease,
    MetricBlock,
    Owner,
    RunOrder,
    RunState,
    RunStatus,
    TensorFacts,
    Validation,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from pipefit.store.backend import StoredFile
    from pipefit.store.content import RunContent
    from pipefit.store.ownership import AttemptKey
    from pipefit.store.results import Outputs, OutputsWriter, Values


class RunWriter(Protocol):
    """The owner's handle on a run; every write is refused once the lease is lost.

    Life: `Store.acquire` -> choose and read a checkpoint from `checkpoints()` -> `begin(step)` ->
    `write_*` and `commit` in any order -> `end(state)`. Between `acquire` and `end` someone must
    call `renew` at least every `ttl` / 2 seconds, from any thread.

    Threads: all methods may be called from several threads; `commit` calls must not overlap.

    Ownership: `fence` grows by one with every acquisition. A write by a handle whose fence is no
    longer the run's, or whose attempt was taken up, raises `LeaseLost` and changes nothing that
    counts (see `pipefit.records`).

    Commit: `commit` uploads the bytes under a fresh id, verifies length and sha256, writes the
    checkpoint's record and then does ONE conditional update of the run's document that checks the
    fence and publishes the step. Nothing before that update is visible to any reader.

    Errors: `StoreUnavailable` when the database is away for longer than the driver's retries. Then
    the same call may be made again: a write that was done already is not done twice.

    Steps: what is said about the step an attempt began with belongs to the attempt that led to it,
    so that step can be validated and committed again. Anything before it raises `StoreError`.
    """

    fence: int
    ttl: float

    def checkpoints(self) -> list[CheckpointInfo]:
        """Committed checkpoints, newest step first."""

    def read_checkpoint(
        self, checkpoint: CheckpointInfo, include: str | None = None
    ) -> dict[str, np.ndarray]:
        """The tensors of a checkpoint by name, verified (see `RunReader.weights`)."""

    def best(self) -> Best | None:
        """The best validation so far, as of the newest committed checkpoint."""

    def begin(self, start: int) -> None:
        """Continue after the committed step `start` (-1: from nothing); the state is RUNNING.

        What was committed after `start` is no longer part of the run. Raises `NotFound` if no
        checkpoint of that step is committed.
        """

    def renew(self, progress: Mapping[str, Any] | None = None) -> None:
        """Prolong the lease; `progress` (step, loss, rate, ...) is what `pipefit show` displays."""

    def write_metrics(self, block: MetricBlock) -> None:
        """Store values per step; the same first step again replaces.

        Columns of up to 512 bytes per step lie in the records, larger ones in files. A value that
        cannot be given back as it was raises `StoreError`, which names it.
        """

    def write_validation(self, validation: Validation) -> None:
        """Store a validation made in training; the same set and step again replaces."""

    def note(self, event: Mapping[str, Any]) -> None:
        """Append what happened to the run's history, with the time and the attempt.

        Args:
            event: plain values, for instance {"event": "rollback", "from": 130, "to": 100}.
        """

    def describe(self, model: Mapping[str, Any], artifacts: Mapping[str, bytes]) -> None:
        """Store what the model and the program are; again replaces what this attempt has said.

        Texts of earlier attempts stay as NAME@FENCE, if this one says otherwise: of which program
        made which steps nothing is lost.

        Args:
            model: a few plain values for the run's document, for instance {"parameters": 31000}.
            artifacts: by name longer texts, which `RunReader.artifact` gives back.
        """

    def commit(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray],
        kinds: frozenset[str],
        best: Best | None = None,
    ) -> CheckpointInfo:
        """Store a checkpoint and publish it.

        The newest committed step may be committed again, which replaces it; earlier ones are
        refused with `StoreError`. `best` None: as before.
        """

    def retain(self, kept: Mapping[str, frozenset[str]]) -> list[CheckpointInfo]:
        """Keep only these checkpoint ids (with their new kinds); return those removed.

        The newest committed checkpoint is never removed, nor are those of closed lines. An id that
        is none of the run's raises `NotFound`, and nothing is removed.
        """

    def end(
        self,
        state: RunState,
        reason: str | None,
        step: int | None,
        log_tail: str,
        ended: Ended | None = None,
    ) -> None:
        """Close the attempt, set the run's state and give the lease back; again does nothing.

        `ended`: the run is complete before its last step, until somebody begins again.
        """


class RunReader(Protocol):
    """Reads one run; safe with a read-only database user."""

    name: str
    collection: str

    def status(self) -> RunStatus:
        """State and newest committed step."""

    def document(self) -> dict[str, Any]:
        """The run's document as plain values: spec, program, model, progress, best, history..."""

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""

    def lines(self) -> list[ClosedLine]:
        """What rewinds took out of the run (`Store.rewind`), oldest first."""

    def line(self, number: int) -> RunReader:
        """Reads the run as it was before the rewind that closed this line. Raises `NotFound`."""

    def metrics(self) -> pd.DataFrame:
        """One row per step (index "step"), one column per metric; missing values are NaN.

        Small arrays are in columns of objects; columns with large ones are left out (`values`).
        """

    def validations(self) -> pd.DataFrame:
        """Columns step, set, examples, checkpoint, seconds and one per metric; by set and step.

        Of what else was computed (`Validation.values`), it has what is a single value.
        """

    def values(self, name: str) -> Values:
        """One recorded value of all steps, read piece by piece.

        Args:
            name: a column of the metrics, else "SET/NAME" of a validation.

        Raises:
            NotFound: nothing of this name is recorded.
        """

    def checkpoints(self) -> pd.DataFrame:
        """Columns step, id, kinds, size, sha256, created, fence; by step."""

    def checkpoint(self, step: int | None = None) -> CheckpointInfo:
        """The committed checkpoint of a step (None: the newest). Raises `NotFound`."""

    def weights(
        self, step: int | None = None, include: str | None = None, *, strict: bool = False
    ) -> dict[str, np.ndarray]:
        """Tensors whose name matches the regex `include` (re.search), by name.

        With `include` only the chunks that hold them are read; without, length and sha256 of the
        whole file are verified (`CheckpointCorrupt`). Without a step a newest checkpoint that is
        damaged is named in a warning and the one before is read, unless this is `strict`.
        """

    def tensors(self, step: int | None = None) -> dict[str, TensorFacts]:
        """Dtype and shape of the tensors of a checkpoint, by name; none of them is read."""

    def outputs(self, name: str, step: int | None = None) -> Outputs:
        """Stored per-example outputs of a validation set (None: the newest step that has them)."""

    def artifact(self, name: str) -> bytes | None:
        """The newest stored artifact of this name, verified; None if there is none."""

    def find_artifact(self, name: str) -> StoredFile | None:
        """Id, length and sha256 of the newest stored artifact of this name, which is not read."""


class Store(Protocol):
    """Runs, records, checkpoints and artifacts of all collections in one database.

    Completion is asked with `statuses`, `committed` and `validated`: indexed, in bulk, and an
    unreachable database raises `StoreUnavailable`, it never answers "not complete".

    Processes: a store may be carried over a fork; it opens its own connections in the child.
    """

    def describe(self) -> str:
        """The address without user and password."""

    def run(self, name: str, collection: str) -> RunReader:
        """A run. Raises `NotFound`, naming the nearest run of the collection."""

    def runs(self, collection: str | None = None) -> pd.DataFrame:
        """One row per run.

        Columns collection, name, state, step, steps, attempts, updated, reason (why it failed, was
        interrupted, or was complete before its last step), best.
        """

    def collections(self) -> list[str]:
        """Collections that have runs."""

    def statuses(self, collection: str, names: Sequence[str]) -> dict[str, RunStatus]:
        """Status of every run of these names that exists; one query."""

    def committed(
        self, collection: str, wanted: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointInfo]:
        """The committed checkpoints among the wanted (run, step); at most two queries."""

    def validated(
        self, collection: str, wanted: Sequence[tuple[str, str, int]]
    ) -> dict[tuple[str, str, int], Validation]:
        """Validations of *committed checkpoints* among the wanted (run, set, step)."""

    def lease(self, collection: str, name: str) -> Lease | None:
        """The lease of a run if it is held and its owner is not known to be dead."""

    def check_identity(self, order: RunOrder) -> None:
        """Raise `IdentityMismatch` if the stored run of this name is another experiment."""

    def acquire(self, order: RunOrder, owner: Owner, ttl: float) -> RunWriter:
        """Become the owner of a run, creating it if it is new.

        A dead owner on the same host is succeeded at once, one elsewhere when its lease has run
        out by the server's clock.

        Raises:
            RunOwned: another owner holds the lease (the message says who and until when).
            IdentityMismatch: the run of this name is another experiment, or was trained on other
                data; shows the difference.
        """

    def take_up(self, key: AttemptKey, owner: Owner, ttl: float) -> RunWriter:
        """Go on with an attempt that was left without its end, with its fence, where it was.

        What is written again replaces. Handles before this one are refused from now on. Of several
        threads or processes that try it, one has the attempt.

        Raises:
            RunOwned: another process has it, and may be alive.
            LeaseLost: it is not the run's newest attempt, or has ended.
        """

    def rewind(self, collection: str, name: str, step: int) -> CheckpointInfo:
        """Make a committed checkpoint the newest of its run, in one act.

        Later steps belong to a closed line from then on (`RunReader.lines`): their metrics,
        validations, outputs, summaries, artifacts and checkpoints no longer count, but stay until
        the run is deleted. The best so far is that of the checkpoint, the run is INTERRUPTED and no
        longer `ended`, and its history tells of it. Whoever owned the run is refused from then on.

        Raises:
            RunOwned: another process owns the run.
            NotFound: the run keeps no checkpoint of that step (the message says of which).
        """

    def drop_line(self, collection: str, name: str, number: int) -> ClosedLine:
        """Let what the `number`-th rewind took out of a run count no more, for good.

        `RunReader.lines` has it no longer, and what no other line needs is garbage after a while.
        The numbers of the other lines stay, and the history tells of it.

        Raises:
            RunOwned: another process owns the run.
            NotFound: the run has no such line, or no more.
        """

    def garbage(
        self, collection: str | None = None, *, remove: bool = False, grace: float = 3600.0
    ) -> list[Garbage]:
        """Find what counts for nobody: what killed processes left, and superseded drafts.

        Nothing is found that a process which lives may still publish, and nothing that counts in a
        run or in one of its closed lines; so it is safe beside trainings and readers. Without
        `remove` nothing is written.

        Args:
            collection: where to look; None: in all.
            remove: also remove what is not held; what is returned then is gone, or held.
            grace: seconds for which is held what nobody can say to be dead: drafts that a reader
                may be reading; what an owner has written that is silent since its lease ran out,
                and is refused after that; for a day instead of an hour what another process wrote
                without a lease.
        """

    def export_run(self, collection: str, name: str, without: Collection[str] = ()) -> RunContent:
        """All that counts of a run, as it is now, whether somebody trains it or not.

        Who owns it and how far it is on its way to the next checkpoint is not part of that, nor are
        checkpoints whose ids are in `without` because they are damaged: if the newest is, the run
        is INTERRUPTED at the one before. Raises `CheckpointCorrupt` if there is none.
        """

    def import_run(self, content: RunContent) -> bool:
        """Take over a run that `export_run` of a store has given, whatever kind of store it is.

        It has the same bytes, times, attempts and history, and continues as it would have there.
        No reader sees it before all of it is stored; if that fails, nothing is left.

        Returns:
            False, with nothing written, if the run is there already and is the same.

        Raises:
            StoreError: there is another run of this name, or this is no run.
            RunOwned: another process is importing it.
        """

    def outputs_writer(self, collection: str, name: str, set_name: str) -> OutputsWriter:
        """A writer for per-example outputs of one validation."""

    def commit_validation(
        self,
        collection: str,
        name: str,
        checkpoint: CheckpointInfo,
        validation: Validation,
        outputs: str | None = None,
    ) -> None:
        """Publish the validation of a committed checkpoint; replaces the one made in training.

        Raises `NotFound` if the checkpoint is not, or no longer, part of the run, and `StoreError`
        if the outputs have another number of examples than the validation.
        """

    def put_artifact(
        self, collection: str, name: str, artifact: str, step: int, data: bytes
    ) -> str:
        """Store bytes (a report, a plot) for a run and publish them; the older one is removed."""

    def write_summary(
        self, collection: str, name: str, step: int, summary: Mapping[str, Any]
    ) -> None:
        """Store Aggregate's record of a step (plain values)."""

    def summary(self, collection: str, name: str, step: int) -> dict[str, Any] | None:
        """Aggregate's record of a step, if its checkpoint counts."""
