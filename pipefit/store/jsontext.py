"""Plain values as JSON that any program reads, and back exactly.

    >>> from datetime import UTC, datetime
    >>> text = encode({"$scale": float("nan"), "at": datetime(2026, 1, 2, tzinfo=UTC)})
    >>> text
    '{"$$scale":{"$number":"nan"},"at":{"$time":"2026-01-02T00:00:00+00:00"}}'
    >>> encode(b"bytes")
    '{"$bytes":"Ynl0ZXM="}'
    >>> decode(text)["at"].year
    2026

What JSON lacks is an object whose only key begins with a dollar sign; a dollar sign at the
beginning of one's own key is doubled.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_TIME = "$time"
_NUMBER = "$number"
_BYTES = "$bytes"


def encode(value: Any) -> str:
    """The value as one line of ASCII."""
    return json.dumps(_lowered(value), separators=(",", ":"), allow_nan=False)


def decode(text: str | bytes) -> Any:
    """The value that `encode` was given, tuples as lists.

    Raises:
        ValueError: this is no such text.
    """
    return json.loads(text, object_hook=_raised)


def _lowered(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_NUMBER: repr(value)}
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, bytes | bytearray):
        return {_BYTES: binascii.b2a_base64(value, newline=False).decode("ascii")}
    if isinstance(value, Mapping):
        return {f"${key}" if key[:1] == "$" else key: _lowered(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_lowered(item) for item in value]
    return value


def _raised(value: dict[str, Any]) -> Any:
    # No generator: every object of every record that is read comes by here.
    for key in value:
        if key[:1] == "$":
            break
    else:
        return value
    if _NUMBER in value:
        return float(value[_NUMBER])
    if _TIME in value:
        return datetime.fromisoformat(value[_TIME])
    if _BYTES in value:
        return binascii.a2b_base64(value[_BYTES], strict_mode=True)
    return {key[1:] if key[:1] == "$" else key: item for key, item in value.items()}
