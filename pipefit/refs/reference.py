"""Import paths `package.module:callable`: reading them, and importing what they name."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any, NamedTuple

from pipefit.errors import SpecError
from pipefit.refs.names import described, nearest, show

_RULE = "must be an import path 'package.module:callable', such as 'keras.optimizers:SGD'"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Ref(NamedTuple):
    """A callable by its place: a module's dotted name and a dotted path of attributes in it."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


def parse(text: object) -> Ref:
    """Read an import path.

    Raises:
        SpecError: if it is not text written as `package.module:callable`.
    """
    hint = ""
    if isinstance(text, str):
        module, colon, attribute = text.partition(":")
        if colon and _is_dotted_name(module) and _is_dotted_name(attribute):
            return Ref(module, attribute)
        if not colon and "." in text and _is_dotted_name(text):
            hint = f"; is '{':'.join(text.rsplit('.', 1))}' meant?"
    raise SpecError(f"{show(text)}: {_RULE}{hint}")


def _is_dotted_name(text: str) -> bool:
    return bool(_DOTTED.fullmatch(text)) and not any(map(iskeyword, text.split(".")))


def load(ref: Ref) -> Callable[..., Any]:
    """Import what `ref` names; runs the module's code, so only the worker process does this.

    Raises:
        SpecError: if the module cannot be imported (the exception its code raised is the cause),
            or the attribute is missing or not callable.
    """
    try:
        thing: Any = importlib.import_module(ref.module)
    except Exception as error:
        raise SpecError(
            f"{show(str(ref))}: importing {ref.module!r} failed with {described(error)}"
        ) from error
    for name in ref.attribute.split("."):
        thing = _attribute(ref, thing, name)
    if not callable(thing):
        raise SpecError(f"{show(str(ref))}: is {show(repr(thing))}, not a callable")
    return thing  # type: ignore[no-any-return]


def _attribute(ref: Ref, thing: object, name: str) -> object:
    try:
        return getattr(thing, name)
    except AttributeError as error:
        close = nearest(name, dir(thing))
        hint = f", nearest is {close!r}" if close else ""
        raise SpecError(f"{show(str(ref))}: there is no {name!r}{hint}") from error


@contextmanager
def importable(folders: Sequence[str]) -> Iterator[None]:
    """Put folders in front of `sys.path`, in this order, for the time of the block."""
    before = list(sys.path)
    sys.path[:0] = folders
    try:
        yield
    finally:
        sys.path[:] = before
