"""What a run's document tells, in words: its end, its model, its history, its program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pipefit.errors import without_passwords
from pipefit.report.words import as_number, number

Document = Mapping[str, Any]

_OF_ENTRIES = frozenset({"time", "fence", "number", "changes", "event"})


class Entry(NamedTuple):
    """One line of a run's history: when, by which attempt, what."""

    time: datetime
    fence: int
    what: str


def ending(document: Document) -> str | None:
    """How the run ended before its last step; None if it did not.

    >>> ended = {"kind": "early_stop", "step": 300, "reason": "no better loss for 5 validations"}
    >>> ending({"ended": ended})
    'complete at step 300 by early_stop: no better loss for 5 validations'
    """
    ended = document.get("ended")
    if not ended:
        return None
    return f"complete at step {ended['step']} by {ended['kind']}: {ended['reason']}"


def model(document: Document) -> str | None:
    """The model in a line; None if nobody described it.

    >>> facts = {"name": "mlp", "parameters": 2410, "trainable_parameters": 2410, "layers": [{}]}
    >>> model({"model": facts})
    'mlp, 2,410 parameters, 1 layer'
    """
    facts = document.get("model")
    if not facts:
        return None
    words = [str(facts["name"])] if facts.get("name") else []
    total, trained = facts.get("parameters"), facts.get("trainable_parameters")
    if total is not None:
        part = "" if trained in (None, total) else f" ({trained:,} trained)"
        words.append(f"{total:,} parameters{part}")
    if layers := model_layers(document):
        words.append(f"{len(layers):,} layer{'' if len(layers) == 1 else 's'}")
    return ", ".join(words) or None


def model_layers(document: Document) -> list[Mapping[str, Any]]:
    """The layers of the model, as they were described."""
    layers = (document.get("model") or {}).get("layers")
    told = layers if isinstance(layers, list) else []
    return [layer for layer in told if isinstance(layer, Mapping)]


def model_facts(document: Document) -> list[tuple[str, str]]:
    """What else was told about the model than its layers."""
    facts = document.get("model") or {}
    apart = {"layers"} if model_layers(document) else set()
    return list(flat({key: value for key, value in facts.items() if key not in apart}))


def loaded(document: Document) -> str | None:
    """What [[load]] has put into the run before its first step, in a line."""
    events = [e for e in document.get("history") or [] if e.get("event") == "load"]
    if not events:
        return None
    event = events[-1]
    fresh = f", {event['fresh']} stayed as they were initialised" if event.get("fresh") else ""
    sources = " and ".join(map(str, event.get("from") or []))
    told = f"{event.get('loaded')} variables of {sources}{fresh}"
    return without_passwords(f"{told} (pipefit show NAME --load)")


def history(document: Document) -> list[Entry]:
    """Changes of the experiment that were allowed, and what happened, oldest first."""
    return [
        Entry(entry["time"], entry["fence"], what)
        for entry in document.get("history") or []
        for what in _said(entry)
    ]


def _said(entry: Mapping[str, Any]) -> Iterator[str]:
    for change in entry.get("changes", ()):
        yield f"{change['key']}: {change['old']!r} → {change['new']!r}"
    details = {key: value for key, value in entry.items() if key not in _OF_ENTRIES}
    event = entry.get("event")
    if event is not None or details:
        words = ", ".join(f"{key} {_words(value)}" for key, value in details.items())
        yield without_passwords(f"{event or 'note'}: {words}" if words else str(event))


def program(document: Document) -> list[tuple[str, str]]:
    """What made the run, as lines; the versions of packages are one."""
    told = dict(document.get("program") or {})
    versions = told.get("versions")
    if isinstance(versions, Mapping):
        told["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return list(flat(told))


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as lines: "git.commit", "..."."""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from flat(item, f"{prefix}{key}.")
        elif item is not None:
            yield f"{prefix}{key}", without_passwords(_words(item))


def _words(item: object) -> str:
    if isinstance(item, Iterable) and not isinstance(item, str | Mapping):
        return " ".join(map(str, item))
    plain = as_number(item)
    return number(plain) if isinstance(plain, float) else str(item)
