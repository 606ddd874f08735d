"""What pydantic found wrong with an experiment file, in words for the person who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from pipefit.errors import without_passwords
from pipefit.refs import dotted, nearest, show, unknown
from pipefit.spec.secrets import hidden
from pipefit.spec.sections import TAGS
from pipefit.spec.tables import UnknownKey

_TEXTS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "literal_error": "must be {expected}",
    "mapping_type": "must be a table",
    "model_attributes_type": "must be a table",
    "model_type": "must be a table",
    "string_too_short": "must not be empty",
    "string_type": "must be text, in quotes",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}


def ready_made(lines: Sequence[str]) -> PydanticCustomError:
    """What a validator raises that has the lines of its problems ready."""
    return PydanticCustomError("ready_made", "see the lines", {"lines": list(lines)})


def report(lines: Sequence[str], origin: Path | None) -> str:
    """The message of a SpecError: the file before the first problem, the others below."""
    return without_passwords(f"{origin}: " * (origin is not None) + "\n".join(lines))


def described(error: ValidationError) -> list[str]:
    """One line per problem; unknown keys first, since a misspelt key is missing as well."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    lines = [line for detail in details for line in _lines(detail)]
    return list(dict.fromkeys(lines))


def _lines(detail: ErrorDetails) -> list[str]:
    context: dict[str, Any] = detail.get("ctx", {})
    if detail["type"] == "ready_made":
        return list(context["lines"])
    place, value = _place(detail["loc"]), detail["input"]
    if detail["type"] == "missing":
        return [f"{place}: is required{_meant(place, value)}"]
    if isinstance(value, UnknownKey):
        key = str(detail["loc"][-1])
        shown = show(hidden({key: value.value})[key])
        return [f"{place} = {shown}: {unknown('unknown key', key, value.allowed)}"]
    template = _TEXTS.get(detail["type"])
    text = template.format(**context) if template else detail["msg"]
    return [f"{place} = {show(hidden(value))}: {text}"]


def _place(loc: Sequence[int | str]) -> str:
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part not in TAGS and part != "[key]":
            place = dotted(place, part)
    return place


def _meant(key: str, table: object) -> str:
    """In a builder table a misspelt key of ours has become an argument."""
    arguments = table.get("arguments", ()) if isinstance(table, dict) else ()
    close = nearest(key.rpartition(".")[2], arguments)
    return f"; is {close!r} meant?" if close else ""
