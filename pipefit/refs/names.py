"""Words for messages and provenance: the nearest name, dotted places, short values."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

#: Files whose frames in a traceback say nothing about where a user's code failed.
_MACHINERY = ("<frozen ", importlib.__file__, str(Path(__file__).parent))
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that `word` was probably meant to be, None if none is close.

    >>> nearest("stepz", ["data", "steps"])
    'steps'
    """
    by_lower = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def unknown(what: str, word: str, allowed: Collection[str]) -> str:
    """The half sentence about a word that is not allowed.

    >>> unknown("unknown key", "stepz", ["data", "steps"])
    "unknown key, nearest allowed is 'steps' (allowed: data, steps)"
    """
    close = nearest(word, allowed)
    hint = f", nearest allowed is {close!r}" if close else ""
    return f"{what}{hint} (allowed: {', '.join(allowed) or 'none'})"


def dotted(place: str, *keys: str) -> str:
    """The TOML key of what lies below `place` ("" for the whole file); keys are quoted if needed.

    >>> dotted("optimizer", "scale", "^a.b")
    'optimizer.scale."^a.b"'
    """
    return ".".join([*([place] if place else []), *map(quoted, keys)])


def quoted(key: str) -> str:
    """One key as TOML writes it: bare if it can be, else in double quotes."""
    if _BARE_KEY.fullmatch(key):
        return key
    return json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007f")


def show(value: object, width: int = 80) -> str:
    """A value as the experiment file would have it, shortened to `width` characters.

    >>> show({"builder": "a:b", "staircase": True})
    '{ builder = "a:b", staircase = true }'
    """
    text = _literal(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, dict):
        items = ", ".join(f"{quoted(str(key))} = {_literal(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    return str(value)


def described(error: BaseException) -> str:
    """An exception for a message: its type, its text and where it was raised."""
    place = _raised_at(error)
    return f"{type(error).__name__}: {error}" + (f" (raised at {place})" if place else "")


def _raised_at(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # Its text has the place.
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_MACHINERY):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def qualified_name(thing: Any) -> str:
    """What a callable is, for provenance: never an address, the same in every process.

    Functions and classes are "module:qualname", partials show their function and arguments,
    other instances their class with the values of `get_config()` or of their dataclass fields.

    >>> qualified_name(functools.partial(nearest, "a", allowed=["b"]))
    "functools.partial(pipefit.refs.names:nearest, 'a', allowed=['b'])"
    """
    if isinstance(thing, functools.partial):
        inside = [qualified_name(thing.func), *_rendered(thing.args, thing.keywords)]
        return f"functools.partial({', '.join(inside)})"
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if isinstance(name, str):
        # Methods of built-in objects have a module of None.
        return f"{getattr(thing, '__module__', None) or type(thing).__module__}:{name}"
    return f"{qualified_name(type(thing))}({', '.join(_rendered((), _config(thing)))})"


def _rendered(positional: Iterable[object], named: Mapping[str, Any]) -> list[str]:
    return [*map(_render, positional), *(f"{key}={_render(item)}" for key, item in named.items())]


def _render(value: object) -> str:
    if value is None or isinstance(value, str | bytes | int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_render, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_render(item)}' for key, item in value.items())}}}"
    return qualified_name(value)


def _config(thing: Any) -> Mapping[str, Any]:
    if callable(getattr(thing, "get_config", None)):
        try:
            return dict(thing.get_config())
        except NotImplementedError:  # Keras' answer for models that have none.
            return {}
    if dataclasses.is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return {}
