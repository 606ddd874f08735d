"""The names that the statements of a module or class body bind, read from the parsed text."""

from __future__ import annotations

import ast
from collections.abc import Iterator

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

#: What binds a name: a definition, an import, or None where only running the code would tell.
Binding = FunctionNode | ast.ClassDef | ast.alias | tuple[ast.ImportFrom, ast.alias] | None

#: The key of names imported by star.
STAR = "*"


def bindings(body: list[ast.stmt]) -> dict[str, Binding]:
    """By name the last statement of the body that binds it, None if it is a conditional one."""
    scope: dict[str, Binding] = {}
    for statement in body:
        bound = dict(_bound_by(statement))
        if STAR in bound:
            scope = dict.fromkeys(scope)  # Any of them may be replaced.
        scope.update(bound)
    return scope


def _bound_by(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, FunctionNode | ast.ClassDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield imported_as(alias), alias
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield imported_as(alias), (statement, alias)
    else:
        for node in ast.walk(statement):
            for name in _names_bound_by(node):
                yield name, None


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, FunctionNode | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from map(imported_as, node.names)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def imported_as(alias: ast.alias) -> str:
    """The name that an import binds: `a` for `import a.b`."""
    return alias.asname or alias.name.partition(".")[0]


def last_name(expression: ast.expr) -> str:
    """The last word of a dotted name, of what is called, or of what is subscripted."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return last_name(inner)
        case _:
            return ""
