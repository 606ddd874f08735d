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
from pipefit.records import CheckpointInfo, RunState
from pipefit.store import documents
from pipefit.store.client import Document, guarded
from pipefit.store.documents import CHECKPOINT
from pipefit.store.layout import Layout
from pipefit.store.leases import literals, owned, unless_owned

# Every repetition means that another process took the run in between.
_TRIES = 100


class Rewinds:
    """Rewinds the runs of one collection."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.connection = layout.connection

    @guarded
    def rewind(self, name: str, step: int) -> CheckpointInfo | None:
        """Make a committed checkpoint the newest of its run; see `Store.rewind`.

        Returns:
            The checkpoint; None if there is no such run.
        """
        for _ in range(_TRIES):
            run = self.layout.find_run(name)
            if run is None:
                return None
            if documents.lease_of(run) is not None:
                raise RunOwned(owned(run, self.layout.collection))
            stored = self.layout.find_records(name, CHECKPOINT)
            kept = documents.checkpoints_of(run, stored)
            if step not in kept:
                raise NotFound(_not_kept(name, step, list(kept)))
            if _is_done(run, step):  # the answer was lost with the connection
                return kept[step]
            record = next(r for r in stored if r["name"] == kept[step].id)
            condition = {"_id": name, "fence": run["fence"], **unless_owned(run)}
            done = self.layout.runs.update_one(condition, [{"$set": _changes(run, record)}])
            if done.matched_count:
                return kept[step]
        raise StoreError(f"run {name!r} changes its owner all the time: stop those who want it")


def _is_done(run: Mapping[str, Any], step: int) -> bool:
    """Whether the last thing that happened to the run is that it was rewound to this step."""
    closed = run.get("closed", ())
    return bool(closed) and (closed[-1]["fence"], closed[-1]["start"]) == (run["fence"], step)


def _changes(run: Mapping[str, Any], record: Mapping[str, Any]) -> Document:
    """The fields of the run that is rewound, as aggregation expressions."""
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
    return {
        **literals(values),
        "updated": "$$NOW",
        "closed": _appended("closed", closed),
        "history": _appended("history", {"fence": fence, **told}),
    }


def _appended(field: str, entry: Mapping[str, Any]) -> Document:
    stamped = {"$mergeObjects": [{"time": "$$NOW"}, {"$literal": entry}]}
    return {"$concatArrays": [{"$ifNull": [f"${field}", []]}, [stamped]]}


def _not_kept(name: str, step: int, kept: list[int]) -> str:
    steps = ", ".join(map(str, sorted(kept))) or "none"
    return (
        f"run {name!r} keeps no checkpoint of step {step}, so it cannot be rewound to it: choose "
        f"one of those that are kept: {steps}"
    )
