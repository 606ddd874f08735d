"""Members, base classes and constructors of classes, read from the parsed text."""

from __future__ import annotations

import ast

from pipefit.errors import SpecError
from pipefit.refs.arguments import Accepted
from pipefit.refs.definitions import Class, Function, Thing, absent, attribute
from pipefit.refs.finding import Module
from pipefit.refs.functions import accepted_by_function
from pipefit.refs.scopes import Binding, FunctionNode, bindings, last_name

#: Base classes that bring no constructor and no metaclass that matters.
_BARE_BASES = frozenset(("ABC", "Generic", "object"))
#: Decorators of classes that add no constructor (`dataclass` may be told not to).
_NO_CONSTRUCTOR = frozenset(("dataclass", "final", "runtime_checkable"))


def member(owner: Class, name: str) -> Thing:
    """What `owner.name` is.

    Raises:
        SpecError: if neither the class nor a base class defines the name.
    """
    defined: list[str] = []
    for cls in resolution_order(owner):
        if cls is None:
            return None
        scope = bindings(cls.node.body)
        if name in scope:
            return _as_thing(cls.module, scope[name])
        defined += scope
    if name.startswith("__"):
        return None
    raise SpecError(absent(f"class {owner.node.name!r} ({owner.module.file})", name, defined))


def _as_thing(module: Module, binding: Binding) -> Thing:
    if isinstance(binding, ast.ClassDef):
        return Class(module, binding)
    if isinstance(binding, FunctionNode):
        names = map(last_name, binding.decorator_list)
        return Function(module, binding, bound="classmethod" in names)
    return None


def accepted_by_class(owner: Class) -> Accepted | None:
    """What the constructor accepts; None if the text does not tell."""
    order = resolution_order(owner)
    for index, cls in enumerate(order):
        if cls is None or any(word.arg == "metaclass" for word in cls.node.keywords):
            return None
        scope = bindings(cls.node.body)
        if "__init__" in scope:
            init = scope["__init__"]
            if isinstance(init, FunctionNode):
                return accepted_by_function(init, bound=True)
            return None
        if _dataclass_makes_init(cls.node):
            return _accepted_by_dataclass(order[index:])
        decorators = set(map(last_name, cls.node.decorator_list))
        if "__new__" in scope or not decorators <= _NO_CONSTRUCTOR:
            return None
    return Accepted()


def resolution_order(owner: Class) -> list[Class | None]:
    """The class and its base classes in the order attributes are looked up.

    None stands for a base class whose text is not at hand, or whose name may mean several things.
    The order is Python's own: an empty class is made for each parsed one, with the same bases.
    """
    return [made.__dict__["parsed"] for made in _stand_in(owner, {}).__mro__[:-1]]


def _stand_in(owner: Class, made: dict[tuple[str, int], type]) -> type:
    key = (owner.module.name, owner.node.lineno)
    if key not in made:
        made[key] = _unknown_class()  # For a class that seems to be its own base.
        bases = [
            _base(owner.module, expression, made)
            for expression in owner.node.bases
            if last_name(expression) not in _BARE_BASES
        ]
        try:
            made[key] = type("StandIn", tuple(bases), {"parsed": owner})
        except TypeError:  # No consistent order: something was resolved wrongly.
            made[key] = _unknown_class()
    return made[key]


def _unknown_class() -> type:
    return type("StandIn", (), {"parsed": None})


def _base(module: Module, expression: ast.expr, made: dict[tuple[str, int], type]) -> type:
    thing = _evaluate(module, expression)
    return _stand_in(thing, made) if isinstance(thing, Class) else _unknown_class()


def _evaluate(module: Module, expression: ast.expr) -> Thing:
    try:
        match expression:
            case ast.Name(id=name):
                return attribute(module, name)
            case ast.Attribute(value=inner, attr=name):
                owner = _evaluate(module, inner)
                return attribute(owner, name) if isinstance(owner, Module) else None
            case ast.Subscript(value=inner):
                return _evaluate(module, inner)
    except SpecError:
        pass  # A built-in class, or something only running the module could explain.
    return None


# ---- dataclasses ----


def _dataclass_makes_init(node: ast.ClassDef) -> bool:
    return any(
        last_name(decorator) == "dataclass" and _keyword(decorator, "init") is not False
        for decorator in node.decorator_list
    )


def _accepted_by_dataclass(order: list[Class | None]) -> Accepted | None:
    fields: dict[str, bool] = {}
    for cls in reversed(order):
        if cls is None:
            return None
        if "dataclass" in map(last_name, cls.node.decorator_list):
            for statement in cls.node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    _add_field(fields, statement.target.id, statement)
    return Accepted(tuple(fields), tuple(name for name, required in fields.items() if required))


def _add_field(fields: dict[str, bool], name: str, statement: ast.AnnAssign) -> None:
    """Note a field and whether it is required, as `dataclasses` reads it."""
    if {"ClassVar", "KW_ONLY"} & _words(statement.annotation):
        return
    value = statement.value
    if value is not None and last_name(value) == "field" and isinstance(value, ast.Call):
        if _keyword(value, "init") is False:
            fields.pop(name, None)
            return
        given = {word.arg for word in value.keywords}
        fields[name] = not given & {"default", "default_factory", None}
    else:
        fields[name] = value is None


def _words(annotation: ast.expr) -> set[str]:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return set(annotation.value.replace("[", " ").replace(".", " ").split())
    return {last_name(annotation)}


def _keyword(call: ast.expr, name: str) -> object:
    for word in call.keywords if isinstance(call, ast.Call) else ():
        if word.arg == name and isinstance(word.value, ast.Constant):
            return word.value.value
    return None
