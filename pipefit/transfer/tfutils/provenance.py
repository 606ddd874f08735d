"""What is told about where a run comes from, in words and as data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipefit.errors import without_passwords
from pipefit.store.jsontext import encode

if TYPE_CHECKING:
    from pipefit.store.tfutils import TfutilsRecord
    from pipefit.transfer.tfutils.content import Experiment

#: The artifact with all that tfutils said.
ARTIFACT = "tfutils.json"

# Characters of parameters up to which they are in the document of the run, which stays small.
_LONGEST = 200_000
_NONE = "(absent)"


def told_of(found: Experiment) -> dict[str, Any]:
    """What the document of the run says about the experiment: its parts, spec, program and model.

    It has no address, so the same experiment is the same run however its server is called.
    """
    origin = {"database": found.database, "collection": found.collection, "exp_id": found.exp_id}
    params = _plain(found.params)
    if len(json.dumps(params)) > _LONGEST:
        params = f"see the artifact {ARTIFACT}"
    train = _mapping(found.params.get("train_params"))
    model = _mapping(_mapping(found.params.get("model_params")).get("func"))
    words = [model.get("modname"), model.get("objname")]
    steps = train.get("num_steps")
    return {
        "parts": {f"tfutils.{key}": value for key, value in origin.items()},
        "spec": {"tfutils": {**origin, "params": params}},
        "program": {"imported_from": {"tool": "tfutils", **origin}},
        "model": {"name": ".".join(map(str, filter(None, words))) or None},
        "steps": int(steps)
        if isinstance(steps, int | float) and 0 <= steps < 2**62
        else found.last,
    }


def provenance(found: Experiment) -> bytes:
    """All that tfutils said about the experiment but for its values, as JSON."""
    told = {
        "database": found.database,
        "collection": found.collection,
        "exp_id": found.exp_id,
        "params": _plain(found.params),
        "records": len(found.records),
        "checkpoints": [
            {
                "step": one.step,
                "id": one.key,
                "database": one.file.database,
                "bucket": one.file.bucket,
                "size": one.file.size,
                "md5": one.file.md5,
                "written": one.written,
            }
            for one in found.checkpoints
        ],
        "file_items": [
            {"name": item.name, "item_for": item.item_for, "size": item.file.size}
            for item in found.items
        ],
    }
    return json.dumps(json.loads(encode(told)), indent=1).encode() + b"\n"


def history(found: Experiment, start: int, fence: int) -> list[dict[str, Any]]:
    """The history of the run: where it came from, and how its parameters were changed.

    It does not say when it was imported, but what it was then: so it is the same run wherever and
    how often it is.
    """
    entries: list[dict[str, Any]] = []
    if loaded := _loaded(found, start):
        entries.append({"time": milliseconds(found.records[0].written), "fence": fence, **loaded})
    for before, after in _neighbours(found):
        changes = list(_changes(before.params, after.params))
        if changes:
            entries.append(
                {"time": milliseconds(after.written), "fence": fence, "changes": changes}
            )
    origin = {"from": "tfutils", "database": f"{found.database}/{found.collection}"}
    told = {"event": "imported", **origin, "exp_id": found.exp_id}
    last = milliseconds(max(record.written for record in found.records))
    return [*entries, {"time": last, "fence": fence, **told}]


def _loaded(found: Experiment, start: int) -> dict[str, Any] | None:
    """What the experiment began with, if that was another one or a file."""
    load = _mapping(found.records[0].params.get("load_params"))
    query = _mapping(load.get("query"))
    other = query.get("exp_id") or load.get("exp_id")
    told: dict[str, Any] = {"event": "continued" if start >= 0 else "loaded"}
    if load.get("from_ckpt"):
        told |= {"from": str(load["from_ckpt"])}
    elif other and other != found.exp_id:
        told |= {"from": "tfutils", "exp_id": str(other)}
    else:
        return None
    places = {key: load[key] for key in ("dbname", "collname") if load.get(key)}
    step = {"step": start} if start >= 0 else {}
    return {**told, **{key: str(value) for key, value in places.items()}, **step}


def _neighbours(found: Experiment) -> Iterator[tuple[TfutilsRecord, TfutilsRecord]]:
    for before, after in pairwise(found.records):
        if before.params is not after.params:  # they are shared where they are equal
            yield before, after


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    before, after = dict(_flat(old)), dict(_flat(new))
    for key in sorted(before | after):
        if before.get(key) != after.get(key):
            told = {"old": before.get(key, _NONE), "new": after.get(key, _NONE)}
            yield {"key": key[:1000], **{name: text[:1000] for name, text in told.items()}}


def _flat(value: Mapping[str, Any], prefix: str = "params") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{prefix}.{key}"
        if isinstance(item, Mapping) and item:
            yield from _flat(item, name)
        else:
            yield name, json.dumps(_plain(item))


def _plain(value: Any) -> Any:
    """The value as JSON holds it, without the passwords of addresses in its texts."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return without_passwords(value) if isinstance(value, str) else json.loads(encode(value))


def milliseconds(time: datetime) -> datetime:
    """The time as all stores keep it."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
