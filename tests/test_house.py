"""Who may import whom, what an import may load, and how long files and bodies may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path for part in ("pipefit", "tasks", "pipelines") for path in (ROOT / part).rglob("*.py")
)

#: Which parts of pipefit a part may import, anywhere in its files, besides itself.
MAY_IMPORT = {
    "pipefit": "errors execution spec store",
    "errors": "",
    "records": "errors",
    "refs": "errors",
    "settings": "errors",
    "spec": "errors records refs",
    "archives": "errors settings",
    "store": "errors records settings",
    "data": "archives errors records refs settings spec",
    "training": "archives errors loading records refs spec data",
    "loading": "archives errors records",
    "transfer": "archives errors records settings store",
    "report": "errors records",
    "execution": "archives errors loading records settings spec store",
    # The only file that joins what stores and what trains.
    "execution.worker": "archives errors loading records settings spec store training data",
    "cli": "archives data errors execution loading records refs report settings spec store "
    "transfer",
    "tasks": "archives errors execution records report settings spec store",
    "pipelines": "errors records settings spec tasks",
}

#: Other packages that only some parts may import.
ONLY_IN = {
    "tensorflow": "training",
    "keras": "training",
    "pymongo": "store",
    "gridfs": "store",
    "bson": "store",
    "luigi": "tasks pipelines",
    "pydantic": "spec",
    "matplotlib": "report",
    "jinja2": "report cli",
    "numpy": "data loading training store transfer report execution execution.worker",
    "pandas": "data store report cli",
    "h5py": "data loading",
    "PIL": "data",
    "pyarrow": "data",
}

#: Parts that import nothing but the standard library and these.
PLAIN = {"errors": "", "records": "", "refs": "", "settings": "platformdirs"}

#: Reading what these wrote runs what it says.
UNSAFE = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"),
    *("yaml", "ruamel"),
}
#: Calls that run a text, and words by which a call does.
RUNS_TEXT = {"eval", "exec", "compile", "system", "popen", "enable_unsafe_deserialization"}
RUNS_TEXT_WITH = {("shell", "True"), ("safe_mode", "False"), ("allow_pickle", "True")}

#: The only file that may read such a thing: what tfutils pickled, in a process of its own that can
#: make nothing but arrays, and only for those who ask for it by name.
MAY_UNPICKLE = "pipefit.transfer.tfutils.unpickler"

HEAVY = ("tensorflow", "keras", "numpy", "pandas", "matplotlib")


def part_of(module: str) -> str:
    """The part a module belongs to: "store" of "pipefit.store.codec", "tasks" of "tasks.train"."""
    names = module.split(".")
    if names[0] != "pipefit" or len(names) == 1:
        return names[0]
    return "execution.worker" if names[1:3] == ["execution", "worker"] else names[1]


def module_of(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and module of every import that runs, wherever it stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from imports(ast.Module([other], []), package)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            known = node.args and isinstance(node.args[0], ast.Constant)
            if name in ("import_module", "__import__") and known:
                yield node.lineno, str(node.args[0].value)
        yield from imports(node, package)


def forbidden(part: str, module: str) -> str | None:
    """Why `part` may not import `module`; None if it may."""
    top = module.partition(".")[0]
    if top in UNSAFE:
        return "runs what it reads"
    if module.startswith(MAY_UNPICKLE):
        return "is a program of its own"
    if top in ("pipefit", "tasks", "pipelines"):
        target = part_of(module)
        if (
            target not in MAY_IMPORT
        ):  # a name of the package itself: from pipefit import PipefitError
            target = "pipefit"
        own = {part, part.partition(".")[0], "pipefit"}
        inside = part == "execution" and target == "execution.worker"
        allowed = own | set(MAY_IMPORT[part].split())
        return None if target in allowed or inside else f"{part} may not import {target}"
    if part not in ONLY_IN.get(top, part).split():
        return f"only {ONLY_IN[top]} may import {top}"
    if part in PLAIN and top not in {*sys.stdlib_module_names, *PLAIN[part].split()}:
        return f"{part} imports nothing but the standard library"
    return None


def breaches(source: str, module: str, package: str) -> list[str]:
    part = part_of(module)
    assert part in MAY_IMPORT, f"{module}: say in MAY_IMPORT what this part may import"
    found = [
        (line, imported, forbidden(part, imported))
        for line, imported in imports(ast.parse(source), package)
        if (module, imported) != (MAY_UNPICKLE, "pickle")
    ]
    return [f"{module}:{line}: import {name}: {why}" for line, name, why in found if why]


def test_imports_follow_the_arrows():
    found = []
    for path in FILES:
        module = module_of(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found += breaches(path.read_text(encoding="utf-8"), module, package)
    assert found == []


@pytest.mark.parametrize(
    "module, source",
    [
        ("pipefit.training.loop", "from pipefit.store import open_store"),
        ("pipefit.training.loop", "def f():\n    from pipefit import store"),
        ("pipefit.training.loop", "from ..store import codec"),
        ("pipefit.store.codec", "import tensorflow as tf"),
        ("pipefit.report", "import pymongo"),
        ("pipefit.data.order", "import keras.ops"),
        ("pipefit.execution.executors", "import pipefit.training"),
        ("pipefit.execution.executors", "importlib.import_module('pipefit.training')"),
        ("pipefit.cli", "if x:\n    from pipefit.training import Loop"),
        ("pipefit.spec.reading", "from pipefit import data"),
        ("pipefit.records", "import numpy as np"),
        ("pipefit.settings", "import luigi"),
        ("pipefit.archives.cache", "import pipefit.records"),
        ("pipefit.store.codec", "import pickle"),
        ("pipefit.transfer.tfutils.unpickler", "import dill"),
        ("pipefit.transfer.tfutils.items", "from pipefit.transfer.tfutils import unpickler"),
        ("pipefit.cli", "import tasks.train"),
        ("tasks.train", "from pipefit.training import Loop"),
        ("tasks.train", "from pipelines import main"),
        ("pipelines.main", "from pipefit.store import open_store"),
        ("pipefit.records", "if TYPE_CHECKING:\n    pass\nelse:\n    import numpy"),
    ],
)
def test_a_wrong_arrow_is_found(module, source):
    assert len(breaches(source, module, module.rpartition(".")[0])) == 1


@pytest.mark.parametrize(
    "module, source",
    [
        ("pipefit.records", "if TYPE_CHECKING:\n    import numpy as np"),
        ("pipefit.report", "from pipefit import PipefitError"),
        ("pipefit.settings", "def home():\n    import platformdirs"),
        ("pipefit.execution.worker", "from pipefit import store, training"),
        ("pipefit.execution.executors", "from pipefit.execution import worker"),
        ("pipefit.store.writer", "from . import codec\nfrom ..errors import StoreError"),
        ("tasks.train", "import luigi\nfrom tasks.base import store"),
    ],
)
def test_a_right_arrow_is_not(module, source):
    assert breaches(source, module, module.rpartition(".")[0]) == []


@pytest.mark.parametrize("module", ["pipefit", "pipefit.cli", "pipefit.archives", "pipelines"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_and_bodies_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    long = []
    for function in functions(ast.parse(text)):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if body and body[-1].end_lineno - body[0].lineno + 1 > 40:
            long.append(f"{function.name}, line {function.lineno}")
    assert long == []


def undocumented(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            decorators = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
            if not ast.get_docstring(node) and not decorators & {"overload", "setter", "override"}:
                yield f"{node.name}, line {node.lineno}"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node)


@pytest.mark.parametrize("path", [p for p in FILES if "pipefit" in p.parts], ids=module_of)
def test_public_names_are_documented(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "the module has no docstring"
    assert list(undocumented(tree)) == []


def running_text(tree: ast.AST) -> Iterator[str]:
    """Calls that run a text, or what they read."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        own = isinstance(node.func, ast.Name) or name.partition(".")[0] in ("os", "builtins")
        if name.rpartition(".")[2] in RUNS_TEXT and (own or "unsafe" in name):
            yield f"{node.lineno}: {name}"
        words = {(word.arg, ast.unparse(word.value)) for word in node.keywords}
        for word, value in words & RUNS_TEXT_WITH:
            yield f"{node.lineno}: {name}(..., {word}={value})"


def test_no_text_is_run():
    for path in [*FILES, ROOT / "setup.py", *(ROOT / "configs").rglob("*.py")]:
        assert list(running_text(ast.parse(path.read_text(encoding="utf-8")))) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "exec(x, {})",
        "compile(x, '', 'exec')",
        "os.system(x)",
        "os.popen(x)",
        "subprocess.run(x, shell=True)",
        "keras.models.load_model(x, safe_mode=False)",
        "keras.config.enable_unsafe_deserialization()",
        "np.load(x, allow_pickle=True)",
    ],
)
def test_text_that_is_run_is_found(source):
    assert len(list(running_text(ast.parse(source)))) == 1
    assert not list(running_text(ast.parse("re.compile(x); model.compile(loss=x); d.eval(x)")))


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_numpy_never_unpickles(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    assert not [w for w in words if w.arg == "allow_pickle" and ast.unparse(w.value) != "False"]


def test_no_two_test_files_have_one_name():
    # pytest would take the second for the first.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
