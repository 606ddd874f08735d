"""What of an experiment is for nobody's eyes: it is used, and never kept, shown or hashed.

An address may have a password, which has *** in its place wherever the experiment is written down.
A password with a key of its own is refused: an experiment file is no place for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipefit.errors import hide_in_addresses, is_secret_key
from pipefit.refs import dotted

HIDDEN = "***"
_MARKED = re.compile(r"://\S*[:=]\*\*\*(?=[@&#]|$)")


def hidden(value: Any) -> Any:
    """A copy of a value of an experiment, without its secrets.

    >>> hidden({"url": "https://me:s3cret@example.org/x.tar", "token": "abc", "mask_token": "?"})
    {'url': 'https://me:***@example.org/x.tar', 'token': '***', 'mask_token': '?'}
    """
    match value:
        case Mapping():
            return {
                key: HIDDEN if _is_secret(key, item) else hidden(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [hidden(item) for item in value]
        case str():
            return hide_in_addresses(value)
    return value


def left_out(value: Any, place: str = "") -> Iterator[str]:
    """The dotted places where a secret was, and has *** now."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from left_out(item, dotted(place, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from left_out(item, f"{place}[{index}]")
    elif isinstance(value, str) and (value == HIDDEN or _MARKED.search(value)):
        yield place


def told(value: Any, place: str = "") -> Iterator[str]:
    """The dotted places of passwords that have a key of their own."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = dotted(place, key)
            if _is_secret(key, item) and item != HIDDEN:
                yield here
            else:
                yield from told(item, here)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from told(item, f"{place}[{index}]")


def _is_secret(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, str) and bool(value) and is_secret_key(key)
