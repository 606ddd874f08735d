"""What in a collection counts for nobody: finding it, and removing what nobody can be using.

    list the files
    for every run: ask who owns it; list its records; ask again
    a record that can never count, and a file that nothing names, is garbage
    remove it, unless it is held

Two things hold garbage. A process that is alive may be about to name what it has written: the owner
of a run, as long as its lease lasts or it may still be prolonged; without a lease, whoever wrote
it, as long as it is not known to be dead. And a reader may be reading what counted until a short
while ago. Where a clock must decide, it is `grace` that has to pass.

The order makes that safe beside everything else: a file that is listed and that nothing names, when
nobody owns its run any more, will never be named. An owner that has been silent for so long that it
is not waited for loses its lease first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pipefit import records
from pipefit.records import CheckpointInfo, Garbage, Owner
from pipefit.store import documents
from pipefit.store.backend import ARTIFACTS, CHECKPOINTS, Arriving, Backend, Document, FoundFile
from pipefit.store.descriptions import described_files
from pipefit.store.documents import ARTIFACT, ATTEMPT, CHECKPOINT, OUTPUTS, VALIDATED
from pipefit.store.owner import is_dead

#: Seconds for which something that an owner or a reader may still be using is kept.
GRACE = 3600.0

#: So many times longer is waited for who writes without a lease: from one part of the outputs of a
#: validation to the next one hours may pass.
_WITHOUT_LEASE = 24

#: These count always; whether outputs are garbage depends on the validations.
_NEVER_DRAFTS = (ATTEMPT, OUTPUTS)


def collect(backend: Backend, *, remove: bool, grace: float) -> list[Garbage]:
    """Find the garbage of a collection; remove what is not held, and return all of it."""
    now, span = backend.now(), timedelta(seconds=grace)
    files: dict[str, list[FoundFile]] = {}
    for file in backend.list_files():
        files.setdefault(str(file.metadata.get("run", "")), []).append(file)
    found: list[Garbage] = []
    named: set[str] = set()
    arriving = {arrival.run: arrival for arrival in backend.arrivals()}
    for name, arrival in arriving.items():
        told = _import(backend.collection, arrival, files.get(name, ()), now, span)
        if not (remove and told.held is None and not backend.drop_arrival(arrival)):
            found.append(told)
    # Files that do not say whose they are come last: any run may name them.
    names = (backend.known_runs() | files.keys() | {""}) - arriving.keys()
    for name in sorted(names, reverse=True):
        sweep = _Sweep(backend, name, files.get(name, []), named=named, now=now, grace=span)
        found += sweep.run(remove=remove)
    return found


def _import(
    collection: str, arrival: Arriving, files: Sequence[FoundFile], now: datetime, grace: timedelta
) -> Garbage:
    age, held = now - arrival.seen, None
    if not is_dead(arrival.owner) and age < grace:
        held = f"{arrival.owner} may be bringing it in"
    size = arrival.size + sum(file.size for file in files)
    return Garbage(collection, arrival.run, "import", arrival.run, size, age.total_seconds(), held)


@dataclass(frozen=True)
class _Item:
    """A piece of garbage, and what is to be deleted: first the record, then the files."""

    told: Garbage
    place: str
    files: Sequence[str]
    record: Document | None = None


@dataclass(frozen=True)
class _Holder:
    """Whoever may still name what was written since then; None: nobody.

    Attributes:
        words: who; None: nobody.
        since: since then; None: whenever.
    """

    words: str | None = None
    since: datetime | None = None

    def holds(self, written: datetime) -> str | None:
        """Why something that was written then must stay."""
        return self.words if self.since is None or written >= self.since else None


class _Sweep:
    """Looks at one run.

    Args:
        backend: of its collection.
        name: the run; "" for files that do not say whose they are.
        files: that say they are of this run; listed before.
        named: ids of files that runs name; those of this run are added.
        now: when they were listed.
        grace: see `GRACE`.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        files: Sequence[FoundFile],
        *,
        named: set[str],
        now: datetime,
        grace: timedelta,
    ) -> None:
        self._backend, self._name, self._named = backend, name, named
        self._now, self._grace = now, grace
        self._files = {file.id: file for file in files}
        # Asked now: a process that is dead by now names nothing any more.
        self._left = {file.id for file in files if _writer_is_dead(file)}

    def run(self, *, remove: bool) -> list[Garbage]:
        """Find, and perhaps remove, the garbage of the run."""
        before, items = self._look()
        idle = any(item.told.held is None for item in items)
        if remove and idle and before is not None and self._is_given_up(before):
            self._backend.change_unowned(before, {"lease": None}, {})
            before, items = self._look()
        return [item.told for item in items if not remove or self._was_garbage(item)]

    def _look(self) -> tuple[Document | None, list[_Item]]:
        before = self._document()
        stored = list(self._backend.all_records(self._name, values=False))
        after = self._document()
        if after is None and any(a.run == self._name for a in self._backend.arrivals()):
            return None, []  # it began to be brought in just now
        return before, list(self._items(after, stored, self._holder(before, after)))

    def _document(self) -> Document | None:
        return self._backend.find_run(self._name, light=False)

    def _is_given_up(self, run: Mapping[str, Any]) -> bool:
        """Whether the owner may live, but has been silent for longer than anybody waits."""
        lease = run["lease"]
        return lease is not None and lease["expires"] + self._grace < run["now"]

    def _holder(self, before: Document | None, after: Document | None) -> _Holder:
        """Who may name files that were there before both were read, and records in between."""
        if before is None and after is None:
            return _Holder()
        if before is None or after is None or _ownership(before) != _ownership(after):
            return _Holder("its run changed its owner just now")
        lease = after["lease"]
        if lease is None or is_dead(Owner(**lease["owner"])):
            return _Holder()
        owner = Owner(**lease["owner"])
        if lease["expires"] > after["now"]:
            return _Holder(f"its run is owned by {owner}", lease["since"] - self._grace)
        if self._is_given_up(after):
            return _Holder()
        return _Holder(f"{owner} may come back to its run", lease["since"] - self._grace)

    def _items(
        self, run: Document | None, stored: Sequence[Document], holder: _Holder
    ) -> Iterator[_Item]:
        useless = list(never_counting(run, stored))
        for record in useless:
            yield self._draft(run, record, holder)
        dropped = {id(record) for record in useless}
        left = [record for record in stored if id(record) not in dropped]
        validated = {r["outputs"] for r in left if r["kind"] == VALIDATED}
        for record in left:
            if record["kind"] == OUTPUTS and record["name"] not in validated:
                yield self._unvalidated(record)
        self._named.update(key for record in stored for _, key in files_of(record))
        self._named.update(file.id for file in described_files(run or {}).values())
        for file in self._files.values():
            if file.id not in self._named:
                yield self._loose(file, holder)

    def _draft(self, run: Document | None, record: Document, holder: _Holder) -> _Item:
        since: datetime = record["created"]
        if run is not None and run["attempt"]["fence"] > record["fence"]:
            since = max(since, run["attempt"]["started"])
        dropped = run.get("dropped", ()) if run is not None else ()
        since = max([since, *(entry["time"] for entry in dropped)])
        age = self._now - since
        held = holder.words if _may_be_published(run, record) else None
        if held is None and age < self._grace and not _was_unfinished(run, record):
            held = "a reader may still be reading it"
        files = files_of(record)
        place = files[0][0] if files else ARTIFACTS
        keys = [key for _, key in files]
        kind = "checkpoint" if record["kind"] == CHECKPOINT else "draft"
        told = self._told(kind, str(record["name"] or record["step"]), keys, age, held)
        return _Item(told, place, keys, record)

    def _unvalidated(self, record: Document) -> _Item:
        keys = [key for _, key in files_of(record)]
        shards = [self._files[key] for key in keys if key in self._files]
        age = self._now - max([record["created"], *(file.written for file in shards)])
        dead = bool(shards) and all(file.id in self._left for file in shards)
        held = None if dead else self._too_young(age)
        told = self._told("outputs", record["name"], keys, age, held)
        return _Item(told, ARTIFACTS, keys, record)

    def _loose(self, file: FoundFile, holder: _Holder) -> _Item:
        age = self._now - self._last_sign_of(file)
        if _is_of_an_owner(file):
            held = holder.holds(file.written)
        else:
            held = None if file.id in self._left else self._too_young(age)
        return _Item(self._told(_kind(file), file.id, [file.id], age, held), file.place, [file.id])

    def _last_sign_of(self, file: FoundFile) -> datetime:
        """When its writer was last seen: the shards of outputs are written one after the other."""
        outputs = file.metadata.get("outputs")
        same = (f for f in self._files.values() if outputs and f.metadata.get("outputs") == outputs)
        return max((f.written for f in same), default=file.written)

    def _too_young(self, age: timedelta) -> str | None:
        waiting = age < self._grace * _WITHOUT_LEASE
        return "the process that wrote it may be alive" if waiting else None

    def _told(
        self, kind: str, key: str, files: Iterable[str], age: timedelta, held: str | None
    ) -> Garbage:
        size = sum(self._files[file].size for file in files if file in self._files)
        collection = self._backend.collection
        return Garbage(collection, self._name, kind, key, size, age.total_seconds(), held)

    def _was_garbage(self, item: _Item) -> bool:
        """Remove it unless it is held; False if it turns out to be something else by now."""
        if item.told.held is not None:
            return True
        if item.record is not None and not self._backend.drop_same(item.record):
            return False
        bucket = (
            self._backend.checkpoints_of
            if item.place == CHECKPOINTS
            else (self._backend.artifacts_of)
        )
        bucket(self._name).remove(item.files)
        return True


def never_counting(run: Mapping[str, Any] | None, stored: Iterable[Document]) -> Iterator[Document]:
    """The records that count neither in the run nor in a closed line, and never will.

    Args:
        run: the document of the run, read after them; None if there is none.
        stored: all its records, but for their values.
    """
    stored = list(stored)
    if run is None:
        yield from stored
        return
    checkpoints = {info.id for info in kept_checkpoints(run, stored)}
    newest = _newest_artifacts(stored)
    for record in stored:
        kind = record["kind"]
        if kind == CHECKPOINT:
            counting = record["name"] in checkpoints
        elif kind == ARTIFACT:
            counting = id(record) in newest and _counts(run, record)
        elif kind in _NEVER_DRAFTS:
            counting = True
        else:
            counting = _is_in_a_line(run, record)
        if not counting:
            yield record


def kept_checkpoints(
    run: Mapping[str, Any], stored: Iterable[Mapping[str, Any]]
) -> list[CheckpointInfo]:
    """The committed checkpoints of a run and of its closed lines."""
    found = [record for record in stored if record["kind"] == CHECKPOINT]
    kept = list(documents.checkpoints_of(run, found).values()) if run["committed"] else []
    for number in documents.kept_lines(run):
        kept += documents.closed_line_of(run, number, found).checkpoints
    return kept


def _ownership(run: Mapping[str, Any]) -> tuple[Any, ...]:
    lease = run["lease"]
    return run["fence"], lease and lease["token"]


def _may_be_published(run: Mapping[str, Any] | None, record: Mapping[str, Any]) -> bool:
    """Whether the owner of the run may be in the middle of committing it."""
    if run is None or record["kind"] != CHECKPOINT:
        return False
    return records.counts(run["line"], record["fence"], record["step"])


def _was_unfinished(run: Mapping[str, Any] | None, record: Mapping[str, Any]) -> bool:
    """Whether it is a checkpoint that was never committed."""
    if run is None or not _may_be_published(run, record):
        return False
    return bool(record["step"] > documents.committed_step(run))


def _is_in_a_line(run: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    fence, step = record["fence"], record["step"]
    if records.counts(run["line"], fence, step):
        return True
    # Also the steps that a line grew out of: they may be in another one, which was dropped.
    closed = [run["closed"][number - 1]["line"] for number in documents.kept_lines(run)]
    return any(records.counts(line, fence, step) for line in closed)


def _counts(run: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    return documents.counts(run, record) or documents.in_closed_line(run, record)


def _newest_artifacts(stored: Iterable[Document]) -> set[int]:
    """Which artifacts (by Python's id) are the newest of their name, whatever the branch."""
    newest: dict[tuple[str, int], Document] = {}
    for record in stored:
        if record["kind"] == ARTIFACT:
            key = record["name"], record.get("branch", 0)
            if key not in newest or record["created"] > newest[key]["created"]:
                newest[key] = record
    return {id(record) for record in newest.values()}


def _writer_is_dead(file: FoundFile) -> bool:
    owner = file.metadata.get("owner")
    return owner is not None and is_dead(Owner(**owner))


def _is_of_an_owner(file: FoundFile) -> bool:
    """Whether the owner of the run wrote it, as opposed to who only validates or reports."""
    return "fence" in file.metadata and file.metadata.get("kind") != VALIDATED


def _kind(file: FoundFile) -> str:
    if not file.metadata:
        return "bytes"
    if file.place == CHECKPOINTS:
        return "checkpoint"
    kinds = {"outputs": "outputs", "value": "values"}
    return next((kind for key, kind in kinds.items() if key in file.metadata), "artifact")


def files_of(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Place and id of the files that a record names."""
    if record["kind"] == CHECKPOINT:
        return [(CHECKPOINTS, record["name"])]
    ids = documents.file_ids(record)
    if record["kind"] == ARTIFACT:
        ids.append(record["file"])
    ids += [shard["id"] for shard in record.get("shards", ())]
    return [(ARTIFACTS, key) for key in ids]
