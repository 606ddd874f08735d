"""The owner's handle on a run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pymongo import UpdateOne

from pipefit import records
from pipefit.errors import LeaseLost, NotFound, StoreUnavailable
from pipefit.records import (
    NOTHING,
    Best,
    CheckpointInfo,
    Ended,
    MetricBlock,
    RunState,
    Validation,
)
from pipefit.store import descriptions, documents
from pipefit.store.backend import Document, Files, StoredFile
from pipefit.store.client import guarded
from pipefit.store.documents import CHECKPOINT, METRICS, VALIDATION
from pipefit.store.leases import Leases, literals, noted
from pipefit.store.ownership import Holder, Ownership, has_begun, not_committed_text
from pipefit.store.plain import plain

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.columns import Packed

# More blocks of values than any handle writes.
_FAR = 2**40
_LOG_TAIL = 64_000  # characters kept of an attempt's log


class MongoRunWriter:
    """`pipefit.store.base.RunWriter` on MongoDB.

    Every write begins with a conditional update of the run's document, which asks whether `fence`
    still owns the run and prolongs the lease:

        commit:  ask; upload the file and read it back; write its record; publish

    Args:
        leases: of the run's collection.
        name: the run.
        holder: this ownership.
        ttl: seconds for which the lease is prolonged.
    """

    def __init__(self, leases: Leases, name: str, holder: Holder, ttl: float) -> None:
        self.connection = leases.connection
        self.fence = holder.fence
        self.ttl = ttl
        self._leases = leases
        self._layout = leases.layout
        self._name = name
        self._holder = holder
        self._own = Ownership(name, holder.fence)
        self._closed: Document = {}
        self._written = itertools.count()
        self._notes = descriptions.Notes()
        # Between a checkpoint's record and its publication nobody may tidy up.
        self._publishing = threading.Lock()

    def __repr__(self) -> str:
        return f"<MongoRunWriter of {self._name!r}, attempt {self.fence}>"

    def go_on(self) -> Self:
        """Continue what another handle has begun of this attempt."""
        run = self._run(light=False)
        self._own.go_on(run)
        self._closed = {"closed": run.get("closed", [])}
        self._notes = descriptions.Notes(run["history"], self.fence)
        # Nobody knows how far the other handle has counted; this goes on behind that.
        self._written = itertools.count(_FAR)
        return self

    def checkpoints(self) -> list[CheckpointInfo]:
        """Committed checkpoints, newest step first."""
        run = self._run()
        found = documents.checkpoints_of(run, self._layout.find_records(self._name, CHECKPOINT))
        return [found[step] for step in sorted(found, reverse=True)]

    def read_checkpoint(
        self, checkpoint: CheckpointInfo, include: str | None = None
    ) -> dict[str, np.ndarray]:
        """The tensors of a checkpoint by name, verified; see `RunReader.weights`."""
        file = documents.checkpoint_file(checkpoint, self._name)
        return self._layout.checkpoints.read_tensors(file, include)

    def best(self) -> Best | None:
        """The best validation so far, as of the newest committed checkpoint."""
        return documents.best_of(self._run()["best"])

    def begin(self, start: int) -> None:
        """Continue after the committed step `start` (-1: from nothing); the state is RUNNING.

        Raises:
            NotFound: no checkpoint of that step is committed.
            StoreError: this attempt has begun at another step.
        """
        self._update()
        run = self._run()
        if not has_begun(run, self.fence):
            self._begin(run, start)
            run = self._run()
        self._own.continue_as(run, start)
        self._closed = {"closed": run.get("closed", [])}  # nobody rewinds a run that is owned

    def _begin(self, run: Document, start: int) -> None:
        committed: Document | None = None
        best: Document | None = None
        if start != NOTHING:
            record = self._continued(start)
            committed = {"step": start, "id": record["name"]}
            best = record["best"]
        line = records.extend_line(run["line"], self.fence, start)
        changes = {
            "line": [list(entry) for entry in line],
            "committed": committed,
            "best": best,
            "state": str(RunState.RUNNING),
            "reason": None,
            "ended": None,
            "attempt.start": start,
        }
        self._update(literals(changes))
        self._leases.change_attempt(self._name, self.fence, literals({"start": start}))

    def _continued(self, start: int) -> Document:
        """The record of the checkpoint to continue from."""
        stored = self._layout.find_records(self._name, CHECKPOINT, {"step": start})
        chosen = documents.checkpoints_of(self._run(), stored).get(start)
        if chosen is None:
            raise NotFound(not_committed_text(self._name, start))
        return next(record for record in stored if record["name"] == chosen.id)

    def renew(self, progress: Mapping[str, Any] | None = None) -> None:
        """Prolong the lease; `progress` (step, loss, rate, ...) is what `pipefit show` displays."""
        self._update({} if progress is None else literals({"progress": plain(progress)}))

    def write_metrics(self, block: MetricBlock) -> None:
        """Store values per step; the same first step again replaces.

        Raises:
            StoreError: a column cannot be kept, or the columns are not of one length, or the steps
                are not after the one the attempt began with; nothing is written.
        """
        if not block.columns:
            return
        self._own.check_metrics(block.first)
        from pipefit.store import columns

        self._update()
        for piece in columns.split_block(block):
            # `written` orders blocks of one attempt that overlap: the later one counts.
            content = {"steps": piece.steps, "written": next(self._written)}
            record = self._record(METRICS, "", piece.first, content)
            self._put_values(record, "columns", piece.columns)

    def write_validation(self, validation: Validation) -> None:
        """Store a validation made in training; the same set and step again replaces.

        Raises:
            StoreError: a value cannot be kept, or two have one name; nothing is written.
        """
        content = documents.validation_content(validation)
        record = self._record(VALIDATION, validation.name, validation.step, content)
        from pipefit.store.columns import single

        values = [single(name, value) for name, value in validation.values.items()]
        self._update()
        self._put_values(record, "values", values)

    def note(self, event: Mapping[str, Any]) -> None:
        """Append what happened to the run's history, with the time and the attempt.

        Raises:
            StoreError: the event is not plain data.
        """
        with self._notes.added(event) as entry:
            self._update({"history": noted(entry)})

    def describe(self, model: Mapping[str, Any], artifacts: Mapping[str, bytes]) -> None:
        """Store what the model and the program are; again replaces what this attempt has said.

        Texts of earlier attempts that differ stay, as NAME@FENCE.

        Args:
            model: a few plain values for the run's document.
            artifacts: by name longer texts.

        Raises:
            StoreError: `model` is not plain data, or too long for a document.
        """
        text = descriptions.model_text(model)
        self._update()
        run = self._run(light=False)
        before = descriptions.described_files(run)
        bucket = self._layout.artifacts
        files = descriptions.put_artifacts(bucket, artifacts, self._name, self.fence)
        try:
            # From here on all of it is what the run's document names.
            told = descriptions.description(text, files, self.fence, run.get("described"))
            self._update(literals({"described": told}))
        except LeaseLost:
            self._tidy(bucket, files)
            raise
        named = {entry["file"] for entry in told["artifacts"]}
        self._tidy(bucket, {n: file for n, file in before.items() if file.id not in named})

    def commit(
        self,
        step: int,
        tensors: Mapping[str, np.ndarray],
        kinds: frozenset[str],
        best: Best | None = None,
    ) -> CheckpointInfo:
        """Store a checkpoint and publish it; the newest committed step may be committed again.

        Args:
            step: not before the newest committed step.
            tensors: the whole state by name.
            kinds: see `CheckpointInfo`.
            best: the best validation so far; None: as before.

        Raises:
            LeaseLost: another process owns the run; nothing is published.
            StoreError: the step is too early, or a tensor cannot be stored.
        """
        self._own.check_commit(step)
        origin = {"run": self._name, "step": step, "fence": self._own.fence_at(step)}
        self._update()  # before the upload: it would be long and in vain
        filename = f"{self._name}/{step}.safetensors"
        file = self._layout.checkpoints.put_tensors(tensors, filename, origin)
        with self._publishing:
            return self._publish(step, file, kinds, best or self._own.best)

    def _publish(
        self, step: int, file: StoredFile, kinds: frozenset[str], best: Best | None
    ) -> CheckpointInfo:
        content = {
            "size": file.size,
            "sha256": file.sha256,
            "kinds": sorted(kinds),
            "best": documents.best_document(best),
        }
        committed = {"step": step, "id": file.id}
        try:
            self._put(self._record(CHECKPOINT, file.id, step, content))
            # This update is the commit: before it no reader sees anything, after it all is there.
            self._update(literals({"committed": committed, "best": content["best"]}))
        except LeaseLost:
            self._tidy_checkpoints([file.id])
            raise
        self._own.committed, self._own.best = step, best
        stored = self._layout.find_records(self._name, CHECKPOINT, {"step": step})
        self._tidy_checkpoints([r["name"] for r in stored if self._is_replaced(r, file.id)])
        return next(documents.checkpoint_of(r) for r in stored if r["name"] == file.id)

    def _is_replaced(self, record: Document, published: str) -> bool:
        return record["name"] != published and not documents.in_closed_line(self._closed, record)

    def retain(self, kept: Mapping[str, frozenset[str]]) -> list[CheckpointInfo]:
        """Keep only these checkpoint ids (with their new kinds); return those removed.

        The newest committed checkpoint is never removed, nor are those that a rewind took out of
        the run. Unfinished commits of earlier attempts are removed as well.

        Raises:
            NotFound: an id in `kept` is no checkpoint of the run; nothing is changed.
        """
        with self._publishing:
            self._update()
            stored = self._layout.find_records(self._name, CHECKPOINT)
            run = self._run()
            ids = {record["name"] for record in stored}
            if not kept.keys() <= ids:
                raise NotFound(
                    f"run {self._name!r} has no checkpoint {', '.join(sorted(kept.keys() - ids))}"
                )
            stays = {run["committed"]["id"]} if run["committed"] else set()
            stays |= {r["name"] for r in stored if documents.in_closed_line(run, r)}
            self._set_kinds(kept)
            removed = ids - kept.keys() - stays
            self._remove(list(removed))
        committed = documents.checkpoints_of(run, stored)
        return [info for info in committed.values() if info.id in removed]

    def end(
        self,
        state: RunState,
        reason: str | None,
        step: int | None,
        log_tail: str,
        ended: Ended | None = None,
    ) -> None:
        """Close the attempt, set the run's state and give the lease back; again does nothing.

        Args:
            state: what the run is now.
            reason: why it failed or was interrupted.
            step: the last step that was trained.
            log_tail: the end of the attempt's log, for people.
            ended: how the run is complete before its last step.
        """
        outcome = {"state": str(state), "reason": descriptions.shortened(reason)}
        closed = {"ended": "$$NOW", **literals({**outcome, "reached": step})}
        tail = literals({"log_tail": log_tail[-_LOG_TAIL:]})
        try:
            self._update()
            self._leases.change_attempt(self._name, self.fence, {**closed, **tail})
            in_run = {f"attempt.{key}": value for key, value in closed.items()}
            of_run = literals({**outcome, "ended": documents.ended_document(ended)})
            self._leases.update(self._name, self._holder, None, {**in_run, **of_run})
        except LeaseLost:
            run = self._run()
            if run["fence"] != self.fence or run["attempt"]["ended"] is None:
                raise

    def _run(self, *, light: bool = True) -> Document:
        run = self._layout.find_run(self._name, light=light)
        if run is None:
            raise LeaseLost(f"run {self._name!r} no longer exists: it was deleted")
        return run

    def _update(self, changes: Mapping[str, Any] | None = None) -> None:
        self._leases.update(self._name, self._holder, self.ttl, changes)

    def _record(self, kind: str, name: str, step: int, content: Mapping[str, Any]) -> Document:
        fence = self._own.fence_at(step)
        key = {"run": self._name, "kind": kind, "name": name, "step": step, "fence": fence}
        return {**key, **documents.branch_of(self._closed, fence), **content}

    def _put(self, record: Document) -> None:
        if not self._layout.put(record):
            raise self._succeeded(record)

    def _put_values(self, record: Document, field: str, columns: Iterable[Packed]) -> None:
        if not self._layout.put_values(record, field, columns):
            raise self._succeeded(record)

    def _succeeded(self, record: Document) -> LeaseLost:
        return LeaseLost(
            f"a newer attempt than {self.fence} of run {self._name!r} wrote {record['kind']} of "
            f"step {record['step']} already: this process no longer owns the run"
        )

    def _remove(self, ids: list[str]) -> None:
        """Remove checkpoints, records first, so that no record names a file that is gone."""
        if ids:
            key = {"run": self._name, "kind": CHECKPOINT}
            self._layout.drop_records({**key, "name": {"$in": ids}})
            self._layout.checkpoints.remove(ids)

    def _tidy_checkpoints(self, ids: list[str]) -> None:
        """Remove checkpoints if the server can be reached: they are garbage, so it may wait."""
        with suppress(StoreUnavailable):
            self._remove(ids)

    def _tidy(self, bucket: Files, files: Mapping[str, StoredFile]) -> None:
        """The same for other files."""
        with suppress(StoreUnavailable):
            bucket.remove([file.id for file in files.values()])

    @guarded
    def _set_kinds(self, kept: Mapping[str, frozenset[str]]) -> None:
        key = {"run": self._name, "kind": CHECKPOINT}
        changes = [
            UpdateOne({**key, "name": name}, {"$set": {"kinds": sorted(kinds)}})
            for name, kinds in kept.items()
        ]
        if changes:
            self._layout.records.bulk_write(changes, ordered=False)
