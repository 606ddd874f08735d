"""Bringing in a run that another store has given: see `Store.import_run`.

    look at all of it; take the name
    files under ids of this store, then the record that names them, one record after the other
    the document of the run                                                             # the commit

Until then no reader sees anything, and whatever goes wrong, all of it is removed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipefit.errors import CheckpointCorrupt, StoreError, StoreUnavailable
from pipefit.records import check_run_name
from pipefit.store import checking, jsontext
from pipefit.store.backend import ARTIFACTS, CHECKPOINTS, Arrival, Backend, Document
from pipefit.store.content import Part, StoredContent
from pipefit.store.documents import ARTIFACT, CHECKPOINT, METRICS, OUTPUTS, VALIDATED, VALIDATION
from pipefit.store.owner import this_process

if TYPE_CHECKING:
    from pipefit.store.columns import Packed
    from pipefit.store.content import RunContent


def bring_in(backend: Backend, content: RunContent) -> bool:
    """Store a run that another store has given; False if it is there already, and the same.

    Raises:
        StoreError: it is no run, or there is another one of its name.
    """
    try:
        name = check_run_name(content.name)
    except ValueError as error:
        raise StoreError(str(error)) from None
    document, texts = content.document()
    checking.check_document(document)
    if backend.find_run(name) is not None:
        for record, _ in content.records():
            checking.check_record(record)
        if digest(content, backend.own_id) == digest(StoredContent(backend, name)):
            return False
        raise StoreError(
            f"collection {backend.collection!r} has another run {name!r} already, or a shorter or "
            "longer one: import it into another database"
        )
    arrival = backend.arrive(name, this_process())
    try:
        for record, parts in content.records():
            _add(arrival, backend, record, parts)
        arrival.settle(_document(arrival, backend, document, texts))
    except BaseException:
        with suppress(StoreUnavailable):  # or the next import, or gc, does it
            arrival.abandon()
        raise
    return True


def digest(content: RunContent, own_id: Callable[[str], str] | None = None) -> str:
    """A hash of all that a run is; equal for equal runs, whatever stores they are in.

    Args:
        content: the run.
        own_id: what another store would call a checkpoint; None: as it is called here.
    """
    total = hashlib.sha256()
    for told in _told(content):
        same = _renamed(told, own_id) if own_id else told
        total.update(jsontext.encode(_sorted(same)).encode() + b"\n")
    return total.hexdigest()


def _told(content: RunContent) -> Iterator[Document]:
    yield content.document()[0]
    for record, _ in content.records():
        yield record


def _sorted(value: Any) -> Any:
    """The value with the keys of its mappings in order."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _renamed(told: Mapping[str, Any], own_id: Callable[[str], str]) -> Document:
    """A document or record with the ids that checkpoints have in another store."""
    renamed = dict(told)
    if told.get("kind") == CHECKPOINT:
        renamed["name"] = own_id(told["name"])
    if told.get("kind") in (VALIDATION, VALIDATED) and told["checkpoint"] is not None:
        renamed["checkpoint"] = own_id(told["checkpoint"])
    if told.get("committed"):
        committed = told["committed"]
        renamed["committed"] = {**committed, "id": own_id(committed["id"])}
    if told.get("closed"):
        renamed["closed"] = [_renamed(entry, own_id) for entry in told["closed"]]
    return renamed


def _add(arrival: Arrival, backend: Backend, told: Document, parts: Sequence[Part]) -> None:
    """Write a record and what it names."""
    checking.check_record(told)
    kind = told["kind"]
    record = _renamed(told, backend.own_id)
    if kind == CHECKPOINT:
        origin = {"step": told["step"], "fence": told["fence"]}
        arrival.add_file(CHECKPOINTS, _bytes(parts[0]), "", origin, key=record["name"])
    elif kind == ARTIFACT:
        origin = {"artifact": told["name"], "step": told["step"]}
        record["file"] = arrival.add_file(ARTIFACTS, _bytes(parts[0]), told["name"], origin)
    elif kind == OUTPUTS:
        record["shards"] = [
            {"id": _shard(arrival, told, part, number), **shard}
            for number, (shard, part) in enumerate(zip(told["shards"], parts, strict=True))
        ]
    if kind in (METRICS, VALIDATION, VALIDATED):
        field = "columns" if kind == METRICS else "values"
        arrival.add_values(record, field, _columns(told, field, parts))
    else:
        arrival.add(record)


def _shard(arrival: Arrival, told: Mapping[str, Any], part: Part, number: int) -> str:
    origin = {"outputs": told["name"]}
    return arrival.add_file(ARTIFACTS, _bytes(part), f"{number}.safetensors", origin)


def _columns(told: Document, field: str, parts: Sequence[Part]) -> Iterator[Packed]:
    from pipefit.store.columns import Packed

    steps = told["steps"] if field == "columns" else 1
    large = iter(parts)
    for entry in told[field]:
        about = {key: entry[key] for key in ("name", "dtype", "shape")}
        if "data" in entry:
            yield Packed(about, entry["data"], large=False)
            continue
        data = _bytes(next(large))
        checking.check_column(entry, data, steps, f"a record of step {told['step']}")
        yield Packed(about, bytes(data), large=True)


def _document(
    arrival: Arrival, backend: Backend, document: Document, texts: Iterable[Part]
) -> Document:
    whole = _renamed(document, backend.own_id)
    if document["described"]:
        files = zip(document["described"]["artifacts"], texts, strict=True)
        artifacts = [
            {**told, "file": arrival.add_file(ARTIFACTS, _bytes(part), told["name"], {})}
            for told, part in files
        ]
        whole["described"] = {**document["described"], "artifacts": artifacts}
    return whole


def _bytes(part: Part) -> bytes | bytearray:
    data = part.read()
    if (len(data), hashlib.sha256(data).hexdigest()) != (part.size, part.sha256):
        raise CheckpointCorrupt(
            f"a file of the run has other bytes than it should, {len(data)} instead of {part.size} "
            f"or with another sha256 than {part.sha256}; nothing of the run is kept"
        )
    return data
