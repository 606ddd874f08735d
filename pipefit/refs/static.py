"""Checking a call against its callable's source: nothing is imported.

Importing a builder's module would often load TensorFlow, which the scheduling process must not.
So the module's file is found and parsed, re-exports are followed to the `def` or `class`, and the
arguments are read there. Where that cannot decide (names that are assigned, imported by star or
made at run time, C extensions, unknown decorators) nothing is reported: the worker process
looks again, at the real thing.

    >>> check(Ref("keras.optimizers", "SGD"), ["momentum"])
    >>> check(Ref("pipefit.refs", "nearest"), ["word", "allowed", "n"])
    Traceback (most recent call last):
    pipefit.errors.SpecError: 'n': unknown argument of pipefit.refs:nearest (allowed: word, allowed)
"""

from __future__ import annotations

from collections.abc import Collection

from pipefit.errors import SpecError
from pipefit.refs.arguments import Accepted, Problem
from pipefit.refs.classes import accepted_by_class, member
from pipefit.refs.definitions import Class, Function, Thing, attribute
from pipefit.refs.finding import Module, find
from pipefit.refs.functions import accepted_by_function
from pipefit.refs.names import show
from pipefit.refs.reference import Ref


def check(ref: Ref, arguments: Collection[str]) -> None:
    """Check that the callable exists and accepts arguments of these names, as far as text tells.

    Raises:
        SpecError: listing all problems.
    """
    found = problems(ref, arguments)
    if found:
        lines = [
            f"{name!r}: {text}" if name else f"{show(str(ref))}: {text}" for name, text in found
        ]
        raise SpecError("\n".join(lines))


def problems(ref: Ref, arguments: Collection[str], keys: Collection[str] = ()) -> list[Problem]:
    """What is certainly wrong with calling `ref` with arguments of these names.

    Args:
        ref: the callable.
        arguments: names of the arguments.
        keys: what the table of the call may have besides arguments, for messages.
    """
    try:
        accepted = accepted_by(ref)
    except SpecError as error:
        return [Problem("", str(error))]
    return accepted.problems(str(ref), arguments, keys) if accepted else []


def accepted_by(ref: Ref) -> Accepted | None:
    """What the callable accepts; None if its text does not tell.

    Raises:
        SpecError: if the module or the attribute certainly does not exist or is not callable.
    """
    thing: Thing = find(ref.module)
    for name in ref.attribute.split("."):
        if isinstance(thing, Module):
            thing = attribute(thing, name)
        elif isinstance(thing, Class):
            thing = member(thing, name)
        else:
            return None
    match thing:
        case Module(name=name):
            raise SpecError(f"{name!r} is a module, not a callable: write '{name}:NAME'")
        case Function(node=node, bound=bound):
            return accepted_by_function(node, bound=bound)
        case Class():
            return accepted_by_class(thing)
    return None
