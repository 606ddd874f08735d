"""Checking calls by reading source: what is found, what is left open, and that nothing runs."""

import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipefit.errors import SpecError
from pipefit.refs import check, class_problem, parse, problems

EXPLODE = "raise RuntimeError('this module was imported')\n"


def complaint(text: str, *arguments: str) -> str:
    """The problems of a call, "" if there are none."""
    try:
        check(parse(text), arguments)
    except SpecError as error:
        return str(error)
    return ""


def test_an_unknown_argument_names_the_nearest_and_all(modules):
    modules({"nets.py": EXPLODE + "def mlp(units, outputs, dropout=0.0): ..."})
    assert complaint("nets:mlp", "units", "outputs") == ""
    assert complaint("nets:mlp", "units", "outputs", "dropuot") == (
        "'dropuot': unknown argument of nets:mlp, nearest allowed is 'dropout' "
        "(allowed: units, outputs, dropout)"
    )


def test_missing_required_arguments_are_all_listed(modules):
    modules({"nets.py": "def mlp(units, *, outputs, dropout=0.0): ..."})
    assert complaint("nets:mlp", "dropout").splitlines() == [
        "'units': missing argument of nets:mlp (arguments: units, outputs, dropout)",
        "'outputs': missing argument of nets:mlp (arguments: units, outputs, dropout)",
    ]


def test_any_name_is_accepted_by_keyword_arguments_but_required_ones_stay_so(modules):
    modules({"nets.py": "def f(units, **others): ..."})
    assert complaint("nets:f", "units", "anything") == ""
    assert "'units': missing" in complaint("nets:f", "anything")


def test_an_argument_that_has_no_name_cannot_be_given(modules):
    modules({"nets.py": "def f(units, /, outputs=1): ..."})
    assert "needs 'units' by position" in complaint("nets:f")
    assert "'units': unknown argument" in complaint("nets:f", "units")


def test_keys_of_the_table_itself_are_offered_as_well(modules):
    modules({"nets.py": "def f(units=1): ..."})
    [problem] = problems(parse("nets:f"), ["device"], keys=["devices"])
    assert problem.argument == "device"
    assert "nearest allowed is 'devices' (allowed: devices, units)" in problem.message


REEXPORTS = {
    "zoo/__init__.py": "from zoo.public import Net as Model\nfrom . import public\n" + EXPLODE,
    "zoo/public.py": "from .hidden import Net\nfrom .hidden.deep import net as make_net\n"
    + EXPLODE,
    "zoo/hidden/__init__.py": "from .deep import Network as Net\n" + EXPLODE,
    "zoo/hidden/deep.py": """
        from ..shapes import Base as B
        import zoo.shapes as s
        class Network(B): pass
        class Other(s.Base): pass
        def net(units): pass
    """,
    "zoo/shapes.py": "class Base:\n    def __init__(self, shape): pass\n" + EXPLODE,
}


@pytest.mark.parametrize(
    "text",
    [
        "zoo:Model",
        "zoo.public:Net",
        "zoo.hidden:Net",
        "zoo:public.Net",
        "zoo.hidden.deep:Network",
        "zoo.hidden.deep:Other",
    ],
)
def test_reexports_and_base_classes_are_followed_over_several_hops(modules, text):
    modules(REEXPORTS)
    assert complaint(text, "shape") == ""
    assert "nearest allowed is 'shape'" in complaint(text, "shap")


def test_a_renamed_function_is_followed(modules):
    modules(REEXPORTS)
    assert "'unit': unknown argument" in complaint("zoo.public:make_net", "unit")


def test_circular_imports_end(modules):
    modules({"a.py": "from b import f", "b.py": "from a import f", "c.py": "class C(C): ..."})
    assert complaint("a:f", "x") == ""
    assert complaint("c:C", "x") == ""


def test_the_most_derived_constructor_counts_in_a_diamond(modules):
    modules(
        {
            "nets.py": """
            class Top:
                def __init__(self, top): ...
            class Left(Top): ...
            class Right(Top):
                def __init__(self, right): ...
            class Bottom(Left, Right): ...
            """
        }
    )
    assert complaint("nets:Bottom", "right") == ""
    assert "'top': unknown" in complaint("nets:Bottom", "top", "right")


def test_a_class_without_constructor_takes_no_arguments(modules):
    modules({"nets.py": "from abc import ABC\nclass A: ...\nclass B(A, ABC): ..."})
    assert complaint("nets:B") == ""
    assert "'x': unknown argument of nets:B (allowed: none)" in complaint("nets:B", "x")


def test_dataclass_fields_are_arguments(modules):
    modules(
        {
            "sources.py": """
            from dataclasses import KW_ONLY, dataclass, field
            from typing import ClassVar
            @dataclass
            class Base:
                path: str
                kind: ClassVar[str] = "x"
                other: "ClassVar[str]" = "x"
            @dataclass(frozen=True)
            class Source(Base):
                size: int = 3
                names: list = field(default_factory=list)
                _: KW_ONLY
                cache: dict = field(init=False)
                label: str = field(repr=False)
            @dataclass(init=False)
            class Own(Source):
                def __init__(self, own): ...
            """
        }
    )
    assert complaint("sources:Source", "path", "size", "names", "label") == ""
    lines = complaint("sources:Source", "cache", "kind", "other").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "'cache'", "'kind'", "'other'", "'path'", "'label'",
    ]  # fmt: skip
    assert "(allowed: path, size, names, label)" in lines[0]
    assert complaint("sources:Own", "own") == ""


def test_methods_and_nested_classes_are_reached_through_their_class(modules):
    modules(
        {
            "nets.py": """
            class Base:
                @classmethod
                def named(cls, name): ...
                @staticmethod
                def of(size): ...
                class Inner:
                    def __init__(self, x): ...
            class Net(Base): ...
            """
        }
    )
    assert complaint("nets:Net.named", "name") == ""
    assert complaint("nets:Net.of", "size") == ""
    assert complaint("nets:Net.Inner", "x") == ""
    assert "has no 'nmed', nearest is 'named'" in complaint("nets:Net.nmed")


UNDECIDED = {
    "star": "from elsewhere import *",
    "assigned": "f = make()",
    "chosen": "try:\n    from fast import f\nexcept ImportError:\n    def f(a): ...",
    "conditional": "if something:\n    def f(a): ...",
    "replaced": "def f(a): ...\nfrom fast import *",
    "made": "globals()['f'] = print",
    "lazy": "def __getattr__(name): ...",
    "declared": "def setup():\n    global f\n    f = print",
    "decorated": "@inject\ndef f(rng, a): ...",
    "metaclass": "class f(metaclass=Registry):\n    def __init__(self, a): ...",
    "new": "class f:\n    def __new__(cls, a): ...",
    "unknown_base": "from nowhere_at_all import B\nclass f(B): ...",
    "called_base": "class f(namedtuple('f', 'a b')): ...",
    "builtin_base": "class f(dict): ...",
    "attrs": "@define\nclass f:\n    a: int",
    "init_assigned": "class f:\n    __init__ = other",
    "partial_dataclass": "@dataclass\nclass f(Unknown):\n    a: int",
    "extends_path": "import sys\nsys.path.append('/zoo')\nfrom lab_tools import f",
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_reading_cannot_decide_is_left_to_the_worker(modules, name):
    modules({"undecided.py": UNDECIDED[name]})
    assert complaint("undecided:f", "anything") == ""


@pytest.mark.parametrize("text", ["math:sin", "builtins:dict", "os.path:join", "sys:exit"])
def test_modules_without_python_text_are_left_to_the_worker(text):
    assert complaint(text, "anything") == ""


def test_a_constructor_counts_whatever_decorates_the_class(modules):
    modules({"nets.py": "@register('x')\nclass Net:\n    def __init__(self, a): ..."})
    assert "'b': unknown" in complaint("nets:Net", "a", "b")


def test_a_missing_module_names_what_was_searched_and_the_nearest(modules):
    folder = modules({"zoo/__init__.py": "", "zoo/models.py": "", "single.py": ""})
    assert complaint("zoo.modles:f") == (
        f"\"zoo.modles:f\": there is no module 'modles' in 'zoo' ({folder / 'zoo'}), "
        "nearest in it is 'models'"
    )
    assert "nearest is 'single'" in complaint("singel:f")
    assert f"searched: {folder}, " in complaint("singel:f")
    assert f"'single' ({folder / 'single.py'}) is not a package" in complaint("single.x:f")


def test_a_missing_attribute_names_the_nearest_and_the_file(modules):
    folder = modules({"nets.py": "def mlp(): ...\ndef convnet(): ..."})
    assert complaint("nets:mpl") == (
        f"\"nets:mpl\": module 'nets' ({folder / 'nets.py'}) has no 'mpl', nearest is 'mlp'"
    )
    assert "(it has: convnet, mlp)" in complaint("nets:transformer")


def test_a_module_is_not_a_callable(modules):
    modules({"zoo/__init__.py": "", "zoo/models.py": ""})
    assert "'zoo.models' is a module, not a callable" in complaint("zoo:models")


def test_an_import_that_must_fail_names_its_line(modules):
    folder = modules({"nets.py": "import os\nfrom nowhere_at_all import f"})
    assert f"{folder / 'nets.py'}, line 2: there is no module" in complaint("nets:f")


def test_a_file_that_is_not_python_names_its_line(modules):
    folder = modules({"nets.py": "x = 1\ndef f(:\n"})
    assert f"{folder / 'nets.py'}, line 2: is not valid Python" in complaint("nets:f")


def test_packages_that_change_their_path_may_have_any_submodule(modules):
    modules({"zoo/__init__.py": "__path__.append('/elsewhere')"})
    assert complaint("zoo.models:f") == ""


def test_a_file_that_changes_is_read_again(modules):
    modules({"nets.py": "def f(a): ..."})
    assert complaint("nets:f", "a") == ""
    modules({"nets.py": "def f(longer): ..."})
    assert "'a': unknown" in complaint("nets:f", "a")


def test_folders_without_init_are_packages(modules):
    modules({"zoo/deep/nets.py": "def f(a): ..."})
    assert complaint("zoo.deep.nets:f", "a") == ""
    assert "'b': unknown" in complaint("zoo.deep.nets:f", "b")


def test_a_finder_of_an_editable_install_is_asked(tmp_path, monkeypatch):
    """The finder that setuptools installs: top-level packages by a table, their children too."""
    package = tmp_path / "source" / "edited"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text(EXPLODE)
    (package / "models" / "__init__.py").write_text(EXPLODE)
    (package / "models" / "small.py").write_text("def mlp(units): ...")

    def find_spec(fullname, path=None, target=None):
        if fullname == "edited":
            return spec_from_file_location(fullname, package / "__init__.py")
        if fullname.rpartition(".")[0] == "edited":
            return PathFinder.find_spec(fullname, path=[str(package)])
        return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, SimpleNamespace(find_spec=find_spec)])
    assert complaint("edited.models.small:mlp", "units") == ""
    assert "nearest allowed is 'units'" in complaint("edited.models.small:mlp", "unitz")
    assert "there is no module 'modelz' in 'edited'" in complaint("edited.modelz:f")


def test_this_projects_own_callables_are_found_as_installed():
    assert complaint("pipefit.training.models:mlp", "units", "outputs") == ""
    assert "nearest allowed is 'units'" in complaint("pipefit.training.models:mlp", "unitz")
    assert Path(sys.modules["pipefit"].__file__).exists()


KERAS = """
import sys
from pipefit.errors import SpecError
from pipefit.refs import check, parse

check(parse("keras.optimizers:SGD"), ["momentum", "learning_rate"])
check(parse("keras.optimizers:AdamW"), ["weight_decay"])
schedule = parse("keras.optimizers.schedules:ExponentialDecay")
check(schedule, ["initial_learning_rate", "decay_steps", "decay_rate", "staircase"])
check(parse("keras.losses:SparseCategoricalCrossentropy"), ["from_logits"])
for text, wrong in {
    "keras.optimizers.schedules:ExponentialDecay": "decay_step",
    "keras.losses:SparseCategoricalCrossentropy": "from_logit",
    "keras.metrics:SparseCategoricalAccuracy": "nmae",
    "pipefit.training.models:mlp": "unitz",
}.items():
    try:
        check(parse(text), [wrong])
    except SpecError as error:
        print(str(error).splitlines()[0])
for text in ("keras.optimizers:Adamw", "keras.optimisers:Adam"):
    try:
        check(parse(text), [])
    except SpecError as error:
        print(error)
heavy = {"keras", "tensorflow", "numpy", "pandas", "pipefit.training"} & set(sys.modules)
assert not heavy, heavy
"""


def test_keras_is_checked_without_being_imported(run_python):
    lines = run_python(KERAS).splitlines()
    for line, right in zip(lines, ["decay_steps", "from_logits", "name", "units"], strict=False):
        assert f"nearest allowed is '{right}'" in line
    assert "has no 'Adamw', nearest is 'AdamW'" in lines[4]
    assert "there is no module 'optimisers' in 'keras'" in lines[5]
    assert len(lines) == 6


def test_a_class_must_be_derived_from_another(modules):
    modules({
        "base.py": EXPLODE + "class Base: ...",
        "zoo.py": """
            from base import Base as B
            from elsewhere import *

            class Near(B): ...
            class Far(Near): ...
            class Other: ...
            class Unknown(whatever): ...
            def function(): ...
            made = function()
        """,
        "elsewhere.py": "",
    })  # fmt: skip
    base = parse("base:Base")
    assert class_problem(parse("zoo:Near"), base) is None
    assert class_problem(parse("zoo:Far"), base) is None
    assert class_problem(parse("zoo:Unknown"), base) is None
    assert class_problem(parse("zoo:made"), base) is None
    assert class_problem(parse("zoo:Other"), base) == "must be a class derived from base:Base"
    assert "is a function; must be a class" in class_problem(parse("zoo:function"), base)
    assert "there is no module 'labb'" in class_problem(parse("labb:Near"), base)
