"""Reading experiment files: values, defaults, overrides, and files that cannot be read."""

import copy
import datetime
import re
from pathlib import Path

import numpy as np
import pytest

from pipefit.errors import SpecError
from pipefit.refs import Call
from pipefit.spec import Builder, Clip, Data, Group, Spec, parse_field, parse_set, read_spec


def test_a_file_becomes_a_spec_with_defaults(read, config):
    spec = read()
    assert (spec.name, spec.collection, spec.seed) == ("digits-mlp", "digits", 0)
    assert spec.archives["digits"].sha256 == "abcdef0123456789" * 4
    assert spec.archives["digits"].max_bytes is None
    assert spec.train_data.call == Call("pipefit.data:digits", {"split": "train"})
    assert spec.train_data.batch_size == 100
    assert spec.model.call.arguments == {"units": [128, 32], "outputs": 10}
    assert spec.model.devices is None
    assert spec.loss is None
    assert spec.optimizer.clip == Clip(global_norm=1.0)
    assert spec.optimizer.groups == (Group(match="^embedding/", scale=0.1),)
    assert isinstance(spec.optimizer.learning_rate, Builder)
    assert (spec.train.accumulate, spec.train.max_loss, spec.train.metrics) == (1, None, None)
    assert (spec.train.deterministic, spec.train.jit_compile) == (True, False)
    save = spec.save
    assert (save.metrics_every, save.validate_every, save.checkpoint_every) == (100, 1000, 10000)
    assert (save.recent_every, save.recent_keep) == (1000, 3)
    assert (save.best.validation, save.best.metric, save.best.mode) == (
        "test", "test/loss", "min",
    )  # fmt: skip
    assert spec.origin == config


def test_the_learning_rate_is_an_argument_of_the_optimizers_call(read):
    assert read().optimizer.call.arguments["learning_rate"]["decay_steps"] == 39
    assert read({"optimizer.learning_rate": 1}).optimizer.call.arguments == {
        "momentum": 0.9,
        "learning_rate": 1.0,
    }
    without = {"optimizer": {"builder": "keras.optimizers:Adam"}}
    assert read(without).optimizer.call.arguments == {}


def test_validation_data_may_be_named_or_written_in_place(read):
    spec = read()
    assert spec.data_of("again") is spec.train_data
    assert isinstance(spec.data_of("test"), Data)
    assert spec.data_of("test").batch_size == 50
    assert spec.archive_of(spec.data_of("test")) is spec.archives["digits"]
    assert spec.archive_of(Data(builder="a:b", batch_size=1)) is None
    assert list(spec.validation["again"].metrics) == ["accuracy"]


def test_numbers_that_are_whole_become_floats_where_floats_are_meant(read):
    spec = read({"train.max_loss": 100, "optimizer.learning_rate": 1})
    assert isinstance(spec.train.max_loss, float)
    assert isinstance(spec.optimizer.learning_rate, float)


def test_overrides_replace_and_create(read):
    spec = read({
        "train.steps": 7,
        "loss.builder": "keras.losses:Huber",
        'model."a.b"': {"c": 1},
        "data.other": {"builder": "x:y", "batch_size": 3},
    })  # fmt: skip
    assert spec.train.steps == 7
    assert spec.loss.call == Call("keras.losses:Huber", {})
    assert spec.model.arguments["a.b"] == {"c": 1}
    assert spec.data["other"].batch_size == 3


def test_an_overriding_table_replaces_the_whole_table(read):
    spec = read({"optimizer.learning_rate": {"builder": "a:b"}})
    assert spec.optimizer.learning_rate.arguments == {}


def test_overrides_are_not_changed_and_not_shared(read):
    units = [1, 2]
    overrides = {"model.units": units, "model.table": {"x": [1]}, "model.table.y": 2}
    before = copy.deepcopy(overrides)
    spec = read(overrides)
    assert overrides == before
    units.append(3)
    assert spec.model.arguments["units"] == [1, 2]
    assert spec.model.arguments["table"] == {"x": [1], "y": 2}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("train..steps", "'train..steps': is not a dotted TOML key"),
        ("", "'': is not a dotted TOML key"),
        ("a b", "'a b': is not a dotted TOML key"),
        ("x\ny", r"'x\ny': is not a dotted TOML key"),
        ("train.steps.more", "override train.steps.more = 5: train.steps is no table here"),
        ("optimizer.groups.scale", "optimizer.groups is no table here"),
    ],
)
def test_overrides_that_lead_nowhere_are_refused(read, config, key, message):
    with pytest.raises(SpecError, match=re.escape(message)) as raised:
        read({key: 5})
    assert str(raised.value).startswith(f"{config}: ")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "NoneType"),
        ({1, 2}, "set"),
        (np.int64(3), "int64"),
        (Path("x"), "PosixPath"),
        (datetime.time(1, tzinfo=datetime.UTC), "time"),
    ],
)
def test_overrides_must_be_values_of_toml(read, value, kind):
    with pytest.raises(SpecError, match=rf"model\.deep\[0\]\.x = .* is a {kind}, which TOML"):
        read({"model.deep": [{"x": value}]})


def test_whole_numbers_must_fit_and_keys_must_be_text(read):
    with pytest.raises(SpecError, match=r"model\.x = 9223372036854775808: .* 64 bits"):
        read({"model.x": 2**63})
    with pytest.raises(SpecError, match=r"model\.x: the key 3 is a int"):
        read({"model.x": {3: 4}})


def test_tuples_and_numpys_floats_are_taken_as_lists_and_floats(read):
    arguments = read({"model.x": (1, np.float64(0.5))}).model.arguments
    assert arguments["x"] == [1, 0.5]
    assert type(arguments["x"][1]) is float


def test_a_file_that_is_not_there_or_no_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"absent\.toml: cannot be read: No such file") as raised:
        read_spec("absent.toml")
    assert str(Path.cwd()) in str(raised.value)
    with pytest.raises(SpecError, match="Is a directory"):
        read_spec(tmp_path)


def test_a_file_that_is_not_toml_names_the_line(config):
    config.write_text('name = "x"\ncollection = \n')
    with pytest.raises(SpecError, match=r"is not TOML: Invalid value \(at line 2") as raised:
        read_spec(config)
    assert str(raised.value).startswith(str(config))


def test_a_file_that_is_not_utf8_names_the_line(config):
    config.write_bytes(b'name = "x"\n# caf\xe9\n')
    with pytest.raises(SpecError, match=r"digits\.toml, line 2: is not UTF-8"):
        read_spec(config)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("train.steps=2000 name=night-1", {"train.steps": 2000, "name": "night-1"}),
        ("", {}),
        ("a=1e-3 b=true c=inf", {"a": 1e-3, "b": True, "c": float("inf")}),
        ("a=2024-05-01", {"a": datetime.date(2024, 5, 1)}),
        ("a=[1,2]", {"a": [1, 2]}),
        ("'a=[1, \"x\"]'", {"a": [1, "x"]}),
        ("a='two words'", {"a": "two words"}),
        ("""'a="2024"'""", {"a": "2024"}),
        ("""'groups."^a.b=c"=0.5'""", {'groups."^a.b=c"': 0.5}),
        ("'a = { builder = \"x:y\", n = 1 }'", {"a": {"builder": "x:y", "n": 1}}),
        ("a=x=y", {"a": "x=y"}),
        ("a=run#1 b=1#2", {"a": "run#1", "b": "1#2"}),
        ("a=1,2", {"a": "1,2"}),
        ("url=s3://bucket/a.tar", {"url": "s3://bucket/a.tar"}),
    ],
)
def test_set_words_are_read_as_toml_else_as_text(text, values):
    assert parse_set(text) == values


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("train.steps", "'train.steps': has no key and value"),
        ("a=1 =5", "'=5': has no key and value"),
        ("a..b=5", "'a..b=5': has no key and value"),
        ("a=", "'a=': has no value"),
        ("a=[1,", "'a=[1,': the value is not TOML"),
        ("a={x=1", "'a={x=1': the value is not TOML"),
        ("a='open", "No closing quotation"),
        ("a.b=1 c=2 a.b=1", "a.b is given twice"),
    ],
)
def test_set_words_that_are_wrong_are_named(text, word):
    with pytest.raises(SpecError, match=re.escape(word)) as raised:
        parse_set(text)
    assert str(raised.value).startswith("--set ")


def test_set_words_override_the_file(config):
    spec = read_spec(config, parse_set("train.steps=9 'model.units=[1, 2]' name=2x"))
    assert (spec.train.steps, spec.model.arguments["units"], spec.name) == (9, [1, 2], "2x")


def test_the_folder_of_the_file_and_the_current_one_are_importable(read, config, monkeypatch):
    spec = read()
    assert spec.import_paths() == [str(config.parent), str(Path.cwd())]
    monkeypatch.chdir(config.parent)
    assert spec.import_paths() == [str(config.parent)]
    assert read_spec(config.name).import_paths() == [str(config.parent)]
    assert Spec.from_json(spec.to_json()).import_paths() == [str(config.parent)]


def test_a_byte_order_mark_is_no_part_of_the_file(read, config):
    before = read()
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    assert read_spec(config) == before


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90.0), (0.5, 0.5), ("45s", 45.0), ("8h", 28800.0), ("1h30m", 5400.0), ("1.5h", 5400.0),
     ("90m", 5400.0), ("1h0m1s", 3601.0)],
)  # fmt: skip
def test_times_are_seconds_or_written_with_units(read, written, seconds):
    max_time = read({"train.max_time": written}).train.max_time
    assert max_time == seconds
    assert isinstance(max_time, float)


def test_declared_fields_are_read(read):
    fields = {"images": "float32[8, 8,1]", "labels": "int64[]", "image/text": "str", "b": "bytes"}
    declared = read({"data.train.fields": fields}).train_data.fields
    assert {name: parse_field(text) for name, text in declared.items()} == {
        "images": ("float32", (8, 8, 1)),
        "labels": ("int64", ()),
        "image/text": ("str", ()),
        "b": ("bytes", ()),
    }
    assert "fields" not in read({"data.train.fields": fields}).train_data.call.arguments


def test_the_keys_of_training_have_defaults(read):
    train = read().train
    assert (train.precision, train.average, train.overfit, train.loop) == (
        "float32",
        None,
        None,
        None,
    )
    assert (train.targets, train.record, train.early_stop, train.rollback) == ({}, (), None, None)
    assert (train.max_time, train.step_timeout) == (None, 1800.0)
    rollback = read({"train.rollback": {}}).train.rollback
    assert (rollback.times, rollback.scale) == (3, 0.5)
    stop = read({"train.early_stop": {"metric": "test/loss", "mode": "min"}}).train.early_stop
    assert (stop.validation, stop.patience, stop.min_delta) == ("test", 5, 0.0)
