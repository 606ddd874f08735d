"""The values a TOML file can hold: checked, frozen, and written as JSON without loss.

JSON has no infinity, NaN or dates: they are written as ``{"__toml__": "2024-05-01"}``, the text
being what a TOML file would have.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from datetime import date, time
from typing import Any, NoReturn

from pipefit.errors import SpecError
from pipefit.refs import dotted, show

_TAG = "__toml__"
_INT64 = range(-(2**63), 2**63)


class _Frozen:
    """What containers that cannot be changed refuse with."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a spec cannot be changed; read the file again with overrides instead")


class FrozenDict(_Frozen, dict[str, Any]):
    """A dict that cannot be changed, and so is its own deep copy."""

    __setitem__ = __delitem__ = __ior__ = _Frozen._refuse
    clear = pop = popitem = setdefault = update = _Frozen._refuse

    def __deepcopy__(self, memo: object) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(_Frozen, list[Any]):
    """A list that cannot be changed, and so is its own deep copy."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _Frozen._refuse
    append = extend = insert = remove = _Frozen._refuse
    clear = pop = sort = reverse = _Frozen._refuse

    def __deepcopy__(self, memo: object) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def freeze(value: Any) -> Any:
    """A copy whose tables and lists cannot be changed."""
    if isinstance(value, Mapping):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """A copy made of plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


def plain(value: Any, where: str = "") -> Any:
    """A copy made only of what TOML has; tuples become lists, NumPy's floats become floats.

    Raises:
        SpecError: naming the dotted place of anything else.
    """
    match value:
        case bool() | date() | time(tzinfo=None):
            return value
        case int() if int(value) in _INT64:
            return int(value)
        case int():
            raise SpecError(f"{where} = {show(value)}: whole numbers must fit into 64 bits")
        case float():
            return float(value)
        case str():
            return str(value)
        case list() | tuple():
            return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        case Mapping():
            return {
                _key(key, where): plain(item, dotted(where, key)) for key, item in value.items()
            }
    raise SpecError(
        f"{where} = {show(value)}: is a {type(value).__name__}, which TOML does not have; "
        "allowed are text, numbers, booleans, dates, lists and tables"
    )


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return str(key)
    raise SpecError(f"{where}: the key {show(key)} is a {type(key).__name__}; keys must be text")


def to_json_value(value: Any) -> Any:
    """A TOML value as JSON can hold it."""
    match value:
        case Mapping():
            items = {key: to_json_value(item) for key, item in value.items()}
            return {_TAG: items} if set(items) == {_TAG} else items
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case float() if not math.isfinite(value):
            return {_TAG: str(value)}
        case date() | time():
            return {_TAG: value.isoformat()}
    return value


def from_json_value(value: Any) -> Any:
    """The TOML value that `to_json_value` wrote."""
    match value:
        case {"__toml__": str(text), **others} if not others:
            return tomllib.loads(f"value = {text}")["value"]
        case {"__toml__": dict(table), **others} if not others:
            return {key: from_json_value(item) for key, item in table.items()}
        case dict():
            return {key: from_json_value(item) for key, item in value.items()}
        case list():
            return [from_json_value(item) for item in value]
    return value
