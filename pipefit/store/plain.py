"""Plain values: what a run's document and records may hold besides arrays.

    >>> plain({"$loss": float("nan"), "size.of": (3, 4), "deep": {"": [True, None]}})
    {'$loss': nan, 'size.of': [3, 4], 'deep': {'': [True, None]}}

Every store gives them back as they are; of numpy's numbers and arrays, and of tuples, the same
numbers in Python's own and in lists. What would come back as something else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipefit.errors import StoreError

_SINGLE = str | bool | int | float | None
_LOW, _HIGH = -(2**63), 2**63  # of whole numbers in MongoDB


def plain(value: Any, where: str = "") -> Any:
    """The value with numpy's scalars and arrays turned into numbers and lists; it is not changed.

    Args:
        value: what is to be stored.
        where: its key, for messages.

    Raises:
        StoreError: it is, or holds, something that would not come back; the message has the key.
    """
    if isinstance(value, Mapping):
        kept = {checked_key(key, where): item for key, item in value.items()}
        return {key: plain(item, _joined(where, key)) for key, item in kept.items()}
    if isinstance(value, _SINGLE):
        return _single(value, where)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "tolist") and getattr(value.dtype, "kind", "O") not in "mMV":
        python = value.tolist()  # asking for numpy's classes would load numpy
        if type(python) is not type(value):  # else numpy has numbers that Python has not
            return plain(python, where)
    raise _refused(where, f"{str(value)[:100]!r} of type {type(value).__name__}")


def of_python(value: Any) -> Any:
    """The same with Python's own numbers; drivers have classes of whole numbers."""
    if isinstance(value, Mapping):
        return {key: of_python(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [of_python(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _single(value: Any, where: str) -> str | float | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    # Numpy has classes that are Python's own as well; they are stored as these.
    if isinstance(value, float):
        return float(value)
    if not _LOW <= value < _HIGH:
        raise _refused(where, f"{value}, which has more than 64 bits")
    return int(value)


def checked_key(key: Any, where: str) -> str:
    """The key itself, if it comes back as it is.

    Raises:
        StoreError: it does not; the message has it, and `where` it is.
    """
    if not isinstance(key, str):
        raise StoreError(
            f"the key {key!r} of {where or 'a dictionary'} is {type(key).__name__}; it cannot be "
            "stored: keys are text"
        )
    if "\0" in key:
        raise StoreError(f"the key {_joined(where, key)!r} cannot be stored: it has a zero byte")
    return _text(key, _joined(where, key))


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused(where, f"{text[:100]!r}, which is no Unicode text") from None
    return str(text)


def _joined(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _refused(where: str, what: str) -> StoreError:
    return StoreError(
        f"{where or 'the value'} is {what}; it cannot be stored: give numbers, text, true or "
        "false, None, lists and dictionaries"
    )
