"""What is the same for every store: questions about runs, and what is stored without owning one."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipefit import records
from pipefit.errors import NotFound, StoreError
from pipefit.records import (
    CheckpointInfo,
    ClosedLine,
    Garbage,
    Lease,
    Owner,
    RunOrder,
    RunStatus,
    Validation,
)
from pipefit.store import documents, garbage, rewinding, states
from pipefit.store.backend import Backend, Document
from pipefit.store.content import StoredContent
from pipefit.store.documents import ARTIFACT, CHECKPOINT, OUTPUTS, SUMMARY, VALIDATED
from pipefit.store.garbage import GRACE
from pipefit.store.identity import accepted_changes
from pipefit.store.plain import of_python, plain
from pipefit.store.reader import StoredRun

if TYPE_CHECKING:
    import pandas as pd

    from pipefit.store.base import RunWriter
    from pipefit.store.content import RunContent
    from pipefit.store.outputs import StoredOutputsWriter
    from pipefit.store.ownership import AttemptKey

_NAMES_COMPARED = 10_000


class GeneralStore(abc.ABC):
    """`pipefit.store.base.Store` on a `pipefit.store.backend.Backend` for each collection."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The address without user and password."""

    @abc.abstractmethod
    def collections(self) -> list[str]:
        """Collections that have runs."""

    @abc.abstractmethod
    def _places(self) -> list[str]:
        """Collections of which there is anything."""

    @abc.abstractmethod
    def _backend(self, collection: str) -> Backend:
        """Where the runs of a collection are. Raises `StoreError` if none may be called so."""

    @abc.abstractmethod
    def _writable(self, collection: str) -> Backend:
        """The same, made ready for what changes runs."""

    @abc.abstractmethod
    def _acquire(self, order: RunOrder, owner: Owner, ttl: float) -> RunWriter:
        """See `acquire`; names and time have been checked."""

    @abc.abstractmethod
    def _take_up(self, key: AttemptKey, owner: Owner, ttl: float) -> RunWriter:
        """See `take_up`; the run is there."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def run(self, name: str, collection: str) -> StoredRun:
        """A run. Raises `NotFound`, naming the nearest run of the collection."""
        backend = self._backend(collection)
        _existing(backend, name)
        return StoredRun(backend, name)

    def runs(self, collection: str | None = None) -> pd.DataFrame:
        """One row per run.

        Columns collection, name, state, step, steps, attempts, updated, reason, best.
        """
        wanted = self.collections() if collection is None else [collection]
        from pipefit.store import frames

        return frames.runs_frame(
            states.row(run, name) for name in wanted for run in self._backend(name).list_runs()
        )

    def statuses(self, collection: str, names: Sequence[str]) -> dict[str, RunStatus]:
        """Status of every run of these names that exists; one query."""
        found = self._backend(collection).list_runs(names)
        return {run["_id"]: states.status_of(run, collection) for run in found}

    def committed(
        self, collection: str, wanted: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointInfo]:
        """The committed checkpoints among the wanted (run, step); at most two queries."""
        names, steps = {name for name, _ in wanted}, {step for _, step in wanted}
        found = self._backend(collection).records_of_runs(names, CHECKPOINT, steps)
        checkpoints = {
            (run["_id"], step): info
            for run, stored in found
            for step, info in documents.checkpoints_of(run, stored).items()
        }
        return {key: checkpoints[key] for key in wanted if key in checkpoints}

    def validated(
        self, collection: str, wanted: Sequence[tuple[str, str, int]]
    ) -> dict[tuple[str, str, int], Validation]:
        """Validations of *committed checkpoints* among the wanted (run, set, step)."""
        found = self._backend(collection).records_of_runs(
            {run for run, _, _ in wanted},
            VALIDATED,
            {step for _, _, step in wanted},
            {name for _, name, _ in wanted},
        )
        validations = {
            (run["_id"], record["name"], record["step"]): documents.validation_of(record)
            for run, stored in found
            for record in stored
            if documents.counts(run, record)
        }
        return {key: validations[key] for key in wanted if key in validations}

    def lease(self, collection: str, name: str) -> Lease | None:
        """The lease of a run if it is held and its owner is not known to be dead."""
        run = self._backend(collection).find_run(name)
        return None if run is None else documents.lease_of(run)

    def check_identity(self, order: RunOrder) -> None:
        """Raise `IdentityMismatch` if the stored run of this name is another experiment."""
        run = self._backend(order.collection).find_run(order.name, light=False)
        if run is not None:
            accepted_changes(run, order)

    def acquire(self, order: RunOrder, owner: Owner, ttl: float) -> RunWriter:
        """Become the owner of a run, creating it if it is new.

        Args:
            order: the run and what decides its numbers.
            owner: usually `this_process()`.
            ttl: seconds after which the run is free unless the lease is renewed.

        Raises:
            RunOwned: another owner holds the lease (the message says who and until when).
            IdentityMismatch: the run of this name is another experiment, or was trained on other
                data; shows the difference.
            StoreError: no run may be called so, or `ttl` is not positive.
        """
        try:
            records.check_run_name(order.name)
        except ValueError as error:
            raise StoreError(str(error)) from None
        if ttl <= 0:
            raise StoreError(f"ttl {ttl} of run {order.name!r}: a lease lasts more than 0 seconds")
        return self._acquire(order, owner, ttl)

    def take_up(self, key: AttemptKey, owner: Owner, ttl: float) -> RunWriter:
        """Go on with an attempt that was left without its end, in its own name.

        Raises:
            RunOwned: another process has it, and may be alive.
            LeaseLost: it is not the newest attempt of the run, or has ended, or it was another
                process that had it.
            IdentityMismatch: the run is another experiment by now.
            NotFound: there is no such run.
        """
        _existing(self._backend(key.collection), key.name)
        return self._take_up(key, owner, ttl)

    def rewind(self, collection: str, name: str, step: int) -> CheckpointInfo:
        """Make a committed checkpoint the newest of its run.

        Raises:
            RunOwned: somebody owns the run.
            NotFound: it keeps no checkpoint of that step; names those that it keeps.
        """
        backend = self._writable(collection)
        _existing(backend, name)
        return rewinding.rewind(backend, name, step)

    def drop_line(self, collection: str, name: str, number: int) -> ClosedLine:
        """Let a closed line count no more; see `pipefit.store.base.Store`.

        Raises:
            RunOwned: somebody owns the run.
            NotFound: it has no such line.
        """
        backend = self._writable(collection)
        _existing(backend, name)
        return rewinding.drop_line(backend, name, number)

    def garbage(
        self, collection: str | None = None, *, remove: bool = False, grace: float = GRACE
    ) -> list[Garbage]:
        """Find what counts for nobody, in a collection or in all.

        Args:
            collection: where; None: everywhere.
            remove: also remove what is not held; what is returned is gone then.
            grace: seconds for which what somebody may still be using is held.
        """
        places = self._places() if collection is None else [collection]
        return [
            found
            for place in places
            for found in garbage.collect(self._backend(place), remove=remove, grace=grace)
        ]

    def export_run(
        self, collection: str, name: str, without: Collection[str] = ()
    ) -> StoredContent:
        """All that counts of a run, as it is now, but for checkpoints of these ids.

        Raises:
            NotFound: there is no such run.
            CheckpointCorrupt: it would be left without a checkpoint.
        """
        backend = self._backend(collection)
        _existing(backend, name)
        return StoredContent(backend, name, without)

    def import_run(self, content: RunContent) -> bool:
        """Take over a run that `export_run` of a store has given.

        Returns:
            False, with nothing written, if the run is there already and is the same.

        Raises:
            StoreError: there is another run of this name, or this is no run.
            RunOwned: another process is importing it.
        """
        from pipefit.store.incoming import bring_in

        return bring_in(self._writable(content.collection), content)

    def outputs_writer(self, collection: str, name: str, set_name: str) -> StoredOutputsWriter:
        """A writer for per-example outputs of one validation."""
        backend = self._backend(collection)
        _existing(backend, name)
        from pipefit.store.outputs import StoredOutputsWriter

        return StoredOutputsWriter(backend, name, set_name)

    def commit_validation(
        self,
        collection: str,
        name: str,
        checkpoint: CheckpointInfo,
        validation: Validation,
        outputs: str | None = None,
    ) -> None:
        """Publish the validation of a committed checkpoint; replaces the one made in training.

        Args:
            collection: the collection.
            name: the run.
            checkpoint: what was validated.
            validation: its step is the checkpoint's.
            outputs: what `OutputsWriter.close` returned.

        Raises:
            NotFound: the checkpoint is not, or no longer, part of the run.
            StoreError: the outputs are of another set or have another number of examples, or a
                value cannot be kept.
        """
        from pipefit.store.columns import single

        backend = self._backend(collection)
        key = {"run": name, "kind": VALIDATED, "name": validation.name, "step": checkpoint.step}
        record = {**key, "fence": checkpoint.fence, "outputs": outputs}
        record |= documents.validation_content(replace(validation, checkpoint=checkpoint.id))
        run = _existing(backend, name)
        if not documents.counts(run, record):
            raise NotFound(_gone(name, checkpoint))
        branch = documents.branch_of(run, checkpoint.fence)
        if validation.step != checkpoint.step:
            raise StoreError(
                f"validation {validation.name!r} says step {validation.step}, the checkpoint it "
                f"read says {checkpoint.step}"
            )
        if outputs is not None:
            _check_outputs(backend, name, outputs, validation)
        values = [single(value_name, value) for value_name, value in validation.values.items()]
        at = {"name": validation.name, "step": checkpoint.step, "branch": branch.get("branch")}
        before = backend.find_records(name, VALIDATED, at)
        if not backend.put_values({**record, **branch}, "values", values):
            raise NotFound(_gone(name, checkpoint))
        for old in before:
            if old["outputs"] not in (None, outputs):
                _remove_outputs(backend, name, old["outputs"])

    def put_artifact(
        self, collection: str, name: str, artifact: str, step: int, data: bytes
    ) -> str:
        """Store bytes (a report, a plot) for a run and publish them; the older one is removed.

        Returns:
            The id of the file.
        """
        backend = self._backend(collection)
        run = _existing(backend, name)
        stored = backend.find_records(name, ARTIFACT, {"name": artifact})
        before = [record for record in stored if documents.counts(run, record)]
        branch = documents.branch_of(run)
        files = backend.artifacts_of(name)
        origin = {"run": name, "step": step, "artifact": artifact, **documents.writing_process()}
        file = files.put(data, f"{name}/{step}/{artifact}", origin)
        key = {"run": name, "kind": ARTIFACT, "name": artifact, "step": step, "fence": 0}
        # This is the commit: from here on the record names the new file.
        backend.put({**key, **branch, "file": file.id, "size": file.size, "sha256": file.sha256})
        place = (step, branch.get("branch"))
        backend.drop(r for r in before if (r["step"], r.get("branch")) != place)
        files.remove([record["file"] for record in before])
        return file.id

    def write_summary(
        self, collection: str, name: str, step: int, summary: Mapping[str, Any]
    ) -> None:
        """Store Aggregate's record of a step (plain values).

        Raises:
            NotFound: the run has not committed that step.
        """
        backend = self._backend(collection)
        run = _existing(backend, name)
        fence = records.fence_at(run["line"], step)
        if fence is None or step > documents.committed_step(run):
            raise NotFound(f"run {name!r} has not committed step {step}: it cannot have a summary")
        key = {"run": name, "kind": SUMMARY, "name": "", "step": step, "fence": fence}
        branch = documents.branch_of(run, fence)
        backend.put({**key, **branch, "summary": plain(summary)})

    def summary(self, collection: str, name: str, step: int) -> dict[str, Any] | None:
        """Aggregate's record of a step, if its checkpoint counts."""
        for run, stored in self._backend(collection).records_of_runs([name], SUMMARY, [step]):
            for record in stored:
                if documents.counts(run, record):
                    told: dict[str, Any] = of_python(record["summary"])
                    return told
        return None


def _existing(backend: Backend, name: str) -> Document:
    # Names become parts of paths: one that could lead elsewhere is none, whoever has stored it.
    run = backend.find_run(name) if _is_run_name(name) else None
    if run is not None:
        return run
    some = backend.run_names(_NAMES_COMPARED)
    nearest = difflib.get_close_matches(str(name), some, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "`pipefit runs` lists those there are"
    raise NotFound(f"there is no run {name!r} in collection {backend.collection!r}: {hint}")


def _is_run_name(name: str) -> bool:
    try:
        return bool(records.check_run_name(name))
    except ValueError:
        return False


def _gone(name: str, checkpoint: CheckpointInfo) -> str:
    return (
        f"the checkpoint of step {checkpoint.step} (attempt {checkpoint.fence}) is not, or no "
        f"longer, part of run {name!r}: validate one that checkpoints() lists"
    )


def _check_outputs(backend: Backend, name: str, outputs: str, validation: Validation) -> None:
    listed = backend.find_records(name, OUTPUTS, {"name": outputs, "set": validation.name})
    if not listed:
        raise StoreError(
            f"outputs {outputs!r} of set {validation.name!r} of run {name!r} are not stored: give "
            "what OutputsWriter.close() returned"
        )
    if listed[0]["examples"] != validation.examples:
        raise StoreError(
            f"outputs of set {validation.name!r} have {listed[0]['examples']} examples, the "
            f"validation {validation.examples}: add every batch to the writer, once"
        )


def _remove_outputs(backend: Backend, name: str, outputs: str) -> None:
    for record in backend.find_records(name, OUTPUTS, {"name": outputs}):
        backend.drop([record])
        backend.artifacts_of(name).remove([shard["id"] for shard in record["shards"]])
