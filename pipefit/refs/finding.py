"""Finding and parsing modules without importing them, nor the packages they are in."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source
from pathlib import Path

from pipefit.errors import SpecError
from pipefit.refs.names import nearest
from pipefit.refs.scopes import Binding, bindings

#: Text by which a module may define names that its statements do not show.
_HIDES_NAMES = re.compile(
    r"__getattr__|__dict__|sys\.modules|\b(globals|vars|setattr|exec)\(|^\s+global\b", re.MULTILINE
)
#: Text by which a module may make modules importable that are in none of the folders searched.
_HIDES_MODULES = re.compile(r"__path__|sys\.(modules|path|meta_path)|\bexec\(")


@dataclass(frozen=True)
class Source:
    """What one Python file tells.

    Attributes:
        scope: the names its statements bind.
        hides_names: whether it may define others when it runs.
        hides_modules: whether modules that are nowhere to be found may exist once it ran.
    """

    scope: Mapping[str, Binding]
    hides_names: bool
    hides_modules: bool


@dataclass(frozen=True)
class Module:
    """A module that exists, found but not imported.

    Attributes:
        name: full dotted name.
        file: its Python file; None for namespace packages, C extensions and built-in modules.
        folders: where its submodules are; None if it is no package.
    """

    name: str
    file: Path | None
    folders: tuple[str, ...] | None

    @property
    def package(self) -> str:
        """The package that relative imports in this module start from."""
        return self.name if self.folders is not None else self.name.rpartition(".")[0]

    def source(self) -> Source | None:
        """The parsed file, None if there is no Python text to look at.

        Raises:
            SpecError: if the file is not valid Python.
        """
        if self.file is None:
            return None
        stat = self.file.stat()
        return _parsed(self.file, stat.st_mtime_ns, stat.st_size)

    @property
    def hides_modules(self) -> bool:
        """Whether modules that are nowhere to be found may exist once this one was imported."""
        source = self.source()
        return source.hides_modules if source else self.folders is None


class ModuleMissing(SpecError):
    """There certainly is no such module."""


@functools.lru_cache(maxsize=256)
def _parsed(file: Path, _modified: int, _size: int) -> Source:
    try:
        text = decode_source(file.read_bytes())
        return Source(
            scope=bindings(ast.parse(text).body),
            hides_names=bool(_HIDES_NAMES.search(text)),
            hides_modules=bool(_HIDES_MODULES.search(text)),
        )
    except SyntaxError as error:
        place = f"{file}, line {error.lineno}" if error.lineno else str(file)
        raise SpecError(f"{place}: is not valid Python: {error.msg}") from error
    except ValueError as error:
        raise SpecError(f"{file}: is not valid Python: {error}") from error


def find(name: str) -> Module | None:
    """Find a module as `import` would, level by level.

    Returns:
        None if a package on the way decides at run time what its submodules are.

    Raises:
        ModuleMissing: naming the nearest module that exists and the folders that were searched.
    """
    module: Module | None = None
    for part in name.split("."):
        child = find_child(module, part)
        if child is None:
            if module is not None and module.hides_modules:
                return None
            raise ModuleMissing(_missing(name, module, part))
        module = child
    return module


def find_child(parent: Module | None, name: str) -> Module | None:
    """The module `name` at top level or directly in `parent`; None if there is none."""
    full = f"{parent.name}.{name}" if parent else name
    folders = None if parent is None else list(parent.folders or ())
    spec = _find_spec(full, name, folders)
    if spec is None:
        # Folders may have changed since their listing was cached.
        importlib.invalidate_caches()
        spec = _find_spec(full, name, folders)
    if spec is None:
        return None
    locations = spec.submodule_search_locations
    is_text = bool(spec.has_location and spec.origin and spec.origin.endswith(".py"))
    return Module(
        name=full,
        file=Path(spec.origin) if is_text and spec.origin else None,
        folders=None if locations is None else tuple(locations),
    )


def _find_spec(full: str, name: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is PathFinder:
            # By the last name only: with a dotted one, PathFinder wants a namespace package's
            # parent to be imported.
            spec = PathFinder.find_spec(name, folders)
        else:
            spec = _foreign_spec(finder, full, folders)
        if spec is not None:
            return spec
    return None


def _foreign_spec(finder: object, full: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    """Ask a finder that someone else installed, such as setuptools' for editable installs."""
    find_spec = getattr(finder, "find_spec", None)
    if find_spec is None:
        return None
    try:
        spec: ModuleSpec | None = find_spec(full, folders, None)
    except KeyError:
        return None  # It looked for the imported parent; PathFinder has answered already.
    return spec


def _missing(name: str, parent: Module | None, part: str) -> str:
    if parent is None:
        # Editable installs are in no folder that could be listed, but may be loaded.
        close = nearest(part, {*sys.modules, *(module.name for module in pkgutil.iter_modules())})
        searched = f"searched: {', '.join(path or '.' for path in sys.path)}"
        hint = f", nearest is {close!r}" if close else ""
        return f"there is no module {part!r}{hint} ({searched})"
    if parent.folders is None:
        return f"there is no module {name!r}: {parent.name!r} ({parent.file}) is not a package"
    inside = sorted(module.name for module in pkgutil.iter_modules(list(parent.folders)))
    close = nearest(part, inside)
    hint = f", nearest in it is {close!r}" if close else f" (modules: {', '.join(inside)})"
    return f"there is no module {part!r} in {parent.name!r} ({', '.join(parent.folders)}){hint}"
