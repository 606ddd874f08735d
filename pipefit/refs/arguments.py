"""Which arguments a callable accepts by name, and what is wrong with those it is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from pipefit.refs.names import unknown


class Problem(NamedTuple):
    """A fault of a call: the argument it is about ("" for the callable itself) and the text."""

    argument: str
    message: str


@dataclass(frozen=True)
class Accepted:
    """What may be given by name.

    Attributes:
        names: the arguments, in order.
        required: those without a default.
        others: whether any other name is taken as well (`**kwargs`).
        nameless: required arguments that cannot be given by name.
    """

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    others: bool = False
    nameless: tuple[str, ...] = ()

    @classmethod
    def of_node(cls, node: ast.arguments, *, bound: bool) -> Accepted:
        """From a parsed `def`; `bound` leaves the first argument (self, cls) out."""
        positional = [arg.arg for arg in [*node.posonlyargs, *node.args]]
        with_default = len(positional) - len(node.defaults)
        required = positional[:with_default]
        only = {arg.arg for arg in node.posonlyargs}
        if bound and positional:
            first = positional.pop(0)
            only.discard(first)
            required = [name for name in required if name != first]
        required += [
            arg.arg
            for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
            if default is None
        ]
        return cls(
            names=(
                *(name for name in positional if name not in only),
                *(arg.arg for arg in node.kwonlyargs),
            ),
            required=tuple(name for name in required if name not in only),
            others=node.kwarg is not None,
            nameless=tuple(name for name in required if name in only),
        )

    @classmethod
    def of_signature(cls, signature: inspect.Signature) -> Accepted:
        """From the signature of an imported callable."""
        parameters = signature.parameters.values()
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = [
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        return cls(
            names=tuple(named),
            required=tuple(name for name in required if name in named),
            others=any(p.kind is p.VAR_KEYWORD for p in parameters),
            nameless=tuple(name for name in required if name not in named),
        )

    def problems(
        self, builder: str, given: Collection[str], keys: Collection[str] = ()
    ) -> list[Problem]:
        """What is wrong with calling `builder` with arguments of the given names.

        Args:
            builder: its import path, for messages.
            given: names of the arguments.
            keys: what the table of the call may have besides arguments, for messages.
        """
        found = [
            Problem("", f"{builder} needs {name!r} by position, so a table cannot call it")
            for name in self.nameless
        ]
        if not self.others:
            found += [
                Problem(name, unknown(f"unknown argument of {builder}", name, [*keys, *self.names]))
                for name in given
                if name not in self.names
            ]
        found += [
            Problem(name, f"missing argument of {builder} (arguments: {', '.join(self.names)})")
            for name in self.required
            if name not in given
        ]
        return found
