"""Taking a run back to an earlier checkpoint: one change of its document.

    read the run and its checkpoints
    change the document if nobody owns the run and its fence is still the same     # the commit

What came after that step stays where it is and counts in a closed line: see `store.documents`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipefit import records
from pipefit.errors import NotFound, RunOwned, StoreError
from pipefit.records import CheckpointInfo, ClosedLine, RunState
from pipefit.store import documents
from pipefit.store.backend import Backend, Document
from pipefit.store.documents import CHECKPOINT
from pipefit.store.ownership import owned_text

# Every repetition means that another process took the run in between.
_TRIES = 100


def rewind(backend: Backend, name: str, step: int) -> CheckpointInfo:
    """Make a committed checkpoint the newest of its run; see `Store.rewind`."""
    for _ in range(_TRIES):
        run = _unowned(backend, name)
        stored = backend.find_records(name, CHECKPOINT)
        kept = documents.checkpoints_of(run, stored)
        if step not in kept:
            raise NotFound(_not_kept(name, step, list(kept)))
        if _is_done(run, step):  # the answer was lost with the connection
            return kept[step]
        record = next(r for r in stored if r["name"] == kept[step].id)
        if backend.change_unowned(run, *_changes(run, record)):
            return kept[step]
    raise StoreError(f"run {name!r} changes its owner all the time: stop those who want it")


def drop_line(backend: Backend, name: str, number: int) -> ClosedLine:
    """Let a closed line of a run count no more; see `Store.drop_line`."""
    for _ in range(_TRIES):
        run = _unowned(backend, name)
        documents.check_line(run, number)
        told = documents.closed_line_of(run, number, backend.find_records(name, CHECKPOINT))
        event = {"fence": run["fence"], "event": "drop line", "line": number}
        entries = {"dropped": {"line": number}, "history": event}
        if backend.change_unowned(run, {"lease": None}, entries):
            return told
    raise StoreError(f"run {name!r} changes its owner all the time: stop those who want it")


def _unowned(backend: Backend, name: str) -> Document:
    run = backend.find_run(name)
    if run is None:
        raise NotFound(f"run {name!r} of collection {backend.collection!r} was deleted")
    if documents.lease_of(run) is not None:
        raise RunOwned(owned_text(run, backend.collection))
    return run


def _is_done(run: Mapping[str, Any], step: int) -> bool:
    """Whether the last thing that happened to the run is that it was rewound to this step."""
    closed = run.get("closed", ())
    return bool(closed) and (closed[-1]["fence"], closed[-1]["start"]) == (run["fence"], step)


def _changes(run: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[Document, Document]:
    """The fields of the run that is rewound, and what is appended to others."""
    step, fence = record["step"], run["fence"] + 1
    before = {key: run.get(key) for key in ("line", "committed", "best", "ended")}
    closed = {"fence": fence, "start": step, **before}
    told = {"event": "rewind", "from": documents.committed_step(run), "to": step}
    finished = step >= run["steps"]
    values = {
        "fence": fence,
        "line": [list(entry) for entry in records.extend_line(run["line"], fence, step)],
        "committed": {"step": step, "id": record["name"]},
        "best": record["best"],
        "state": str(RunState.FINISHED if finished else RunState.INTERRUPTED),
        "reason": None if finished else f"rewound to step {step}",
        "ended": None,
        "progress": None,
        "lease": None,
    }
    return values, {"closed": closed, "history": {"fence": fence, **told}}


def _not_kept(name: str, step: int, kept: list[int]) -> str:
    steps = ", ".join(map(str, sorted(kept))) or "none"
    return (
        f"run {name!r} keeps no checkpoint of step {step}, so it cannot be rewound to it: choose "
        f"one of those that are kept: {steps}"
    )
