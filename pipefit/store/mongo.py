"""The store on MongoDB."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from pipefit import records, settings
from pipefit.errors import NotFound, StoreError
from pipefit.records import CheckpointInfo, Lease, Owner, RunOrder, RunStatus, Validation
from pipefit.store import documents
from pipefit.store.client import Connection, Document, guarded
from pipefit.store.documents import ARTIFACT, CHECKPOINT, OUTPUTS, SUMMARY, VALIDATED
from pipefit.store.identity import accepted_changes
from pipefit.store.layout import Layout
from pipefit.store.leases import Claim, Leases
from pipefit.store.reader import MongoRunReader
from pipefit.store.rewinding import Rewinds
from pipefit.store.schema import Schema
from pipefit.store.writer import MongoRunWriter

if TYPE_CHECKING:
    import pandas as pd

    from pipefit.store.base import Store
    from pipefit.store.outputs import MongoOutputsWriter

_NAMES_COMPARED = 10_000


def open_store(uri: str | None = None) -> Store:
    """The store in the MongoDB database of a URI; nothing is connected yet.

    Args:
        uri: mongodb://USER:PASSWORD@HOST:PORT/DATABASE, or "embedded" for Pipefit's own server on
            this machine, which is started if it does not run; None: what the settings say.

    Raises:
        StoreError: the URI cannot be read.
        ServerError: the embedded server cannot be started.
    """
    address = settings.mongo_uri() if uri is None else uri
    if address == settings.EMBEDDED:
        from pipefit.store import server

        address = server.ensure_running()
    return MongoStore(address)


class MongoStore:
    """`pipefit.store.base.Store` on MongoDB; where things are is told in `store.documents`.

    Args:
        uri: a MongoDB URI; its path names the database, default "pipefit".
    """

    def __init__(self, uri: str) -> None:
        self.connection = Connection(uri)

    def __repr__(self) -> str:
        return f"<MongoStore {self.describe()}>"

    def describe(self) -> str:
        """The address without user and password."""
        return self.connection.shown

    def run(self, name: str, collection: str) -> MongoRunReader:
        """A run. Raises `NotFound`, naming the nearest run of the collection."""
        layout = self._layout(collection)
        if layout.find_run(name) is None:
            raise NotFound(self._no_such_run(layout, name))
        return MongoRunReader(layout, name)

    def runs(self, collection: str | None = None) -> pd.DataFrame:
        """One row per run.

        Columns collection, name, state, step, steps, attempts, updated, reason, best.
        """
        wanted = self.collections() if collection is None else [collection]
        from pipefit.store import frames

        return frames.runs_frame(
            _row(run, name) for name in wanted for run in self._layout(name).find_runs({})
        )

    @guarded
    def collections(self) -> list[str]:
        """Collections that have runs."""
        database = self.connection.database
        names = database.list_collection_names(filter={"name": {"$regex": r"^[\w-]{1,64}\.runs$"}})
        return sorted(
            name.removesuffix(".runs")
            for name in names
            if database[name].find_one({}, {"_id": 1}) is not None
        )

    def statuses(self, collection: str, names: Sequence[str]) -> dict[str, RunStatus]:
        """Status of every run of these names that exists; one query."""
        found = self._layout(collection).find_runs({"_id": {"$in": list(names)}})
        return {run["_id"]: documents.status_of(run, collection) for run in found}

    def committed(
        self, collection: str, wanted: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointInfo]:
        """The committed checkpoints among the wanted (run, step); at most two queries."""
        condition = {"step": {"$in": list({step for _, step in wanted})}}
        names = {name for name, _ in wanted}
        found = self._find_of_runs(collection, names, CHECKPOINT, condition)
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
        condition = {
            "name": {"$in": list({name for _, name, _ in wanted})},
            "step": {"$in": list({step for _, _, step in wanted})},
        }
        names = {run for run, _, _ in wanted}
        validations = {
            (run["_id"], record["name"], record["step"]): documents.validation_of(record)
            for run, stored in self._find_of_runs(collection, names, VALIDATED, condition)
            for record in stored
            if documents.counts(run, record)
        }
        return {key: validations[key] for key in wanted if key in validations}

    def lease(self, collection: str, name: str) -> Lease | None:
        """The lease of a run if it is held and its owner is not known to be dead."""
        run = self._layout(collection).find_run(name)
        return None if run is None else documents.lease_of(run)

    def check_identity(self, order: RunOrder) -> None:
        """Raise `IdentityMismatch` if the stored run of this name is another experiment."""
        run = self._layout(order.collection).find_run(order.name, light=False)
        if run is not None:
            accepted_changes(run, order)

    def acquire(self, order: RunOrder, owner: Owner, ttl: float) -> MongoRunWriter:
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
        layout = self._layout(order.collection)
        try:
            records.check_run_name(order.name)
        except ValueError as error:
            raise StoreError(str(error)) from None
        if ttl <= 0:
            raise StoreError(f"ttl {ttl} of run {order.name!r}: a lease lasts more than 0 seconds")
        Schema(layout).update()
        leases = Leases(layout)
        fence = leases.acquire(Claim(order, owner, ttl, token=ObjectId()))
        return MongoRunWriter(leases, order.name, fence, ttl)

    def rewind(self, collection: str, name: str, step: int) -> CheckpointInfo:
        """Make a committed checkpoint the newest of its run.

        Raises:
            RunOwned: somebody owns the run.
            NotFound: it keeps no checkpoint of that step; names those that it keeps.
        """
        layout = self._layout(collection)
        Schema(layout).update()
        checkpoint = Rewinds(layout).rewind(name, step)
        if checkpoint is None:
            raise NotFound(self._no_such_run(layout, name))
        return checkpoint

    def outputs_writer(self, collection: str, name: str, set_name: str) -> MongoOutputsWriter:
        """A writer for per-example outputs of one validation."""
        layout = self._layout(collection)
        self._existing(layout, name)
        from pipefit.store.outputs import MongoOutputsWriter

        return MongoOutputsWriter(layout, name, set_name)

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
        from pipefit.store.values import put_values

        layout = self._layout(collection)
        key = {"run": name, "kind": VALIDATED, "name": validation.name, "step": checkpoint.step}
        record = {**key, "fence": checkpoint.fence, "outputs": outputs}
        record |= documents.validation_content(replace(validation, checkpoint=checkpoint.id))
        run = self._existing(layout, name)
        if not documents.counts(run, record):
            raise NotFound(_gone(name, checkpoint))
        branch = documents.branch_of(run, checkpoint.fence)
        if validation.step != checkpoint.step:
            raise StoreError(
                f"validation {validation.name!r} says step {validation.step}, the checkpoint it "
                f"read says {checkpoint.step}"
            )
        if outputs is not None:
            _check_outputs(layout, name, outputs, validation)
        values = [single(value_name, value) for value_name, value in validation.values.items()]
        at = {"name": validation.name, "step": checkpoint.step, "branch": branch.get("branch")}
        before = layout.find_records(name, VALIDATED, at)
        if not put_values(layout, {**record, **branch}, "values", values):
            raise NotFound(_gone(name, checkpoint))
        for old in before:
            if old["outputs"] not in (None, outputs):
                _remove_outputs(layout, name, old["outputs"])

    def put_artifact(
        self, collection: str, name: str, artifact: str, step: int, data: bytes
    ) -> str:
        """Store bytes (a report, a plot) for a run and publish them; the older one is removed.

        Returns:
            The id of the file.
        """
        layout = self._layout(collection)
        run = self._existing(layout, name)
        stored = layout.find_records(name, ARTIFACT, {"name": artifact})
        before = [record for record in stored if documents.counts(run, record)]
        branch = documents.branch_of(run)
        origin = {"run": name, "step": step, "artifact": artifact}
        file = layout.artifacts.put(data, f"{name}/{step}/{artifact}", origin)
        key = {"run": name, "kind": ARTIFACT, "name": artifact, "step": step, "fence": 0}
        # This is the commit: from here on the record names the new file.
        layout.put({**key, **branch, "file": file.id, "size": file.size, "sha256": file.sha256})
        older = {"_id": {"$in": [record["_id"] for record in before]}}
        layout.drop_records({**older, "file": {"$ne": file.id}})
        layout.artifacts.remove([record["file"] for record in before])
        return file.id

    def write_summary(
        self, collection: str, name: str, step: int, summary: Mapping[str, Any]
    ) -> None:
        """Store Aggregate's record of a step (plain values).

        Raises:
            NotFound: the run has not committed that step.
        """
        layout = self._layout(collection)
        run = self._existing(layout, name)
        fence = records.fence_at(run["line"], step)
        if fence is None or step > documents.committed_step(run):
            raise NotFound(f"run {name!r} has not committed step {step}: it cannot have a summary")
        key = {"run": name, "kind": SUMMARY, "name": "", "step": step, "fence": fence}
        branch = documents.branch_of(run, fence)
        layout.put({**key, **branch, "summary": documents.plain(summary)})

    def summary(self, collection: str, name: str, step: int) -> dict[str, Any] | None:
        """Aggregate's record of a step, if its checkpoint counts."""
        found = self._find_of_runs(collection, {name}, SUMMARY, {"step": step})
        for run, stored in found:
            for record in stored:
                if documents.counts(run, record):
                    return dict(record["summary"])
        return None

    def _layout(self, collection: str) -> Layout:
        layout = Layout(self.connection, collection)
        Schema(layout).check()
        return layout

    def _existing(self, layout: Layout, name: str) -> Document:
        run = layout.find_run(name)
        if run is None:
            raise NotFound(self._no_such_run(layout, name))
        return run

    @guarded
    def _no_such_run(self, layout: Layout, name: str) -> str:
        some = layout.runs.find({}, {"_id": 1}).limit(_NAMES_COMPARED)
        nearest = difflib.get_close_matches(name, [run["_id"] for run in some], n=1, cutoff=0.4)
        hint = (
            f"did you mean {nearest[0]!r}?" if nearest else "`pipefit runs` lists those there are"
        )
        return f"there is no run {name!r} in collection {layout.collection!r}: {hint}"

    @guarded
    def _find_of_runs(
        self, collection: str, names: Iterable[str], kind: str, condition: Mapping[str, Any]
    ) -> list[tuple[Document, list[Document]]]:
        """Runs of these names, each with its records that fulfil the condition; two queries."""
        layout = self._layout(collection)
        runs = layout.find_runs({"_id": {"$in": list(names)}})
        stored: dict[str, list[Document]] = {run["_id"]: [] for run in runs}
        wanted = {"run": {"$in": list(stored)}, "kind": kind, **condition}
        for record in layout.records.find(wanted):
            stored[record["run"]].append(record)
        return [(run, stored[run["_id"]]) for run in runs]


def _row(run: Document, collection: str) -> Document:
    status = documents.status_of(run, collection)
    return {
        "collection": collection,
        "name": status.name,
        "state": str(status.state),
        "step": status.step,
        "steps": run["steps"],
        "attempts": run["fence"] - len(run.get("closed", ())),
        "updated": run["updated"],
        "reason": status.reason or (status.ended and status.ended.reason),
        "best": run["best"] and run["best"]["value"],
    }


def _gone(name: str, checkpoint: CheckpointInfo) -> str:
    return (
        f"the checkpoint of step {checkpoint.step} (attempt {checkpoint.fence}) is not, or no "
        f"longer, part of run {name!r}: validate one that checkpoints() lists"
    )


def _check_outputs(layout: Layout, name: str, outputs: str, validation: Validation) -> None:
    listed = layout.find_records(name, OUTPUTS, {"name": outputs, "set": validation.name})
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


def _remove_outputs(layout: Layout, name: str, outputs: str) -> None:
    for record in layout.find_records(name, OUTPUTS, {"name": outputs}):
        layout.drop_records({"_id": record["_id"]})
        layout.artifacts.remove([shard["id"] for shard in record["shards"]])
