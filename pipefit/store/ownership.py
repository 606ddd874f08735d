"""Owning a run: what is asked for, and what is said when it is refused or lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pipefit import records
from pipefit.errors import IdentityMismatch, LeaseLost, RunOwned, StoreError
from pipefit.records import NOTHING, Best, Line, LineEntry, Owner, RunOrder
from pipefit.store import documents


@dataclass(frozen=True)
class Claim:
    """What one process asks for: this run, for itself, for `ttl` seconds at a time.

    Attributes:
        token: tells this acquisition from another one of the same process.
    """

    order: RunOrder
    owner: Owner
    ttl: float
    token: str


class Holder(NamedTuple):
    """One handle on a run: of all that an attempt had, the last one to take the lease may write."""

    fence: int
    token: str


@dataclass(frozen=True)
class AttemptKey:
    """An attempt, as it is known to whoever has something of it that is not stored yet.

    Attributes:
        identity: of the run, as the attempt has it.
        owner: the process that began the attempt: no other one has this fence as well.
    """

    collection: str
    name: str
    identity: str
    fence: int
    owner: Owner

    def check(self, run: Mapping[str, Any], taker: Owner) -> None:
        """Raise unless the attempt is the newest one of its run, has not ended, and is nobody's.

        A process may also take up what it has begun itself.

        Args:
            run: the document of the run of this name, with the time.
            taker: who wants to take the attempt up.

        Raises:
            LeaseLost, IdentityMismatch, RunOwned: as `Store.take_up` says.
        """
        if run["identity"] != self.identity:
            raise IdentityMismatch(
                f"run {self.name!r} of collection {self.collection!r} is another experiment by "
                f"now than the one of attempt {self.fence}, which was {self.owner}"
            )
        attempt = run["attempt"]
        if run["fence"] == self.fence and Owner(**attempt["owner"]) != self.owner:
            raise LeaseLost(
                f"attempt {self.fence} of run {self.name!r} is {Owner(**attempt['owner'])} here, "
                f"not {self.owner}: this is another database, or an older state of it"
            )
        if run["fence"] != self.fence or run["lease"] is None:
            raise LeaseLost(lost_text(run, self.name, self.fence))
        lease = documents.lease_of(run)
        if lease is not None and not lease.owner == self.owner == taker:
            raise RunOwned(owned_text(run, self.collection))


class Ownership:
    """What an attempt knows about the run it owns.

    Args:
        name: the run.
        fence: this ownership.

    Attributes:
        line: of the run; empty until the attempt has begun.
        committed: the newest committed step.
        best: the best validation as of that step.
    """

    def __init__(self, name: str, fence: int) -> None:
        self.name = name
        self.fence = fence
        self.line: Line = ()
        self.committed = NOTHING
        self.best: Best | None = None

    def go_on(self, run: Mapping[str, Any]) -> None:
        """Take over what the document says of this attempt, which another handle may have begun."""
        if has_begun(run, self.fence):
            self.continue_as(run, run["line"][-1][1])

    def continue_as(self, run: Mapping[str, Any], start: int) -> None:
        """Take over what the run's document says after this attempt has begun.

        Raises:
            StoreError: it has begun at another step than `start`.
        """
        line = tuple(LineEntry(*entry) for entry in run["line"])
        if line[-1] != (self.fence, start):
            raise StoreError(
                f"attempt {self.fence} of run {self.name!r} has begun after step "
                f"{line[-1].start}: to continue after {start}, end it and acquire the run again"
            )
        self.line = line
        self.committed = documents.committed_step(run)
        self.best = documents.best_of(run["best"])

    def fence_at(self, step: int) -> int:
        """The attempt to which a record of this step belongs.

        What is said about the step the attempt began with belongs to the one that led to it.

        Raises:
            StoreError: the step lies before that one, or the attempt has not begun.
        """
        if not self.line:
            raise StoreError(f"attempt {self.fence} of run {self.name!r}: call begin() first")
        fence = records.fence_at(self.line, step)
        if fence is None or step < self.line[-1].start:
            raise self.too_early(step)
        return fence

    def check_metrics(self, first: int) -> None:
        """Raise `StoreError` unless metrics may be written from this step on."""
        if self.fence_at(first) != self.fence:
            raise self.too_early(first)

    def check_commit(self, step: int) -> None:
        """Raise `StoreError` unless this step may be committed."""
        if step < self.committed:
            raise self.too_early(step)

    def too_early(self, step: int) -> StoreError:
        """The error for a step that lies before what is fixed already."""
        start = self.line[-1].start if self.line else NOTHING
        return StoreError(
            f"step {step} of run {self.name!r} is too early: attempt {self.fence} began after "
            f"step {start} and the newest committed checkpoint is of step {self.committed}"
        )


def has_begun(run: Mapping[str, Any], fence: int) -> bool:
    """Whether this attempt has begun."""
    return bool(run["line"]) and run["line"][-1][0] == fence


def owned_text(run: Mapping[str, Any], collection: str) -> str:
    """Why the run cannot be taken now."""
    lease = run["lease"]
    owner = Owner(**lease["owner"])
    return (
        f"run {run['_id']!r} of collection {collection!r} is owned by {owner} since "
        f"{_clock(lease['since'])}, at least until {_clock(lease['expires'])}: wait for it, stop "
        "that process, or choose another name; a dead owner's run is free after that time"
    )


def arriving_text(name: str, collection: str, owner: Owner) -> str:
    """The message for whoever wants a run that is being brought in."""
    return (
        f"run {name!r} of collection {collection!r} is being imported by {owner}: wait for it; "
        "what a dead process has left of it is removed by the next import, or by pipefit gc"
    )


def lost_text(run: Mapping[str, Any] | None, name: str, fence: int) -> str:
    """Why the attempt no longer owns the run, whose document is this one (None: gone)."""
    if run is None:
        return f"run {name!r} no longer exists: it was deleted while attempt {fence} trained it"
    if run["fence"] == fence:
        if run["lease"] is not None:
            taker = Owner(**run["lease"]["owner"])
            return f"attempt {fence} of run {name!r} was taken up by {taker}: it writes the rest"
        return f"attempt {fence} of run {name!r} has ended: acquire the run again to go on"
    attempt = run["attempt"]
    if attempt["fence"] < run["fence"]:
        rewind = run["closed"][-1]
        return (
            f"attempt {fence} of run {name!r} no longer owns it: the run was rewound to step "
            f"{rewind['start']} at {_clock(rewind['time'])}"
        )
    return (
        f"attempt {fence} of run {name!r} no longer owns it: {Owner(**attempt['owner'])} took it "
        f"over at {_clock(attempt['started'])} as attempt {run['fence']}"
    )


def gone_text(key: AttemptKey) -> str:
    """Why an attempt cannot be taken up whose run is not there."""
    return (
        f"there is no run {key.name!r} in collection {key.collection!r}, of which attempt "
        f"{key.fence} was {key.owner}: it was deleted, or this is another database"
    )


def many_text(name: str) -> str:
    """The message for whoever has tried too often to become the owner."""
    return f"run {name!r} changes its owner all the time: too many processes want it"


def not_committed_text(name: str, start: int) -> str:
    """Why an attempt cannot begin there."""
    return (
        f"run {name!r} has no committed checkpoint of step {start} to continue from: "
        "begin with a step of checkpoints(), or with -1"
    )


def _clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
