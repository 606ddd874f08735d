"""Import paths, importing what they name, and building calls written as tables."""

import copy

import pytest

from pipefit.errors import DataError, SpecError
from pipefit.refs import Call, Ref, build, load, nested_calls, parse


def test_an_import_path_has_a_module_and_an_attribute():
    assert parse("a.b:C.d") == Ref("a.b", "C.d")
    assert str(Ref("a.b", "C.d")) == "a.b:C.d"


@pytest.mark.parametrize(
    "text",
    ["", "keras", "a:", ":b", "a:b:c", ".a:b", "a..b:c", "a b:c", "1a:b", "a:class", "a:b()"],
)
def test_anything_else_is_refused_with_the_rule_and_an_example(text):
    with pytest.raises(SpecError, match=r"package\.module:callable.*'keras\.optimizers:SGD'"):
        parse(text)


def test_a_dot_for_the_colon_is_guessed():
    with pytest.raises(SpecError, match=r"is 'keras\.optimizers:SGD' meant"):
        parse("keras.optimizers.SGD")


@pytest.mark.parametrize("value", [5, None, ["a:b"]])
def test_a_builder_must_be_text(value):
    with pytest.raises(SpecError, match="must be an import path"):
        parse(value)


def test_load_gives_the_callable(modules):
    modules({"zoo/nets.py": "class Net:\n    @staticmethod\n    def make(): return 3"})
    assert load(parse("zoo.nets:Net.make"))() == 3


def test_load_says_what_is_missing(modules):
    modules({"nets.py": "def mlp(): ...\nsize = 3"})
    with pytest.raises(SpecError, match="No module named 'nowhere_at_all'") as raised:
        load(parse("nowhere_at_all.x:f"))
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)
    assert "raised at" not in str(raised.value)
    with pytest.raises(SpecError, match="there is no 'mpl', nearest is 'mlp'") as raised:
        load(parse("nets:mpl"))
    assert isinstance(raised.value.__cause__, AttributeError)
    with pytest.raises(SpecError, match="not a callable"):
        load(parse("nets:size"))


def test_an_error_in_the_users_module_keeps_its_traceback(modules):
    folder = modules({"broken.py": "x = 1\nraise KeyError('oops')"})
    with pytest.raises(SpecError, match="KeyError: 'oops'") as raised:
        load(parse("broken:f"))
    assert f"(raised at {folder / 'broken.py'}:2)" in str(raised.value)
    cause = raised.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.__traceback__ is not None


PARTS = """
def pair(a, b=None, **more): return (a, b, more) if more else (a, b)
def strict(units, outputs=1): return units, outputs
def picky(size):
    if size < 0:
        raise ValueError("size must be >= 0")
    return size
def failing(): raise LookupError("a fault of the user's own")
def careful(): raise_it()
def raise_it():
    from pipefit.errors import DataError
    raise DataError("already said well")
class Scale:
    def __init__(self, factor): self.factor = factor
"""


@pytest.fixture
def parts(modules):
    return modules({"parts.py": PARTS})


def test_nested_calls_are_built_first_wherever_they_are(parts):
    table = {
        "a": {"builder": "parts:strict", "units": {"builder": "parts:picky", "size": 3}},
        "b": [1, {"deep": {"builder": "parts:picky", "size": 4}, "plain": {"x": 5}}],
    }
    before = copy.deepcopy(table)
    assert build(Call("parts:pair", table), "model") == (
        (3, 1),
        [1, {"deep": 4, "plain": {"x": 5}}],
    )
    assert table == before


def test_builders_get_copies_of_the_users_tables(modules):
    modules({"greedy.py": "def eat(items, table): items.clear(); table['x'] = 1; return items"})
    table = {"items": [1, [2]], "table": {}}
    assert build(Call("greedy:eat", table), "model") == []
    assert table == {"items": [1, [2]], "table": {}}


def test_extra_arguments_are_given_to_the_outermost_builder(parts):
    call = Call("parts:pair", {"a": {"builder": "parts:picky", "size": 1}})
    assert build(call, "data.train", archive="/x") == (1, None, {"archive": "/x"})
    assert build(Call("parts:pair", {}), "data.train", a=1, call=2) == (1, None, {"call": 2})


def test_an_extra_argument_may_not_be_in_the_table_too(parts):
    with pytest.raises(SpecError, match=r'^data\.train\.a = "mine": Pipefit gives this argument'):
        build(Call("parts:pair", {"a": "mine"}), "data.train", a=1)


def test_wrong_arguments_name_their_place_and_value(parts):
    inner = {"builder": "parts:strict", "unitz": [1, 2]}
    with pytest.raises(SpecError) as raised:
        build(Call("parts:pair", {"a": [inner]}), "optimizer")
    assert str(raised.value).splitlines() == [
        "optimizer.a[0].unitz = [1, 2]: unknown argument of parts:strict, nearest allowed is "
        "'units' (allowed: units, outputs)",
        "optimizer.a[0].units: missing argument of parts:strict (arguments: units, outputs)",
    ]


def test_a_builder_that_cannot_be_imported_names_its_place(parts):
    inner = {"builder": "parts:strct"}
    with pytest.raises(SpecError, match=r'^optimizer\.a\.builder = "parts:strct": .*nearest'):
        build(Call("parts:pair", {"a": inner}), "optimizer")
    with pytest.raises(SpecError, match=r"^optimizer\.a\.builder = 5: must be an import path"):
        build(Call("parts:pair", {"a": {"builder": 5}}), "optimizer")


def test_a_value_the_builder_refuses_names_place_cause_and_line(parts):
    with pytest.raises(SpecError) as raised:
        build(Call("parts:picky", {"size": -1}), "model")
    first, second = str(raised.value).splitlines()
    assert first.startswith("model: parts:picky failed with ValueError: size must be >= 0 (raised")
    assert f"{parts / 'parts.py'}:6" in first
    assert second == "It was given { size = -1 }"
    assert isinstance(raised.value.__cause__, ValueError)


def test_other_faults_of_the_users_code_and_our_own_errors_pass_unchanged(parts):
    with pytest.raises(LookupError):
        build(Call("parts:failing", {}), "model")
    with pytest.raises(DataError, match="already said well"):
        build(Call("parts:careful", {}), "model")


def test_what_keras_does_not_recognise_is_a_spec_error(run_python):
    code = """
from pipefit.errors import SpecError
from pipefit.refs import Call, build
rate = {"builder": "keras.optimizers.schedules:ExponentialDecay", "initial_learning_rate": 0.5,
        "decay_steps": 10, "decay_rate": 0.5}
made = build(Call("keras.optimizers:SGD", {"learning_rate": rate, "momentum": 0.9}), "optimizer")
print(made.momentum, float(made.learning_rate))
try:
    build(Call("keras.optimizers:SGD", {"momentun": 0.9}), "optimizer")
except SpecError as error:
    print(str(error).splitlines()[0])
    print(type(error.__cause__).__name__)
"""
    values, message, cause = run_python(code).splitlines()
    assert values == "0.9 0.5"
    assert message.startswith("optimizer: keras.optimizers:SGD failed with ValueError: Argument(s)")
    assert "momentun" in message
    assert cause == "ValueError"


def test_nested_calls_are_listed_with_their_places():
    table = {
        "builder": "a:outer",
        "rate": {"builder": "a:rate", "steps": [{"builder": "a:step"}, 3]},
        "by name": {"x": {"builder": "a:x"}},
    }
    assert [(place, call.builder) for place, call in nested_calls(table, "optimizer")] == [
        ("optimizer", "a:outer"),
        ("optimizer.rate", "a:rate"),
        ("optimizer.rate.steps[0]", "a:step"),
        ('optimizer."by name".x', "a:x"),
    ]
