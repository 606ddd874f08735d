"""What a spec is equal to, what its identity hashes, and that nothing in it can be changed."""

import copy
import datetime as dt
import json
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipefit.errors import SpecError
from pipefit.spec import Spec, read_spec

SHA = "abcdef0123456789" * 4


def test_parts_are_what_decides_the_numbers(read):
    assert read().parts() == {
        "seed": 0,
        "model.builder": "pipefit.training.models:mlp",
        "model.units": [128, 32],
        "model.outputs": 10,
        "data.builder": "pipefit.data:digits",
        "data.batch_size": 100,
        "data.archive": SHA,
        "data.split": "train",
        "optimizer.builder": "keras.optimizers:SGD",
        "optimizer.momentum": 0.9,
        "optimizer.clip.global_norm": 1.0,
        "optimizer.groups": [{"match": "^embedding/", "scale": 0.1}],
        "optimizer.learning_rate.builder": "keras.optimizers.schedules:ExponentialDecay",
        "optimizer.learning_rate.initial_learning_rate": 0.05,
        "optimizer.learning_rate.decay_steps": 39,
        "optimizer.learning_rate.decay_rate": 0.95,
        "train.accumulate": 1,
    }


def test_the_identity_is_the_same_for_ever(read):
    """Runs in people's databases carry it: a change here orphans them all."""
    assert read().identity == "6ad30b23c4fb96ad3535a5a5b860790a363f23db2b7c3c330b659fc8bef31a4a"


SAME = {
    "name": "other",
    "collection": "other",
    "train.steps": 9,
    "train.max_loss": 3.0,
    "train.metrics": {"a": {"builder": "x:y"}},
    "train.precision": "float32",
    "train.targets": {"a": {"builder": "x:y"}},
    "train.record": ["gradient_norms"],
    "train.early_stop": {"metric": "test/loss", "mode": "min"},
    "train.max_time": "1h",
    "train.rollback": {},
    "train.step_timeout": 5,
    "data.train.fields": {"images": "float32[8,8,1]"},
    "data.train.readers": 1,
    "data.train.prefetch": 1,
    "data.train.augment": [],
    "archives.digits.unpack": False,
    "save.metrics_every": 7,
    "validation.more": {"data": "train"},
    "model.devices": [0, 1],
    "archives.digits.url": "s3://elsewhere/x.tar",
    "archives.digits.sha256": SHA.upper(),
    "archives.digits.max_bytes": 10**9,
    "data.unused": {"builder": "x:y", "batch_size": 1},
    "train.accumulate": 1,
    "seed": 0,
}


@pytest.mark.parametrize("key", SAME)
def test_what_does_not_decide_the_numbers_leaves_the_identity(read, key):
    assert read({key: SAME[key]}).identity == read().identity


DIFFERENT = {
    "seed": 1,
    "model.builder": "pipefit.training.models:convnet",
    "model.units": [32, 128],
    "model.more": {},
    "data.train.split": "test",
    "data.train.batch_size": 50,
    "archives.digits.sha256": "0" * 64,
    "loss.builder": "keras.losses:Huber",
    "optimizer.momentum": 0.8,
    "optimizer.learning_rate.decay_steps": 40,
    "optimizer.learning_rate": 0.05,
    "optimizer.clip": {"norm": 1},
    "optimizer.groups": [],
    "train.accumulate": 2,
    "train.deterministic": False,
    "train.jit_compile": True,
    "train.precision": "bfloat16",
    "train.average": 0.99,
    "train.overfit": 1,
    "train.loop": {"builder": "x:y"},
    "experiment": "mine:MyExperiment",
    "model.trainable": "^a",
    "data.train.augment": [{"builder": "x:y"}],
    "optimizer.weight_decay_on": "kernel",
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_what_decides_the_numbers_changes_the_identity(read, key):
    assert read({key: DIFFERENT[key]}).identity != read().identity


def test_the_names_of_tables_are_not_part_of_the_identity(read, config):
    before = read().identity
    text = config.read_text().replace("[data.train]", "[data.t]").replace('"train"\n', '"t"\n')
    text = text.replace("[archives.digits]", "[archives.d]").replace('"digits",', '"d",')
    text = text.replace('archive = "digits"', 'archive = "d"').replace(
        'split = "t"', 'split = "train"'
    )
    config.write_text(text)
    spec = read_spec(config)
    assert (spec.train.data, spec.train_data.archive) == ("t", "d")
    assert spec.identity == before


def test_keys_with_dots_are_not_mixed_up_with_tables(read):
    one, two = read({'model."a.b"': 1}), read({"model.a.b": 1})
    assert one.parts()['model."a.b"'] == two.parts()["model.a.b"] == 1
    assert one.identity != two.identity


def test_the_order_of_keys_does_not_matter(read, config):
    before = read()
    tables = tomllib.loads(config.read_text())
    turned = Spec.of_tables(dict(reversed(tables.items())))
    assert turned == before
    assert turned.identity == before.identity
    assert list(json.loads(turned.to_json())) == list(json.loads(before.to_json()))


def test_specs_are_equal_by_their_tables_wherever_they_were_read(read, config, tmp_path):
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(config.read_text())
    assert read_spec(elsewhere) == read()
    assert hash(read_spec(elsewhere)) == hash(read())
    assert read({"train.steps": 9}) != read()
    assert read() != "a spec"


def test_nothing_in_a_spec_can_be_changed(read):
    spec = read({"model.table": {"x": [1]}})
    before = spec.to_json()
    attempts = [
        lambda: setattr(spec, "seed", 3),
        lambda: setattr(spec.train, "steps", 3),
        spec.data.clear,
        lambda: spec.data.update(x=1),
        lambda: spec.model.arguments.pop("units"),
        lambda: spec.model.arguments.__setitem__("units", 1),
        lambda: spec.model.arguments["units"].append(1),
        spec.model.arguments["units"].sort,
        lambda: spec.model.arguments["table"]["x"].__delitem__(0),
        copy.deepcopy(spec).model.arguments["units"].clear,
    ]
    for attempt in attempts:
        with pytest.raises((TypeError, ValidationError)):
            attempt()
    assert spec.to_json() == before


def test_what_a_spec_hands_out_can_be_changed_without_changing_it(read):
    spec = read()
    before = spec.to_json()
    spec.table()["model"]["units"].clear()
    spec.parts()["model.units"].clear()
    spec.calls().clear()
    assert spec.to_json() == before


def test_copies_are_equal(read):
    spec = read()
    assert copy.deepcopy(spec) == spec
    assert copy.copy(spec.model.arguments) == spec.model.arguments
    assert copy.copy(spec.model.arguments["units"]) == [128, 32]


def test_the_json_is_strict_and_has_the_defaults(read):
    values = json.loads(read({"model.x": float("inf")}).to_json(), parse_constant=pytest.fail)
    assert values["name"] == "digits-mlp"
    assert values["save"]["recent_keep"] == 3
    assert "loss" not in values


@pytest.mark.parametrize("text", ["", "5", "[]", "{", '{"name": {"__toml__": "?"}}'])
def test_other_text_is_no_spec(text):
    with pytest.raises(SpecError, match="is no experiment written as JSON"):
        Spec.from_json(text)


zones = st.integers(-1439, 1439).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
scalars = (
    st.text()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.dates()
    | st.times().map(lambda time: time.replace(fold=0))
    | st.datetimes(timezones=st.none() | zones).map(lambda time: time.replace(fold=0))
)
keys = st.text() | st.sampled_from(["__toml__", "arguments", "name", "copy", "model_config", "x"])
keys = keys.filter(lambda key: key != "builder")  # Those are calls, with rules of their own.
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)
ours = {"devices", "trainable", "learning_rate", "clip", "groups", "weight_decay_on"}
arguments = st.dictionaries(keys.filter(lambda key: key not in ours), values, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(model=arguments, inner=arguments)
def test_specs_round_trip_through_json_and_toml(config, model, inner):
    tables = tomllib.loads(config.read_text())
    tables["model"] = {"builder": "x:y", **model}
    tables["optimizer"] = {"builder": "x:y", "learning_rate": {"builder": "x:y", **inner}}
    before = repr(tables)
    spec = Spec.of_tables(tables)
    assert repr(tables) == before
    for again in (
        Spec.from_json(spec.to_json()),
        Spec.of_tables(tomllib.loads(spec.to_toml())),
        Spec.of_tables(spec.table()),
    ):
        assert again == spec
        assert again.identity == spec.identity
    # The text, for a NaN is not equal to itself; JSON keeps the order of keys as well.
    again = Spec.from_json(spec.to_json())
    assert repr(again.model.arguments) == repr(spec.model.arguments)


@given(number=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_learning_rates_keep_every_bit(number):
    tables = {
        "name": "x", "collection": "x", "model": {"builder": "x:y"},
        "data": {"d": {"builder": "x:y", "batch_size": 1}}, "train": {"data": "d", "steps": 1},
        "optimizer": {"builder": "x:y", "learning_rate": number},
    }  # fmt: skip
    spec = Spec.of_tables(tables)
    assert Spec.of_tables(tomllib.loads(spec.to_toml())).optimizer.learning_rate == number
    assert Spec.from_json(spec.to_json()).optimizer.learning_rate == number
