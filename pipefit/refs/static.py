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
from pipefit.refs.classes import accepted_by_class, member, resolution_order
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


def class_problem(ref: Ref, base: Ref) -> str | None:
    """Why `ref` is certainly no class derived from `base`; None if it is, or the text tells not."""
    try:
        thing, wanted = _named(ref), _named(base)
    except SpecError as error:
        return str(error)
    if isinstance(thing, Function):
        return f"is a function; must be a class derived from {base}"
    if not isinstance(thing, Class) or not isinstance(wanted, Class):
        return None
    above = [cls and (cls.module.name, cls.node.name) for cls in resolution_order(thing)]
    if None in above or (wanted.module.name, wanted.node.name) in above:
        return None
    return f"must be a class derived from {base}"


def accepted_by(ref: Ref) -> Accepted | None:
    """What the callable accepts; None if its text does not tell.

    Raises:
        SpecError: if the module or the attribute certainly does not exist or is not callable.
    """
    match _named(ref):
        case Module(name=name):
            raise SpecError(f"{name!r} is a module, not a callable: write '{name}:NAME'")
        case Function(node=node, bound=bound):
            return accepted_by_function(node, bound=bound)
        case Class() as thing:
            return accepted_by_class(thing)
    return None


def _named(ref: Ref) -> Thing:
    thing: Thing = find(ref.module)
    for name in ref.attribute.split("."):
        if isinstance(thing, Module):
            thing = attribute(thing, name)
        elif isinstance(thing, Class):
            thing = member(thing, name)
        else:
            return None
    return thing
