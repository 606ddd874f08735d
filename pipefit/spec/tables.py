"""What all tables of an experiment file have in common, and builder tables.

A table is either ours, and then unknown keys are errors, or a *builder table*: it names a callable
with `builder`, may have some keys of ours, and all its other keys are the callable's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from pipefit.errors import SpecError
from pipefit.refs import Call, parse
from pipefit.spec.values import FrozenDict, freeze


class UnknownKey(NamedTuple):
    """Stands in a table for the value of a key that is not allowed there."""

    value: Any
    allowed: tuple[str, ...]


class Table(BaseModel):
    """A table with fixed keys; immutable, and strict about types (an int is a float, though)."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        allowed = tuple(field.alias or name for name, field in cls.model_fields.items())
        return {
            key: value if key in allowed else UnknownKey(value, allowed)
            for key, value in table.items()
        }

    def table(self) -> dict[str, Any]:
        """The table as a file would have it, defaults included; a fresh copy.

        Defaults that say nothing are left out: what is absent, and tables without any key.
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        return {
            fields[name].alias or name: _as_written(value)
            for name, value in values.items()
            if not _says_nothing(value, fields[name])
        }


def _says_nothing(value: Any, field: FieldInfo) -> bool:
    return value is None or (value == {} == field.get_default(call_default_factory=True))


def _as_written(value: Any) -> Any:
    if isinstance(value, Table):
        return value.table()
    if isinstance(value, Mapping):
        return {key: _as_written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_written(item) for item in value]
    return value


def _checked_builder(text: str) -> str:
    try:
        parse(text)
    except SpecError as error:
        # Only the rule: whoever shows it puts the place and the value before it.
        raise ValueError(str(error).partition(": ")[2]) from error
    return text


#: "package.module:callable".
ImportPath = Annotated[str, AfterValidator(_checked_builder)]


class Builder(Table):
    """A builder table: a callable by import path, and its arguments.

    Attributes:
        builder: "package.module:callable".
        arguments: all keys that are not fields; tables among them with a key "builder" are calls.
    """

    builder: ImportPath
    arguments: Annotated[dict[str, Any], AfterValidator(freeze)] = Field(default_factory=FrozenDict)

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        ours = cls.own_keys()
        return {
            **{key: table[key] for key in table if key in ours},
            "arguments": {key: table[key] for key in table if key not in ours},
        }

    @classmethod
    def own_keys(cls) -> tuple[str, ...]:
        """The keys that are not arguments of the builder."""
        return tuple(name for name in cls.model_fields if name != "arguments")

    @property
    def call(self) -> Call:
        """The builder with the arguments that the table has for it."""
        return Call(self.builder, self.arguments)

    def call_table(self) -> dict[str, Any]:
        """The call as a table, for `pipefit.refs.nested_calls`."""
        return {"builder": self.builder, **self.call.arguments}

    def table(self) -> dict[str, Any]:
        """The table as a file would have it, defaults included; a fresh copy."""
        table = super().table()
        arguments = table.pop("arguments", {})
        return {**table, **arguments}


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError("names are made of letters, digits, _ and -")
    return name


T = TypeVar("T")
Name = Annotated[str, AfterValidator(_checked_name)]
#: Tables by the name the user gives them.
Named = Annotated[Mapping[Name, T], AfterValidator(FrozenDict)]
Count = Annotated[int, Field(ge=1)]
#: A number of steps; 0 means never.
Interval = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
#: A list in the file, a tuple here: strict mode alone would refuse the list.
Listed = Annotated[tuple[T, ...], Field(strict=False)]
