"""What a run and its attempts are doing, as far as the store knows.

A process that was killed tells nobody. So who is RUNNING is said by the lease: when its owner is
known to be dead, or when it has run out, the run is INTERRUPTED, whatever its document says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipefit.records import Attempt, Lease, Owner, RunState, RunStatus
from pipefit.store import documents
from pipefit.store.backend import Document
from pipefit.store.owner import is_dead

_JSON_FIELDS = ("parts", "spec", "program")


def state_of(run: Mapping[str, Any]) -> RunState:
    """The state of a run: RUNNING if and only if somebody holds the lease.

    An owner that died between its last commit and its farewell has finished the run all the same.
    """
    state = RunState(run["state"])
    if not _is_open(run) and state is not RunState.RUNNING:
        return state
    if documents.lease_of(run) is not None:
        return RunState.RUNNING
    return (
        RunState.FINISHED if documents.committed_step(run) >= run["steps"] else RunState.INTERRUPTED
    )


def _is_open(run: Mapping[str, Any]) -> bool:
    """Whether the newest attempt owns the run, or did when it was last heard of."""
    attempt = run["attempt"]
    return attempt["ended"] is None and bool(attempt["fence"] == run["fence"])


def _reason(run: Mapping[str, Any], state: RunState) -> str | None:
    """Why a run is in this state, as far as that needs one."""
    if not _is_open(run):
        reason: str | None = run["reason"]
        return reason
    owner = Owner(**run["attempt"]["owner"])
    return _silence(owner) if state is RunState.INTERRUPTED else None


def _silence(owner: Owner) -> str:
    told = "is gone" if is_dead(owner) else "renews its lease no more"
    return f"ended without a word, nobody knows when: {owner} {told}"


def status_of(run: Mapping[str, Any], collection: str) -> RunStatus:
    """What a scheduler asks about a run."""
    committed, state = run["committed"], state_of(run)
    return RunStatus(
        name=run["_id"],
        collection=collection,
        identity=run["identity"],
        state=state,
        step=committed["step"] if committed else None,
        reason=_reason(run, state),
        ended=documents.ended_of(run.get("ended")),
    )


def row(run: Mapping[str, Any], collection: str) -> Document:
    """What the table of runs says of one."""
    status = status_of(run, collection)
    ended = status.ended if status.state is RunState.FINISHED else None
    return {
        "collection": collection,
        "name": status.name,
        "state": str(status.state),
        "step": status.step,
        "steps": run["steps"],
        "attempts": run["fence"] - len(run.get("closed", ())),
        "updated": run["updated"],
        "reason": status.reason or (ended and ended.reason),
        "best": run["best"] and run["best"]["value"],
    }


def described(run: Mapping[str, Any], collection: str) -> Document:
    """A run's document as plain values, for people and reports."""
    document = {key: value for key, value in run.items() if key not in ("_id", "now")}
    document.update({key: json.loads(run[key]) for key in _JSON_FIELDS})
    told = document.pop("described", None) or {"model": "null", "artifacts": ()}
    document["model"] = json.loads(told["model"])
    document["artifacts"] = [file["name"] for file in told["artifacts"]]
    lease = documents.lease_of(run)
    document["lease"] = lease and {key: run["lease"][key] for key in ("owner", "since", "expires")}
    state = state_of(run)
    told = {"state": str(state), "reason": _reason(run, state)}
    return {**document, "name": run["_id"], "collection": collection, **told}


def attempt_of(stored: Mapping[str, Any], lease: Lease | None) -> Attempt:
    """An attempt; one that has no end and no lease any more was interrupted."""
    state, reason, owner = RunState(stored["state"]), stored["reason"], Owner(**stored["owner"])
    lives = lease is not None and lease.fence == stored["fence"]
    if stored["ended"] is None and not lives:
        state, reason = RunState.INTERRUPTED, _silence(owner)
    return Attempt(
        fence=stored["fence"],
        start=stored["start"],
        owner=owner,
        started=stored["started"],
        ended=stored["ended"],
        state=state,
        reason=reason,
        step=stored["reached"],
        log_tail=stored.get("log_tail", ""),
        program=json.loads(stored.get("program") or "{}"),
    )
