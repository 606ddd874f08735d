"""The owner's handle on a run in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

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
from pipefit.store.backend import Document, StoredFile
from pipefit.store.documents import CHECKPOINT, METRICS, VALIDATION
from pipefit.store.local.columns import with_columns
from pipefit.store.local.disk import guarded
from pipefit.store.local.leases import LocalLeases, nothing
from pipefit.store.local.logs import LogWriter
from pipefit.store.local.runs import Draft
from pipefit.store.local.tidying import Leftovers, needed_logs
from pipefit.store.local.versions import Version
from pipefit.store.ownership import Holder, Ownership, has_begun, not_committed_text
from pipefit.store.plain import plain

if TYPE_CHECKING:
    import numpy as np

_LOG_TAIL = 64_000  # characters kept of an attempt's log


class LocalRunWriter:
    """`pipefit.store.base.RunWriter` in a folder.

    Every write is done beside what counts, and is durable, before one change of the run's document,
    which is refused to all but the owner, makes it count and prolongs the lease:

        commit:  write the file, read it back; list it with the others; publish

    Args:
        leases: of the run.
        holder: this ownership.
        ttl: seconds for which the lease is prolonged.
    """

    def __init__(self, leases: LocalLeases, holder: Holder, ttl: float) -> None:
        self.fence = holder.fence
        self.ttl = ttl
        self._leases = leases
        self._files = leases.files
        self._name = leases.name
        self._holder = holder
        self._own = Ownership(leases.name, holder.fence)
        self._closed: Document = {}
        self._logs = LogWriter(self._files.place.logs, holder.fence)
        self._notes = descriptions.Notes()
        # Two threads would only refuse each other.
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        return f"<LocalRunWriter of {self._name!r}, attempt {self.fence}>"

    @property
    def shown(self) -> str:
        """The folder of the store, for people."""
        return self._leases.shown

    def go_on(self) -> Self:
        """Continue what another handle has begun of this attempt."""
        version = self._leases.owned(self._holder)
        self._own.go_on({**version.document, "_id": self._name})
        self._closed = {"closed": version.document.get("closed", [])}
        self._notes = descriptions.Notes(self._files.story(version)["history"], self.fence)
        return self

    @guarded
    def checkpoints(self) -> list[CheckpointInfo]:
        """Committed checkpoints, newest step first."""

        def look(version: Version) -> dict[int, CheckpointInfo]:
            return documents.checkpoints_of(version.document, self._files.checkpoints(version))

        found = self._files.read(look) or {}
        return [found[step] for step in sorted(found, reverse=True)]

    def read_checkpoint(
        self, checkpoint: CheckpointInfo, include: str | None = None
    ) -> dict[str, np.ndarray]:
        """The tensors of a checkpoint by name, verified; see `RunReader.weights`."""
        file = documents.checkpoint_file(checkpoint, self._name)
        return self._leases.backend.checkpoints_of(self._name).read_tensors(file, include)

    @guarded
    def best(self) -> Best | None:
        """The best validation so far, as of the newest committed checkpoint."""
        version = self._files.newest()
        return documents.best_of(version.document["best"]) if version else None

    def begin(self, start: int) -> None:
        """Continue after the committed step `start` (-1: from nothing); the state is RUNNING.

        Raises:
            NotFound: no checkpoint of that step is committed.
            StoreError: this attempt has begun at another step.
        """
        with Leftovers(self._files) as leftovers:
            version = self._change(partial(self._begin, start))
            leftovers.remove(version)
        self._own.continue_as(version.document, start)
        self._closed = {"closed": version.document.get("closed", [])}

    def _begin(self, start: int, draft: Draft, version: Version) -> None:
        document = draft.document
        if has_begun(document, self.fence):
            return
        committed, best = None, None
        if start != NOTHING:
            chosen = self._continued(start, version)
            committed, best = {"step": start, "id": chosen["name"]}, chosen["best"]
        line = records.extend_line(document["line"], self.fence, start)
        document |= {
            "line": [list(entry) for entry in line],
            "committed": committed,
            "best": best,
            "state": str(RunState.RUNNING),
            "reason": None,
            "ended": None,
        }
        document["attempt"]["start"] = start
        document["inside"]["logs"] = needed_logs(self._files, document)

    def _continued(self, start: int, version: Version) -> Document:
        """The record of the checkpoint to continue from."""
        stored = self._files.checkpoints(version)
        chosen = documents.checkpoints_of(version.document, stored).get(start)
        if chosen is None:
            raise NotFound(not_committed_text(self._name, start))
        return next(record for record in stored if record["name"] == chosen.id)

    def renew(self, progress: Mapping[str, Any] | None = None) -> None:
        """Prolong the lease; `progress` (step, loss, rate, ...) is what `pipefit show` displays."""
        shown = {} if progress is None else {"progress": plain(progress)}
        self._change(lambda draft, version: draft.document.update(shown))

    def write_metrics(self, block: MetricBlock) -> None:
        """Store values per step; the same first step again replaces.

        Raises:
            StoreError: a column cannot be kept, or the columns are not of one length, or the steps
                are not after the one the attempt began with; nothing is written.
        """
        if not block.columns:
            return
        self._own.check_metrics(block.first)
        from pipefit.store.columns import split_block

        def pieces() -> Iterator[bytes]:
            for piece in split_block(block):
                record = self._record(METRICS, "", piece.first, {"steps": piece.steps})
                yield with_columns(record, "columns", piece.columns)

        self._append(METRICS, pieces)

    def write_validation(self, validation: Validation) -> None:
        """Store a validation made in training; the same set and step again replaces.

        Raises:
            StoreError: a value cannot be kept, or two have one name; nothing is written.
        """
        content = documents.validation_content(validation)
        record = self._record(VALIDATION, validation.name, validation.step, content)
        from pipefit.store.columns import single

        values = [single(name, value) for name, value in validation.values.items()]
        self._append(VALIDATION, lambda: [with_columns(record, "values", values)])

    def _append(self, kind: str, written: Callable[[], Iterable[bytes]]) -> None:
        def add(draft: Draft, version: Version) -> None:
            self._logs.append(draft.document["inside"]["logs"], kind, written())

        self._change(add)

    def note(self, event: Mapping[str, Any]) -> None:
        """Append what happened to the run's history, with the time and the attempt.

        Raises:
            StoreError: the event is not plain data.
        """
        with self._notes.added(event) as said:
            entry = {"time": datetime.now(UTC), "fence": self.fence, **said}
            key = (self.fence, entry["number"])

            def add(draft: Draft, version: Version) -> None:
                history = draft.story["history"]
                others = [e for e in history if (e.get("fence"), e.get("number")) != key]
                draft.story["history"] = [*others, entry]

            self._change(add)

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
        self._leases.owned(self._holder)
        folder = self._leases.backend.artifacts_of(self._name)
        files = descriptions.put_artifacts(folder, artifacts, self._name, self.fence)
        before: list[str] = []

        def tell(draft: Draft, version: Version) -> None:
            old = draft.story["described"]
            told = descriptions.description(text, files, self.fence, old)
            named = {entry["file"] for entry in told["artifacts"]}
            before[:] = [e["file"] for e in (old or told)["artifacts"] if e["file"] not in named]
            draft.story["described"] = told

        self._change(tell, lambda: folder.remove(file.id for file in files.values()))
        folder.remove(before)

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
        self._leases.owned(self._holder)  # before the bytes: it would be long and in vain
        folder = self._leases.backend.checkpoints_of(self._name)
        try:
            file = folder.put_tensors(tensors, f"{step}.safetensors", origin)
        except StoreUnavailable:
            self._leases.owned(self._holder)  # a new owner has removed it
            raise
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
        record = self._record(CHECKPOINT, file.id, step, content)
        replaced: list[Document] = []

        def list_it(draft: Draft, version: Version) -> None:
            stored = self._files.checkpoints(version)
            replaced[:] = [r for r in stored if r["step"] == step and not self._is_closed(r)]
            draft.set_checkpoints([*(r for r in stored if r not in replaced), record])
            draft.document |= {
                "committed": {"step": step, "id": file.id},
                "best": content["best"],
            }

        folder = self._leases.backend.checkpoints_of(self._name)
        self._change(list_it, lambda: folder.remove([file.id]))
        self._own.committed, self._own.best = step, best
        self._remove(replaced)
        return documents.checkpoint_of(record)

    def _is_closed(self, record: Document) -> bool:
        return documents.in_closed_line(self._closed, record)

    def retain(self, kept: Mapping[str, frozenset[str]]) -> list[CheckpointInfo]:
        """Keep only these checkpoint ids (with their new kinds); return those removed.

        The newest committed checkpoint is never removed, nor are those that a rewind took out of
        the run.

        Raises:
            NotFound: an id in `kept` is no checkpoint of the run; nothing is changed.
        """
        removed: list[Document] = []
        gone: list[CheckpointInfo] = []

        def choose(draft: Draft, version: Version) -> None:
            stored = self._files.checkpoints(version)
            names = {record["name"] for record in stored}
            if not kept.keys() <= names:
                unknown = ", ".join(sorted(kept.keys() - names))
                raise NotFound(f"run {self._name!r} has no checkpoint {unknown}")
            run = version.document
            stays = {run["committed"]["id"]} if run["committed"] else set()
            stays |= {r["name"] for r in stored if documents.in_closed_line(run, r)} | kept.keys()
            removed[:] = [record for record in stored if record["name"] not in stays]
            infos = documents.checkpoints_of(run, stored).values()
            gone[:] = [info for info in infos if info.id not in stays]
            draft.set_checkpoints([_of_kinds(r, kept) for r in stored if r["name"] in stays])

        self._change(choose)
        self._remove(removed)
        return gone

    def _remove(self, checkpoints: Iterable[Document]) -> None:
        folder = self._leases.backend.checkpoints_of(self._name)
        folder.remove(record["name"] for record in checkpoints)

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

        def close(draft: Draft, version: Version) -> None:
            tail = draft.write_tail(log_tail[-_LOG_TAIL:]) if log_tail else None
            attempt = {"ended": datetime.now(UTC), **outcome, "reached": step, "tail": tail}
            draft.document["attempt"] |= attempt
            of_run = {**outcome, "ended": documents.ended_document(ended), "lease": None}
            draft.document |= of_run

        try:
            self._change(close)
        except LeaseLost:
            if not self._has_ended():
                raise

    @guarded
    def _has_ended(self) -> bool:
        version = self._files.newest()
        if version is None:
            return False
        attempt = version.document["attempt"]
        mine = version.document["fence"] == attempt["fence"] == self.fence
        return mine and attempt["ended"] is not None

    def _change(
        self, alter: Callable[[Draft, Version], Any], undo: Callable[[], None] = nothing
    ) -> Version:
        with self._one_at_a_time:
            return self._leases.change(self._holder, alter, undo)

    def _record(self, kind: str, name: str, step: int, content: Mapping[str, Any]) -> Document:
        fence = self._own.fence_at(step)
        key = {"run": self._name, "kind": kind, "name": name, "step": step, "fence": fence}
        created = {"created": datetime.now(UTC)}
        return {**key, **documents.branch_of(self._closed, fence), **created, **content}


def _of_kinds(record: Document, kept: Mapping[str, frozenset[str]]) -> Document:
    kinds = kept.get(record["name"])
    return record if kinds is None else {**record, "kinds": sorted(kinds)}
