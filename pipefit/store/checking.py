"""Whether plain data that comes from elsewhere is a run: every field is looked at, none is added.

What is let in is read later by code that trusts its own store, so whoever made it, by mistake or on
purpose, must not be able to make that code fail or do anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pipefit.errors import StoreError
from pipefit.records import RunState
from pipefit.store.columns import unpacked
from pipefit.store.documents import (
    ARTIFACT,
    ATTEMPT,
    CHECKPOINT,
    METRICS,
    OUTPUTS,
    SUMMARY,
    VALIDATED,
    VALIDATION,
)

Check = Callable[[Any], bool]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COLUMN_DTYPE = re.compile(r"[<|][biufSU][0-9]{1,9}|str|bytes")
_OUTPUT_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|b?float(16|32|64)|complex64")
_LARGEST = 2**62
#: Of names and of short texts, in characters.
_SHORT = 10_000
#: Of texts in the document of a run, which must stay far below MongoDB's limit of 16 MiB.
_LONG = 4_000_000
_DEPTH = 50


def check_document(document: Mapping[str, Any]) -> None:
    """Raise `StoreError` unless this is the document of a run."""
    lines = {"closed": _maybe(_list_of(_closed)), "dropped": _maybe(_list_of(_dropped))}
    _check_fields(document, {**_OF_RUN, **lines}, "its document")
    _check_line(document["line"], document["fence"])


def check_record(record: Mapping[str, Any]) -> None:
    """Raise `StoreError` unless this is a record of a run."""
    kind = record.get("kind")
    if kind not in _OF_KIND:
        raise _wrong(f"a record of the unknown kind {str(kind)[:100]!r}")
    where = f"a record {kind!r} of step {str(record.get('step'))[:20]}"
    _check_fields(record, {**_OF_RECORD, **_OF_KIND[kind], "branch": _maybe(_whole)}, where)
    if kind == METRICS:
        _check_columns(record["columns"], record["steps"], where)
    if kind in (VALIDATION, VALIDATED):
        _check_columns(record["values"], 1, where)


def check_column(entry: Mapping[str, Any], data: bytes | bytearray, steps: int, where: str) -> None:
    """Raise `StoreError` unless these bytes are the values that an entry says."""
    try:
        unpacked(entry, data, steps)
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise _wrong(f"{where}: value {entry['name']!r} cannot be read: {error}") from None


def _check_columns(entries: list[Mapping[str, Any]], steps: int, where: str) -> None:
    for entry in entries:
        if "data" in entry:
            check_column(entry, entry["data"], steps, where)


def _check_fields(told: Mapping[str, Any], checks: Mapping[str, Check], where: str) -> None:
    optional = {"closed", "dropped", "branch"}
    missing = checks.keys() - told.keys() - optional
    unknown = told.keys() - checks.keys()
    if missing or unknown:
        names = ", ".join(sorted(str(name)[:100] for name in missing or unknown))
        raise _wrong(f"{where} {'lacks' if missing else 'has the unknown'} {names}")
    for name, check in checks.items():
        if name in told and not check(told[name]):
            raise _wrong(f"{where}: {name} = {str(told[name])[:100]!r}")


def _check_line(line: list[list[int]], fence: int) -> None:
    fences, starts = [entry[0] for entry in line], [entry[1] for entry in line]
    grow = fences == sorted(set(fences)) and starts == sorted(set(starts))
    if not grow or max(fences, default=0) > fence:
        raise _wrong(f"its line = {str(line)[:100]}")


def _wrong(what: str) -> StoreError:
    return StoreError(
        f"this is no run that Pipefit has written: {what}; nothing of it is kept: export it again, "
        "by the same version of Pipefit"
    )


# ---- checks of values ----


def _entry(value: Any) -> bool:
    """An entry of a history."""
    if not isinstance(value, Mapping) or not _any_plain(value):
        return False
    changes = _list_of(_having(key=_short, old=_is(str), new=_is(str)))
    stamped = isinstance(value.get("time"), datetime) and _whole(value.get("fence"))
    return stamped and ("changes" not in value or changes(value["changes"]))


def _is(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _having(**checks: Check) -> Check:
    def check(value: Any) -> bool:
        return (
            isinstance(value, Mapping)
            and value.keys() == checks.keys()
            and all(inner(value[name]) for name, inner in checks.items())
        )

    return check


def _text(length: int) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= length


def _json(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONG:
        return False
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _start(value: Any) -> bool:
    return value == -1 or _whole(value)


def _number(value: Any) -> bool:
    return isinstance(value, float) or _whole(value)


def _any_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Plain values, not too deep."""
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _any_plain(v, depth - 1) for k, v in value.items())
    if isinstance(value, list):
        return all(_any_plain(item, depth - 1) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -_LARGEST <= value <= _LARGEST
    return value is None or isinstance(value, str | bool | float | datetime)


def _matching(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def _column(value: Any) -> bool:
    dtype = _matching(_COLUMN_DTYPE)
    of_all = {"name": _short, "dtype": dtype, "shape": _list_of(_whole)}
    inside = _having(**of_all, data=_is(bytes))
    return inside(value) or _having(**of_all, size=_whole, sha256=_hash)(value)


def _state(value: Any) -> bool:
    return isinstance(value, str) and value in {str(state) for state in RunState}


_short, _time, _hash = _text(_SHORT), _is(datetime), _matching(_SHA256)
_lines = _list_of(
    lambda value: (
        isinstance(value, list) and len(value) == 2 and _whole(value[0]) and _start(value[1])
    )
)
_committed = _maybe(_having(step=_whole, id=_short))
_best = _maybe(_having(metric=_short, mode=_short, value=_number, step=_whole))
_ended = _maybe(_having(kind=_short, rule=_short, step=_whole, reason=_short))
_owner = _having(host=_short, scope=_short, pid=_whole, started=_number)
_closed = _having(
    time=_time,
    fence=_whole,
    start=_whole,
    line=_lines,
    committed=_committed,
    best=_best,
    ended=_ended,
)
_dropped = _having(time=_time, line=_whole)
_attempt = {
    "fence": _whole,
    "owner": _owner,
    "started": _time,
    "start": _start,
    "ended": _maybe(_time),
    "state": _state,
    "reason": _maybe(_text(_LONG)),
    "reached": _maybe(_whole),
}


def _text_file(value: Any) -> bool:
    """A text that the document names; earlier versions did not say by which attempt."""
    told = {"name": _short, "size": _whole, "sha256": _hash}
    return _having(**told)(value) or _having(**told, fence=_whole)(value)


_described = _maybe(_having(model=_json, artifacts=_list_of(_text_file)))
_output = _having(name=_short, dtype=_matching(_OUTPUT_DTYPE), shape=_list_of(_whole))
_of_validation = {
    "metrics": lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(key, str) and _number(number) for key, number in value.items())
    ),
    "examples": _whole,
    "checkpoint": _maybe(_short),
    "seconds": _number,
    "values": _list_of(_column),
}

_OF_RUN: dict[str, Check] = {
    "identity": _short,
    "steps": _whole,
    "state": _state,
    "reason": _maybe(_text(_LONG)),
    "fence": _whole,
    "created": _time,
    "updated": _time,
    "parts": _json,
    "spec": _json,
    "program": _json,
    "line": _lines,
    "committed": _committed,
    "best": _best,
    "attempt": _having(**_attempt),
    "ended": _ended,
    "described": _described,
    "history": _list_of(_entry),
}
_OF_RECORD: dict[str, Check] = {
    "kind": _short,
    "name": _short,
    "step": _whole,
    "fence": _whole,
    "created": _time,
}
_OF_KIND: dict[str, dict[str, Check]] = {
    METRICS: {"steps": _whole, "written": _whole, "columns": _list_of(_column)},
    VALIDATION: _of_validation,
    VALIDATED: {**_of_validation, "outputs": _maybe(_short)},
    CHECKPOINT: {"size": _whole, "sha256": _hash, "kinds": _list_of(_short), "best": _best},
    SUMMARY: {"summary": lambda value: isinstance(value, Mapping) and _any_plain(value)},
    ATTEMPT: {
        **{key: check for key, check in _attempt.items() if key != "fence"},
        "program": _maybe(_json),
        "log_tail": _text(_LONG),
    },
    ARTIFACT: {"size": _whole, "sha256": _hash},
    OUTPUTS: {
        "set": _short,
        "examples": _whole,
        "columns": _list_of(
            _having(name=_short, dtype=_matching(_OUTPUT_DTYPE), shape=_list_of(_whole))
        ),
        "shards": _list_of(_having(examples=_whole, size=_whole, sha256=_hash)),
    },
}
