"""Whether what users' builders return can be called as it will be: see `checked`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pipefit.errors import SpecError


def checked(function: Any, where: str, arguments: Sequence[str]) -> Any:
    """The function itself, if it can be called with these arguments, given by position.

    Functions, methods, callable objects and what functools.partial makes are all fine.

    Args:
        function: what a builder returned.
        where: dotted key in the experiment file, for messages.
        arguments: what they are.

    Raises:
        SpecError: if it is not callable, or takes other arguments.
    """
    wanted = f"a function ({', '.join(arguments)})"
    if not callable(function):
        raise SpecError(f"{where}: must be {wanted}, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return function  # some C functions do not tell
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SpecError(
            f"{where}: must be {wanted}; this one has the parameters {signature}: {error}"
        ) from error
    return function
