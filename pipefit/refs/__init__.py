"""Callables named by import path, `package.module:callable`, and calls written as tables.

The scheduling process only *checks* a call, by reading source (`check`, `problems`); the worker
process *builds* it, by importing (`load`, `build`). Both say what is wrong in the same words.

    >>> ref = parse("keras.optimizers:SGD")
    >>> ref.module, ref.attribute
    ('keras.optimizers', 'SGD')
    >>> build(Call("builtins:dict", {"units": [1, 2]}), "model")
    {'units': [1, 2]}
"""

from pipefit.refs.building import Call, build, is_call, located, nested_calls
from pipefit.refs.names import dotted, nearest, qualified_name, show, unknown
from pipefit.refs.reference import Ref, importable, load, parse
from pipefit.refs.static import check, class_problem, problems

__all__ = [
    "Call",
    "Ref",
    "build",
    "check",
    "class_problem",
    "dotted",
    "importable",
    "is_call",
    "load",
    "located",
    "nearest",
    "nested_calls",
    "parse",
    "problems",
    "qualified_name",
    "show",
    "unknown",
]
