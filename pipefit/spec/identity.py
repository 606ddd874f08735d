"""The part of an experiment that decides the numbers, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipefit.refs import dotted
from pipefit.spec.secrets import hidden
from pipefit.spec.sections import From, FromArchive, FromFile, FromRun, FromTfutils, Train
from pipefit.spec.sections.sources import with_archives
from pipefit.spec.values import to_json_value

if TYPE_CHECKING:
    from pipefit.spec.experiment import Spec

#: What of a table decides no number.
_INDIFFERENT = {
    "model": ("devices",),
    "data": ("fields", "readers", "prefetch"),
}
#: Keys of [train] that count if they are not as by default. They came later than the first runs,
#: whose identity must stay what it is.
_LATER = ("precision", "average", "overfit", "loop", "jit_compile", "deterministic")


def parts(spec: Spec) -> dict[str, Any]:
    """What decides the numbers of one model, or, below its place, of each of several."""
    if spec.models:
        runs = spec.runs().items()
        return {
            f"{dotted('models', name)}.{key}": value
            for name, run in runs
            for key, value in parts(run).items()
        }
    later: dict[str, Any] = {"experiment": spec.experiment} if spec.experiment else {}
    if spec.load:
        later["load"] = to_json_value(hidden(_loads(spec)))
    sections = hidden(_sections(spec))
    return {"seed": spec.seed, **later, **_flat(sections), **_of_training(spec.train)}


def _sections(spec: Spec) -> dict[str, Any]:
    model = spec.one_model.table()
    hashes = {name: archive.sha256 for name, archive in spec.archives.items()}
    # The name of an archive decides nothing, its content does; a data table is itself a call.
    data = with_archives(spec.train_data.table(), hashes)
    if not data["augment"]:
        del data["augment"]
    sections = {"model": model, "data": data}
    for section, keys in _INDIFFERENT.items():
        for key in keys:
            sections[section].pop(key, None)
    optimizers = {name: _without_no_groups(part.table()) for name, part in spec.optimizers.items()}
    if optimizers:
        sections["optimizers"] = optimizers
    if spec.optimizer:
        sections["optimizer"] = _without_no_groups(spec.optimizer.table())
    if spec.loss:
        sections["loss"] = spec.loss.table()
    return sections


def _loads(spec: Spec) -> list[dict[str, Any]]:
    """What is loaded, wherever databases are, and archives and files whose content is known."""
    return [{"from": _origin(table.source, spec), **table.asked()} for table in spec.load]


def _origin(source: From, spec: Spec) -> dict[str, Any]:
    table: dict[str, Any] = source.table()
    match source:
        case FromRun():
            table.pop("database", None)
            table.setdefault("collection", spec.collection)
        case FromFile() if source.sha256 is not None:
            del table["path"]
        case FromArchive():
            table["archive"] = spec.archives[source.archive].sha256
        case FromTfutils():
            table["tfutils"] = source.place
    return table


def _without_no_groups(optimizer: dict[str, Any]) -> dict[str, Any]:
    if not optimizer["groups"]:
        del optimizer["groups"]
    return optimizer


def _of_training(train: Train) -> dict[str, Any]:
    table, usual = train.table(), Train.model_fields
    counting = {key: table[key] for key in _LATER if table.get(key) != usual[key].default}
    return _flat(hidden({"accumulate": train.accumulate, **counting}), "train")


def _flat(tables: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Values by dotted key; lists and empty tables stay values."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        here = dotted(place, key)
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, here))
        else:
            flat[here] = to_json_value(value)
    return flat


def canonical(tables: Mapping[str, Any]) -> str:
    """One text for equal tables: in TOML the order of keys means nothing."""
    values = to_json_value(tables)
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(tables: Mapping[str, Any]) -> str:
    """A hash, equal for equal tables."""
    return hashlib.sha256(canonical(tables).encode()).hexdigest()
