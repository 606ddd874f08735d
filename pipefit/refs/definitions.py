"""Following names through modules, imports and re-exports to the statement that defines them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from pipefit.errors import SpecError
from pipefit.refs.finding import Module, ModuleMissing, find, find_child
from pipefit.refs.names import nearest
from pipefit.refs.scopes import STAR, Binding, FunctionNode


@dataclass(frozen=True)
class Function:
    """A `def`; `bound` says that its first argument is given by what it was reached through."""

    module: Module
    node: FunctionNode
    bound: bool = False


@dataclass(frozen=True)
class Class:
    """A `class` statement and the module it stands in."""

    module: Module
    node: ast.ClassDef


#: What a name stands for; None where reading the text does not tell.
Thing = Module | Function | Class | None


def attribute(module: Module, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Thing:
    """What `module.name` is after the module was imported.

    Args:
        module: the module.
        name: a name in it.
        seen: (module, name) that are being followed, so that circles end.

    Raises:
        SpecError: if the name is certainly not defined.
    """
    source = module.source()
    if source is None:
        return find_child(module, name)
    if name in source.scope and (module.name, name) not in seen:
        return _follow(module, source.scope[name], seen | {(module.name, name)})
    # `from . import name` in a package's own __init__ leads here too: it means the submodule.
    if child := find_child(module, name):
        return child
    if name in source.scope or STAR in source.scope or source.hides_names or name.startswith("__"):
        return None
    raise SpecError(absent(f"module {module.name!r} ({module.file})", name, source.scope))


def absent(owner: str, name: str, defined: Iterable[str]) -> str:
    """The sentence about a name that `owner` does not define."""
    public = sorted(key for key in defined if not key.startswith("_"))
    close = nearest(name, public)
    hint = f", nearest is {close!r}" if close else f" (it has: {', '.join(public) or 'nothing'})"
    return f"{owner} has no {name!r}{hint}"


def _follow(module: Module, binding: Binding, seen: frozenset[tuple[str, str]]) -> Thing:
    if isinstance(binding, FunctionNode):
        return Function(module, binding)
    if isinstance(binding, ast.ClassDef):
        return Class(module, binding)
    if isinstance(binding, ast.alias):
        return find(binding.name if binding.asname else binding.name.partition(".")[0])
    if isinstance(binding, tuple):
        return _imported(module, *binding, seen)
    return None


def _imported(
    module: Module, statement: ast.ImportFrom, alias: ast.alias, seen: frozenset[tuple[str, str]]
) -> Thing:
    name = _absolute(module, statement)
    try:
        target = find(name) if name else None
        return attribute(target, alias.name, seen) if target else None
    except ModuleMissing as error:
        if module.hides_modules:
            return None  # It may extend sys.path before the import.
        raise SpecError(f"{module.file}, line {statement.lineno}: {error}") from error


def _absolute(module: Module, statement: ast.ImportFrom) -> str | None:
    if not statement.level:
        return statement.module
    packages = module.package.split(".")
    if statement.level > len(packages):
        return None
    packages = packages[: len(packages) - statement.level + 1]
    return ".".join([*packages, statement.module] if statement.module else packages)
