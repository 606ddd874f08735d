"""Calls written as tables, and making the objects they name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipefit.errors import PipefitError, SpecError
from pipefit.refs.arguments import Accepted, Problem
from pipefit.refs.names import described, dotted, show
from pipefit.refs.reference import load, parse


@dataclass(frozen=True)
class Call:
    """A builder's import path and its arguments.

    A value of `arguments`, at any depth, that is a table with a key "builder" is a call itself.
    """

    builder: str
    arguments: Mapping[str, Any]

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Call:
        """From a table as it stands in the file: all keys but "builder" are arguments."""
        return cls(table["builder"], {key: table[key] for key in table if key != "builder"})


def is_call(value: object) -> bool:
    """Whether a value of a table is a call."""
    return isinstance(value, Mapping) and "builder" in value


def nested_calls(value: object, where: str) -> Iterator[tuple[str, Call]]:
    """All calls in a value, outermost first, each with its dotted place."""
    if isinstance(value, Mapping):
        if "builder" in value:
            yield where, Call.of_table(value)
        for key, item in value.items():
            yield from nested_calls(item, dotted(where, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from nested_calls(item, f"{where}[{index}]")


def build(call: Call, where: str, /, **extra: Any) -> Any:
    """Make the object that a call describes, its nested calls first.

    Args:
        call: what to call; its tables are copied, never changed or handed out.
        where: dotted place of the call in the experiment file, for messages.
        **extra: arguments that Pipefit gives; the table must not have them as well.

    Raises:
        SpecError: if the builder cannot be imported, does not accept the arguments, or refuses
            them with a TypeError or ValueError (which is the cause).
    """
    builder = _load(call.builder, where)
    _refuse_twice(call, where, extra)
    arguments = {key: _built(value, dotted(where, key)) for key, value in call.arguments.items()}
    arguments.update(extra)
    _check_arguments(builder, call.builder, where, arguments)
    try:
        return builder(**arguments)
    except PipefitError:
        raise
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{where}: {call.builder} failed with {described(error)}\n"
            f"It was given {show(arguments, 400)}"
        ) from error


def _load(builder: str, where: str) -> Callable[..., Any]:
    try:
        return load(parse(builder))
    except SpecError as error:
        raise SpecError(f"{dotted(where, 'builder')} = {error}") from error.__cause__


def _refuse_twice(call: Call, where: str, extra: Mapping[str, Any]) -> None:
    for key in extra:
        if key in call.arguments:
            raise SpecError(
                f"{dotted(where, key)} = {show(call.arguments[key])}: Pipefit gives this argument "
                f"to {call.builder}; leave the key out"
            )


def _built(value: Any, where: str) -> Any:
    if is_call(value):
        return build(Call.of_table(value), where)
    if isinstance(value, Mapping):
        return {key: _built(item, dotted(where, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_built(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return copy.deepcopy(value)


def _check_arguments(
    builder: Callable[..., Any], name: str, where: str, arguments: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(builder)
    except (TypeError, ValueError):
        return  # Some C callables tell nothing about themselves: the call itself will.
    problems = Accepted.of_signature(signature).problems(name, arguments)
    if problems:
        raise SpecError("\n".join(located(problems, where, name, arguments)))


def located(
    problems: Iterable[Problem], where: str, builder: str, arguments: Mapping[str, Any]
) -> list[str]:
    """One line per problem of a call, starting with the dotted key and its value."""
    lines = []
    for argument, message in problems:
        place = dotted(where, argument or "builder")
        value = arguments.get(argument) if argument else builder
        given = not argument or argument in arguments
        lines.append(f"{place} = {show(value)}: {message}" if given else f"{place}: {message}")
    return lines
