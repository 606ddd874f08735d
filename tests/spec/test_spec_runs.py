"""Several models in one file are several runs, each as if it were trained alone."""

import tomllib

import pytest

from pipefit.errors import SpecError
from pipefit.spec import OptimizerPart, Spec, read_spec

SEVERAL = """
name = "rings"
collection = "mine"
seed = 3

[data.train]
builder = "m:rings"
batch_size = 8
[data.more]
builder = "m:rings"
batch_size = 12

[models.small]
builder = "m:net"
units = 8

[models.large]
builder = "m:net"
units = 80
devices = [1]
data = "more"
loss = { builder = "m:loss" }
optimizer = { builder = "m:adam", learning_rate = 0.1 }

[models.parts]
builder = "m:net"
[models.parts.optimizers.first]
builder = "m:adam"
match = "^a"
groups = [{ match = "bias", learning_rate = { builder = "m:schedule" } }]
[models.parts.optimizers.rest]
builder = "m:sgd"
match = "^[^a]"

[optimizer]
builder = "m:sgd"

[train]
data = "train"
steps = 10
"""


@pytest.fixture
def several(tmp_path):
    path = tmp_path / "several.toml"
    path.write_text(SEVERAL, encoding="utf-8")
    return path


def alone(changes, *without):
    """The experiment with one model in the place of several."""
    tables = tomllib.loads(SEVERAL)
    del tables["models"]
    for key in without:
        del tables[key]
    return Spec.of_tables({**tables, **changes})


def test_an_experiment_of_one_model_is_its_own_run(read):
    spec = read()
    [(name, run)] = spec.runs().items()
    assert name == ""
    assert run is spec


def test_every_model_is_a_run_of_its_own(several):
    runs = read_spec(several).runs()
    assert list(runs) == ["small", "large", "parts"]
    sgd = {"builder": "m:sgd"}
    assert runs["small"] == alone({
        "name": "rings/small", "model": {"builder": "m:net", "units": 8},
    })  # fmt: skip
    assert runs["large"] == alone({
        "name": "rings/large",
        "model": {"builder": "m:net", "units": 80, "devices": [1]},
        "loss": {"builder": "m:loss"},
        "optimizer": {"builder": "m:adam", "learning_rate": 0.1},
        "train": {"data": "more", "steps": 10},
    })  # fmt: skip
    schedule = {"builder": "m:schedule"}
    first = {"match": "^a", "groups": [{"match": "bias", "learning_rate": schedule}]}
    parts = {"first": {"builder": "m:adam", **first}, "rest": {**sgd, "match": "^[^a]"}}
    expected = alone(
        {"name": "rings/parts", "model": {"builder": "m:net"}, "optimizers": parts}, "optimizer"
    )
    assert runs["parts"] == expected
    assert runs["parts"].identity == expected.identity
    assert runs["large"].train_data.batch_size == 12
    assert runs["large"].origin == several


def test_the_identity_of_a_model_is_the_same_alone_and_among_others(several):
    runs = read_spec(several).runs()
    single = {"name": "x", "model": {"builder": "m:net", "units": 8}}
    assert runs["small"].identity == alone(single).identity
    others = {"models.large.units": 5, "models.new": {"builder": "m:net"}}
    changed = read_spec(several, others).runs()
    assert changed["small"].identity == runs["small"].identity
    assert changed["parts"].identity == runs["parts"].identity
    assert changed["large"].identity != runs["large"].identity
    assert read_spec(several, others).identity != read_spec(several).identity


def test_the_parts_of_several_models_stand_below_their_places(several):
    parts = read_spec(several).parts()
    assert parts["models.small.model.units"] == 8
    assert parts["models.large.data.batch_size"] == 12
    assert parts["models.parts.optimizers.first.match"] == "^a"


def test_several_models_round_trip(several):
    spec = read_spec(several)
    assert Spec.from_json(spec.to_json()) == spec
    assert Spec.of_tables(tomllib.loads(spec.to_toml())) == spec
    for run in spec.runs().values():
        assert Spec.of_tables(tomllib.loads(run.to_toml())) == run
        assert run.runs() == {"": run}


def test_common_optimizers_are_those_of_every_model_that_has_none(several):
    common = {"a": {"builder": "m:sgd", "match": "x"}, "b": {"builder": "m:adam", "match": "y"}}
    tables = tomllib.loads(SEVERAL)
    del tables["optimizer"]
    runs = Spec.of_tables({**tables, "optimizers": common}).runs()
    assert list(runs["small"].optimizer_parts) == ["a", "b"]
    assert all(isinstance(part, OptimizerPart) for part in runs["small"].optimizers.values())
    assert runs["large"].optimizers == {}
    assert list(runs["large"].optimizer_parts) == [""]
    assert list(runs["parts"].optimizer_parts) == ["first", "rest"]


def test_who_wants_the_one_model_of_several_is_told_where_it_is(several):
    spec = read_spec(several)
    with pytest.raises(SpecError, match=r"rings: has several models \(small, large, parts\)"):
        _ = spec.one_model
    assert spec.runs()["small"].one_model.arguments == {"units": 8}


def test_the_builders_of_all_models_are_listed(several):
    calls = [(place, call.builder) for place, call in read_spec(several).calls()]
    assert calls == [
        ("data.train", "m:rings"),
        ("data.more", "m:rings"),
        ("models.small", "m:net"),
        ("models.large", "m:net"),
        ("models.large.loss", "m:loss"),
        ("models.large.optimizer", "m:adam"),
        ("models.parts", "m:net"),
        ("models.parts.optimizers.first", "m:adam"),
        ("models.parts.optimizers.first.groups[0].learning_rate", "m:schedule"),
        ("models.parts.optimizers.rest", "m:sgd"),
        ("optimizer", "m:sgd"),
    ]


WRONG = [
    ({"model": {"builder": "m:net"}},
     "model: is there together with models.small, models.large, models.parts; leave out [model] or "
     "[models.*]"),
    ({"models": {}}, "model: is required (or several tables [models.NAME])"),
    ({"optimizers": {"a": {"builder": "m:sgd", "match": "x"}}},
     "optimizer: is there together with optimizers.a; leave out [optimizer] or [optimizers.*]"),
    ({"models.parts.optimizer": {"builder": "m:sgd"}},
     "models.parts.optimizer: is there together with models.parts.optimizers.first, "
     "models.parts.optimizers.rest; leave out [models.parts.optimizer] or "
     "[models.parts.optimizers.*]"),
    ({"optimizers.a": {"builder": "m:sgd"}}, "optimizers.a.match: is required"),
    ({"models.large.data": "mor"},
     "models.large.data = \"mor\": unknown data table, nearest allowed is 'more' (allowed: train, "
     "more)"),
    ({"train.accumulate": 8},
     "train.accumulate = 8: must divide data.more.batch_size = 12; nearest that work: 8 and 16"),
    ({"name": "x" * 198},
     f"models.small: {'x' * 198 + '/small'!r} cannot name a run: use 1 to 200 of the characters "
     "A-Z a-z 0-9 . _ - and /, with no empty, '.' or '..' part between slashes; its run is called "
     "like this"),
    ({'models."a/b"': {"builder": "m:net"}},
     'models."a/b" = "a/b": names are made of letters, digits, _ and -'),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), WRONG)
def test_what_does_not_go_together_is_refused(several, changes, line):
    with pytest.raises(SpecError) as raised:
        read_spec(several, changes)
    assert line in [text.removeprefix(f"{several}: ") for text in str(raised.value).splitlines()]


def test_a_model_without_any_optimizer_is_named():
    tables = tomllib.loads(SEVERAL)
    del tables["optimizer"]
    with pytest.raises(SpecError) as raised:
        Spec.of_tables(tables)
    assert str(raised.value) == (
        "models.small.optimizer: is required (or several tables [models.small.optimizers.NAME])"
    )


def test_the_name_of_every_metric_that_decides_must_be_known_for_every_model(several):
    changes = {"validation.v.data": "more", "save.best": {"metric": "v/accuracy", "mode": "max"}}
    with pytest.raises(SpecError, match=r'best\.metric = "v/accuracy": unknown metric.*v/loss'):
        read_spec(several, changes)  # one of the models has a loss of its own, so no accuracy
    accuracy = {"validation.v.metrics.accuracy.builder": "m:accuracy"}
    assert read_spec(several, {**changes, **accuracy}).save.best


def test_rules_that_end_a_run_early_are_texts_to_compare(read):
    assert read().stop_rules() == {}
    stop = {"metric": "test/loss", "mode": "min"}
    rules = read({"train.early_stop": stop, "train.max_time": "8h"}).stop_rules()
    assert rules == {
        "early_stop": '{"metric":"test/loss","min_delta":0.0,"mode":"min","patience":5}',
        "max_time": "28800.0",
    }
    written = {"patience": 5, "mode": "min", "min_delta": 0, "metric": "test/loss"}
    again = read({"train.early_stop": written, "train.max_time": 28800}).stop_rules()
    assert again == rules
    assert read({"train.early_stop": {**stop, "patience": 6}}).stop_rules() != rules
