"""Who owns a run in a folder: taking the lease, keeping it, and what happens to the one before.

Nothing is locked. Every change is made from one version of the run's document and is refused if
that is no longer the newest (`pipefit.store.local.versions`), so two processes cannot take one run,
and one that was stopped, for however long and at whatever point, finds itself succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime

from pipefit.errors import LeaseLost, NotFound, RunOwned, StoreError
from pipefit.records import NOTHING, Owner, RunState
from pipefit.store import documents
from pipefit.store.backend import Document
from pipefit.store.identity import Change, accepted_changes, program_text
from pipefit.store.local import disk
from pipefit.store.local.backend import LocalBackend
from pipefit.store.local.disk import guarded
from pipefit.store.local.runs import Draft, RunFiles, public
from pipefit.store.local.versions import Overtaken, Version
from pipefit.store.ownership import (
    AttemptKey,
    Claim,
    Holder,
    gone_text,
    lost_text,
    many_text,
    owned_text,
)
from pipefit.store.plain import plain

# Every repetition means that another process changed the run in between.
_TRIES = 100


def nothing() -> None:
    """What there is to undo, unless somebody says more."""


class LocalLeases:
    """Takes and keeps the lease of one run.

    Args:
        backend: of the run's collection.
        name: the run.
    """

    def __init__(self, backend: LocalBackend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.files: RunFiles = backend.files_of(name)

    @property
    def shown(self) -> str:
        """The folder of the store, for people."""
        return self.backend.shown

    @guarded
    def acquire(self, claim: Claim) -> int:
        """Make the claim's owner the owner of the run, which is created if it is new.

        Returns:
            The fence of this ownership.

        Raises:
            RunOwned, IdentityMismatch: as `Store.acquire` says.
        """
        for _ in range(_TRIES):
            self.files.place.create()
            # What is missing has been replaced, or its folder removed for a run that was brought.
            with suppress(Overtaken, FileNotFoundError):
                fence = self._try(claim)
                if fence is not None:
                    return fence
        raise StoreError(many_text(self.name))

    @guarded
    def take_up(self, key: AttemptKey, owner: Owner, ttl: float, token: str) -> None:
        """Hand the lease of an attempt that has not ended over, without a new fence.

        Raises:
            RunOwned, LeaseLost, IdentityMismatch, NotFound: as `Store.take_up` says.
        """
        for _ in range(_TRIES):
            version = self.files.newest()
            if version is None:
                raise NotFound(gone_text(key))
            with suppress(Overtaken, FileNotFoundError), Draft(self.files, version) as draft:
                run = public(version, disk.now(self.files.place.document))
                key.check(run, owner)
                draft.document["lease"] = _lease(key.fence, owner, ttl, token)
                if draft.publish() is not None:
                    return
        raise StoreError(many_text(self.name))

    def _try(self, claim: Claim) -> int | None:
        version = self.files.newest()
        with Draft(self.files, version) as draft:
            if version is None:
                _create(draft, claim)
            else:
                self._succeed(draft, version, claim)
            _take(draft, claim)
            fence: int = draft.document["fence"]
            return None if draft.publish() is None else fence

    def _succeed(self, draft: Draft, version: Version, claim: Claim) -> None:
        now = disk.now(self.files.place.document)
        run = {**public(version, now), **draft.story}
        changes = accepted_changes(run, claim.order)
        if documents.lease_of(run) is not None:
            raise RunOwned(owned_text(run, self.backend.collection))
        attempt = draft.document["attempt"]
        if attempt["ended"] is None:
            reason = f"ended without a word, succeeded by {claim.owner}"
            outcome = {"state": str(RunState.INTERRUPTED), "reason": reason}
            attempt.update(ended=datetime.now(UTC), **outcome)
        draft.close_attempt(attempt, draft.story["program"])
        draft.story["program"] = program_text(claim.order, run)
        _note_changes(draft, changes)

    @guarded
    def change(
        self,
        holder: Holder,
        alter: Callable[[Draft, Version], None],
        undo: Callable[[], None] = nothing,
    ) -> Version:
        """Change the run's document if the holder still owns it, which prolongs the lease.

        Args:
            holder: the ownership.
            alter: makes the next version from the one that it is given; it may be called again.
            undo: is called if this raises, and the document was certainly not changed.

        Returns:
            The next version.

        Raises:
            LeaseLost: it does not own the run; nothing is changed.
        """
        unclear = False
        try:
            for _ in range(_TRIES):
                version = self.owned(holder)
                with Draft(self.files, version) as draft:
                    try:
                        alter(draft, version)
                        published = draft.publish()
                    except (FileNotFoundError, Overtaken):
                        # Removed by whoever changed the document since, or even owns the run now.
                        if self.owned(holder).number == version.number:
                            raise
                        continue
                    finally:
                        unclear = unclear or draft.unclear
                    if published is not None:
                        return published
            raise StoreError(f"run {self.name!r} changes all the time: too many write to it")
        except BaseException:
            if not unclear:
                undo()
            raise

    @guarded
    def owned(self, holder: Holder) -> Version:
        """The run's document. Raises `LeaseLost` if the holder does not own the run."""
        version = self.files.newest()
        if version is None:
            self.backend.root.exists()  # or it is away
            raise LeaseLost(lost_text(None, self.name, holder.fence))
        lease = version.document["lease"]
        owner = (lease["fence"], lease["token"]) if lease else None
        if version.document["fence"] != holder.fence or owner != holder:
            raise LeaseLost(lost_text(version.document, self.name, holder.fence))
        return version


def _create(draft: Draft, claim: Claim) -> None:
    draft.document |= {
        "version": documents.VERSION,
        "name": claim.order.name,
        "fence": 0,
        "created": datetime.now(UTC),
        "line": [],
        "committed": None,
        "best": None,
        "progress": None,
        "state": str(RunState.RUNNING),
        "reason": None,
        "ended": None,
        "inside": {"story": None, "checkpoints": None, "logs": [], "past": None},
    }
    draft.story.update(program=program_text(claim.order, None), history=[], described=None)


def _take(draft: Draft, claim: Claim) -> None:
    """Hand the run over to the claim's owner."""
    order, owner, now = claim.order, documents.owner_document(claim.owner), datetime.now(UTC)
    fence = draft.document["fence"] + 1
    draft.story.update(parts=json.dumps(plain(order.parts)), spec=order.spec)
    attempt: Document = {
        "fence": fence,
        "owner": owner,
        "started": now,
        "start": NOTHING,
        "ended": None,
        "state": str(RunState.RUNNING),
        "reason": None,
        "reached": None,
        "tail": None,
    }
    draft.document |= {
        "identity": order.identity,
        "steps": order.steps,
        "fence": fence,
        "lease": _lease(fence, claim.owner, claim.ttl, claim.token),
        "attempt": attempt,
    }


def _lease(fence: int, owner: Owner, ttl: float, token: str) -> Document:
    return {
        "fence": fence,
        "token": token,
        "owner": documents.owner_document(owner),
        "since": datetime.now(UTC),
        "ttl": ttl,
    }


def _note_changes(draft: Draft, changes: list[Change]) -> None:
    if changes:
        entry = {"time": datetime.now(UTC), "fence": draft.document["fence"] + 1}
        entry["changes"] = [asdict(change) for change in changes]
        draft.story["history"] = [*draft.story["history"], entry]
