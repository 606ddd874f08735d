"""Who owns a run: taking the lease, keeping it, and what happens to the one before.

Time is the database server's alone ($$NOW): the clocks of the hosts that train never matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pymongo.errors import DuplicateKeyError

from pipefit.errors import LeaseLost, NotFound, RunOwned, StoreError
from pipefit.records import NOTHING, Owner, RunOrder, RunState
from pipefit.store import documents
from pipefit.store.backend import Document
from pipefit.store.client import guarded
from pipefit.store.identity import Change, accepted_changes, program_text
from pipefit.store.layout import Layout, unless_owned
from pipefit.store.owner import is_dead
from pipefit.store.ownership import (
    AttemptKey,
    Claim,
    Holder,
    arriving_text,
    gone_text,
    lost_text,
    many_text,
    owned_text,
)
from pipefit.store.plain import plain

# Every repetition means that another process took the run in between.
_TRIES = 100


class Leases:
    """Takes and keeps the leases of the runs of one collection."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.connection = layout.connection

    @guarded
    def acquire(self, claim: Claim) -> int:
        """Make the claim's owner the owner of the run, which is created if it is new.

        Returns:
            The fence of this ownership.

        Raises:
            RunOwned, IdentityMismatch: as `Store.acquire` says.
        """
        for _ in range(_TRIES):
            run = self.layout.find_run(claim.order.name, light=False)
            fence = self._create(claim) if run is None else self._succeed(run, claim)
            if fence is not None:
                self._record_attempt(claim, fence)
                return fence
        raise StoreError(many_text(claim.order.name))

    def _create(self, claim: Claim) -> int | None:
        """The fence of the new run; None if another process created it just now."""
        empty = {
            "version": documents.VERSION,
            "line": [],
            "committed": None,
            "best": None,
            "progress": None,
            "state": str(RunState.RUNNING),
            "reason": None,
            "history": [],
        }
        values = {**literals(empty), "created": "$$NOW"}
        try:
            # No run has the fence 0, so this inserts or fails.
            self.layout.runs.update_one(
                {"_id": claim.order.name, "fence": 0},
                [{"$set": values}, *_taking(claim, [], None)],
                upsert=True,
            )
        except DuplicateKeyError:
            self._refuse_arriving(claim.order)
            return None
        return 1

    def _refuse_arriving(self, order: RunOrder) -> None:
        """Raise `RunOwned` if a process is bringing the run in; a dead one's rest is removed."""
        for arriving in self.layout.arrivals():
            if arriving.run == order.name and is_dead(arriving.owner):
                self.layout.drop_arrival(arriving)
            elif arriving.run == order.name:
                raise RunOwned(arriving_text(order.name, order.collection, arriving.owner))

    def _succeed(self, run: Document, claim: Claim) -> int | None:
        """The fence of this ownership; None if the run's owner changed just now."""
        fence: int = run["fence"]
        if run["lease"] and run["lease"]["token"] == claim.token:
            return fence  # taken already: the answer was lost with the connection
        changes = accepted_changes(run, claim.order)
        if documents.lease_of(run) is not None:
            raise RunOwned(owned_text(run, claim.order.collection))
        # Its owner may have died before it did so, and from now on the run tells of another one.
        self.layout.put_if_absent(_attempt_record(run))
        condition = {"_id": run["_id"], "fence": fence, **unless_owned(run)}
        taken = self.layout.runs.update_one(condition, _taking(claim, changes, run))
        return fence + 1 if taken.matched_count else None

    @guarded
    def take_up(self, key: AttemptKey, owner: Owner, ttl: float, token: str) -> None:
        """Hand the lease of an attempt that has not ended over, without a new fence.

        Raises:
            RunOwned, LeaseLost, IdentityMismatch, NotFound: as `Store.take_up` says.
        """
        for _ in range(_TRIES):
            run = self.layout.find_run(key.name)
            if run is None:
                raise NotFound(gone_text(key))
            if run["lease"] and run["lease"]["token"] == token:
                return  # the answer was lost with the connection
            key.check(run, owner)
            seen = {"fence": key.fence, "lease.token": run["lease"]["token"]}
            condition = {"_id": key.name, **seen, **unless_owned(run)}
            changes = {"lease": {"$mergeObjects": [_lease(owner, ttl, token)]}, "updated": "$$NOW"}
            if self.layout.runs.update_one(condition, [{"$set": changes}]).matched_count:
                return
        raise StoreError(many_text(key.name))

    def _record_attempt(self, claim: Claim, fence: int) -> None:
        """Write the attempt's record and close those that ended without a word."""
        name = claim.order.name
        self.layout.records.update_many(
            {"run": name, "kind": documents.ATTEMPT, "fence": {"$lt": fence}, "ended": None},
            [
                {
                    "$set": {
                        "ended": "$$NOW",
                        "state": str(RunState.INTERRUPTED),
                        "reason": f"ended without a word, succeeded by {claim.owner}",
                    }
                }
            ],
        )
        run = self.layout.find_run(name, light=False)
        if run is None or run["fence"] != fence:
            raise LeaseLost(lost_text(run, name, fence))
        self.layout.put(_attempt_record(run))

    @guarded
    def update(
        self,
        name: str,
        holder: Holder,
        ttl: float | None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Change the run's document if the holder still owns it, and prolong the lease.

        Args:
            name: the run.
            holder: the ownership.
            ttl: seconds from now; None: give the lease back.
            changes: fields as aggregation expressions.

        Raises:
            LeaseLost: it does not; nothing is changed.
        """
        values = {**(changes or {}), "updated": "$$NOW"}
        if ttl is None:
            values["lease"] = None
        else:
            values["lease.expires"] = _after(ttl)
        mine = {"fence": holder.fence, "lease.fence": holder.fence, "lease.token": holder.token}
        done = self.layout.runs.update_one({"_id": name, **mine}, [{"$set": values}])
        if not done.matched_count:
            raise LeaseLost(lost_text(self.layout.find_run(name), name, holder.fence))

    @guarded
    def change_attempt(self, name: str, fence: int, changes: Mapping[str, Any]) -> None:
        """Change the record of an attempt that has not ended; fields as aggregation expressions."""
        self.layout.records.update_one(
            {"run": name, "kind": documents.ATTEMPT, "step": fence, "ended": None},
            [{"$set": changes}],
        )


def _taking(claim: Claim, changes: list[Change], run: Document | None) -> list[Document]:
    """The update that hands the run, as it is now, over to the claim's owner."""
    order = claim.order
    owner = {"$literal": documents.owner_document(claim.owner)}
    values = literals(
        {
            "identity": order.identity,
            "parts": json.dumps(plain(order.parts)),
            "spec": order.spec,
            "program": program_text(order, run),
            "steps": order.steps,
        }
    )
    attempt = {
        "fence": "$fence",
        "owner": owner,
        "started": "$$NOW",
        **literals({"start": NOTHING, "ended": None, "state": str(RunState.RUNNING)}),
        **literals({"reason": None, "reached": None}),
    }
    if changes:
        accepted = {"$literal": [asdict(change) for change in changes]}
        entry = {"time": "$$NOW", "fence": "$fence", "changes": accepted}
        values["history"] = {"$concatArrays": ["$history", [entry]]}
    return [
        {"$set": {"fence": {"$add": ["$fence", 1]}, "updated": "$$NOW"}},
        # $mergeObjects, because $set would merge the new documents into the old ones.
        {
            "$set": {
                **values,
                "lease": {"$mergeObjects": [_lease(claim.owner, claim.ttl, claim.token)]},
                "attempt": {"$mergeObjects": [attempt]},
            }
        },
    ]


def _attempt_record(run: Document) -> Document:
    """What the run's document says of its newest attempt, as the record of that attempt."""
    attempt = run["attempt"]
    key = {"run": run["_id"], "kind": documents.ATTEMPT, "name": "", "step": attempt["fence"]}
    return {**attempt, **key, "program": run["program"], "log_tail": ""}


def _lease(owner: Owner, ttl: float, token: str) -> Document:
    return {
        "fence": "$fence",
        "token": token,
        "owner": {"$literal": documents.owner_document(owner)},
        "since": "$$NOW",
        "expires": _after(ttl),
    }


def literals(values: Mapping[str, Any]) -> Document:
    """The values as expressions: what begins with a dollar sign stays text."""
    return {key: {"$literal": value} for key, value in values.items()}


def noted(entry: Mapping[str, Any]) -> Document:
    """The history with this entry, whose number it has once, as an expression."""
    stamp = {"time": "$$NOW", "fence": "$fence"}
    same = [{"$eq": ["$$this.fence", "$fence"]}, {"$eq": ["$$this.number", entry["number"]]}]
    others = {"$filter": {"input": "$history", "cond": {"$not": {"$and": same}}}}
    return {"$concatArrays": [others, [{"$mergeObjects": [stamp, {"$literal": entry}]}]]}


def _after(ttl: float) -> Document:
    return {"$add": ["$$NOW", round(ttl * 1000)]}
