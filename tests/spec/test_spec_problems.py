"""What is refused in an experiment file, and in which words."""

import functools
import operator
import re

import pytest

from pipefit.errors import SpecError
from pipefit.spec import Spec


def problems(read, overrides):
    """The lines of the error, without the file."""
    with pytest.raises(SpecError) as raised:
        read(overrides)
    file, _, text = str(raised.value).partition(": ")
    assert file.endswith("digits.toml")
    return text.splitlines()


def test_the_first_problem_is_on_the_first_line_and_the_others_follow(read, config):
    with pytest.raises(SpecError) as raised:
        read({"train.steps": 0, "train.stepz": 5, "seed": -1})
    assert str(raised.value).splitlines() == [
        f"{config}: train.stepz = 5: unknown key, nearest allowed is 'steps' (allowed: data, "
        "steps, accumulate, max_loss, metrics, deterministic, jit_compile, precision, average, "
        "overfit, targets, loop, record, early_stop, max_time, rollback, step_timeout)",
        "seed = -1: must be 0 or more",
        "train.steps = 0: must be 1 or more",
    ]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("sead", "seed"),
        ("modell.builder", "model"),
        ("save.best.mod", "mode"),
        ("optimizer.clip.globalnorm", "global_norm"),
        ("archives.digits.sha", "sha256"),
        ("validation.test.output", "outputs"),
        ("train.max_tim", "max_time"),
        ("train.early_stop.patients", "patience"),
        ("train.rollback.time", "times"),
        ("validation.test.average", "averaged"),
    ],
)
def test_unknown_keys_name_the_nearest(read, key, near):
    line = problems(read, {key: 1})[0]
    assert f"unknown key, nearest allowed is {near!r} (allowed: " in line


def test_a_misspelt_key_of_a_builder_table_is_guessed(read):
    [line] = problems(read, {"validation.test.data": {"builder": "a:b", "batchsize": 5}})
    assert line == "validation.test.data.batch_size: is required; is 'batchsize' meant?"


@pytest.mark.parametrize(
    "key",
    ["name", "collection", "train", "train.data", "train.steps",
     "archives.digits.url", "archives.digits.sha256", "data.train.builder", "data.train.batch_size",
     "model.builder", "optimizer.builder", "validation.again.data", "save.best.metric",
     "save.best.mode"],
)  # fmt: skip
def test_required_keys(read, key):
    tables = read().table()
    *above, last = key.split(".")
    functools.reduce(operator.getitem, above, tables).pop(last)
    with pytest.raises(SpecError, match=rf"^{re.escape(key)}: is required$"):
        Spec.of_tables(tables)


FIELDS = [
    ("name", 5, "must be text, in quotes"),
    ("name", "a//b", "cannot name a run"),
    ("name", "", "cannot name a run"),
    ("name", "x" * 201, "cannot name a run"),
    ("collection", "a.b", "cannot name a collection"),
    ("seed", "5", "must be a whole number"),
    ("seed", True, "must be a whole number"),
    ("seed", 1.0, "must be a whole number"),
    ("archives.digits.url", "", "must not be empty"),
    ("archives.digits.sha256", "abc", "must be 64 hexadecimal digits"),
    ("archives.digits.max_bytes", 0, "must be 1 or more"),
    ("archives.digits.max_members", 0, "must be 1 or more"),
    ("data.train.batch_size", 0, "must be 1 or more"),
    ("data.train.builder", "pipefit.data.digits", "is 'pipefit.data:digits' meant?"),
    ("model", 5, "must be a table"),
    ("model.builder", 5, "must be text, in quotes"),
    ("optimizer.learning_rate", 0, "must be greater than 0"),
    ("optimizer.learning_rate", True, "must be a number greater than 0 or a table with a builder"),
    ("optimizer.learning_rate", "fast", "must be a number greater than 0 or a table"),
    ("optimizer.learning_rate", float("nan"), "must be a finite number"),
    ("optimizer.clip", {}, "must have exactly one of value, norm, global_norm"),
    ("optimizer.clip", {"norm": 1, "value": 1}, "must have exactly one of"),
    ("optimizer.clip", {"norm": 0}, "must be greater than 0"),
    ("optimizer.groups", {"match": "x"}, "must be a list"),
    ("optimizer.groups", [{"match": "(", "scale": 1}], "must be a regular expression: missing )"),
    ("optimizer.groups", [{"match": "x", "scale": -1}], "must be 0 or more"),
    ("optimizer.groups", [{"match": "x"}], "must have exactly one of scale, learning_rate"),
    ("optimizer.groups", [{"match": "x", "scale": 1, "learning_rate": 1}], "must have exactly one"),
    ("optimizer.groups", [{"match": "x", "scale": 1}] * 2, 'match = "x" is there twice, but only'),
    ("optimizer.weight_decay_on", "(", "must be a regular expression: missing )"),
    ("model.trainable", "[", "must be a regular expression: unterminated character set"),
    ("experiment", "mine.MyExperiment", "is 'mine:MyExperiment' meant?"),
    ("archives.digits.unpack", "no", "must be true or false"),
    (
        "archives.digits",
        {"url": "x", "sha256": "0" * 64, "unpack": False, "max_bytes": 1},
        "max_bytes and max_members limit unpacking, but unpack = false; leave them out",
    ),
    ("data.train.fields", {"x": "float32[8,a]"}, 'must be dtype[shape], such as "float32[8,8,1]"'),
    ("data.train.fields", {"x": "float33[8]"}, "unknown dtype, nearest allowed is 'float32'"),
    ("data.train.fields", {"x": [8]}, "must be text, in quotes"),
    ("data.train.augment", {"builder": "a:b"}, "must be a list"),
    ("data.train.augment", [{"bulder": "a:b"}], "data.train.augment[0].builder: is required"),
    ("data.train.readers", 0, "must be 1 or more"),
    ("data.train.prefetch", 0, "must be 1 or more"),
    ("train.precision", "float64", "must be 'float32', 'bfloat16' or 'float16'"),
    ("train.average", 1.0, "must be less than 1"),
    ("train.average", 0, "must be greater than 0"),
    ("train.overfit", 0, "must be 1 or more"),
    ("train.targets", {"a b": {"builder": "x:y"}}, "letters, digits, _ and -"),
    ("train.loop", "x:y", "must be a table"),
    ("train.record", ["gradients"], "must be 'gradient_norms' or 'update_norms'"),
    ("train.record", ["update_norms"] * 2, "must have each word once"),
    ("train.early_stop", {"metric": "test/loss"}, "train.early_stop.mode: is required"),
    ("train.early_stop", {"metric": "test/loss", "mode": "min", "patience": 0}, "1 or more"),
    ("train.early_stop", {"metric": "test/loss", "mode": "min", "min_delta": -1}, "0 or more"),
    ("train.max_time", "8 hours", 'must be seconds (greater than 0), or a text such as "8h", "1h'),
    ("train.max_time", "", "must be seconds"),
    ("train.max_time", "0s", "must be seconds (greater than 0)"),
    ("train.max_time", "1s1h", "must be seconds"),
    ("train.max_time", float("inf"), "must be seconds (greater than 0)"),
    ("train.max_time", True, "must be seconds"),
    ("train.rollback", {"times": 0}, "must be 1 or more"),
    ("train.rollback", {"scale": 2}, "must be 1 or less"),
    ("train.step_timeout", 0, "must be greater than 0"),
    ("validation.test.averaged", 1, "must be true or false"),
    ("train.steps", 0, "must be 1 or more"),
    ("train.max_loss", 0.0, "must be greater than 0"),
    ("train.max_loss", float("inf"), "must be a finite number"),
    ("train.deterministic", 1, "must be true or false"),
    ("train.jit_compile", "true", "must be true or false"),
    ("train.metrics", [], "must be a table"),
    ("train.metrics", {"a/b": {"builder": "x:y"}}, "letters, digits, _ and -"),
    ("validation.test.data", 5, "must be the name of a [data.*] table or a table with a builder"),
    ("validation.test.outputs", "logits", "must be a list"),
    ("validation.test.outputs", [1], "must be text, in quotes"),
    ("save.metrics_every", 0, "must be 1 or more"),
    ("save.validate_every", -1, "must be 0 or more"),
    ("save.recent_keep", 0, "must be 1 or more"),
    ("save.best.mode", "maximum", "must be 'min' or 'max'"),
]


@pytest.mark.parametrize(("key", "value", "rule"), FIELDS)
def test_a_wrong_value_is_shown_with_the_rule(read, key, value, rule):
    [line] = problems(read, {key: value})
    assert line.startswith(key)
    assert rule in line


@pytest.mark.parametrize("section", ["data", "archives", "validation"])
def test_names_are_made_of_letters_digits_and_two_signs(read, section):
    tables = {
        "data": {"builder": "a:b", "batch_size": 1},
        "archives": {"url": "x", "sha256": "0" * 64},
        "validation": {"data": "train"},
    }
    [line] = problems(read, {f'{section}."a b"': tables[section]})
    assert line.startswith(f'{section}."a b"')
    assert "letters, digits, _ and -" in line


@pytest.mark.parametrize(
    "devices",
    [1, 4, "all", "cpu:0", "cpu:12", [0], [1, 0], ["GPU-4ff1-a"], ["cpu:0", "cpu:1"], [0, "GPU-1"]],
)
def test_devices_that_are_allowed(read, devices):
    written = read({"model.devices": devices}).model.devices
    assert written == (tuple(devices) if isinstance(devices, list) else devices)


@pytest.mark.parametrize(
    "devices",
    [0, -1, True, 1.5, "gpu", "cpu", "cpu:x", "cpu:01", "GPU-1", [], [0, 0], [-1], [True], ["all"],
     ["GPU-a", "GPU-A"], ["cpu:0", "cpu:0"], [[0]], {"gpu": 0}],
)  # fmt: skip
def test_devices_that_are_refused(read, devices):
    [line] = problems(read, {"model.devices": devices})
    assert 'must be a count (1 or more), "all", "cpu:N", or a list of GPU indices' in line


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("train.data", "trian", "unknown data table, nearest allowed is 'train'"),
        ("data.train.archive", "digit", "unknown archive, nearest allowed is 'digits'"),
        ("validation.again.data", "tran", "unknown data table, nearest allowed is 'train'"),
        ("validation.test.data.archive", "x", "unknown archive (allowed: digits)"),
        ("save.best.metric", "tets/loss", "unknown validation set, nearest allowed is 'test'"),
        (
            "train.early_stop.metric",
            "tst/loss",
            "unknown validation set, nearest allowed is 'test'",
        ),
        ("train.early_stop.metric", "test/los", "unknown metric, nearest allowed is 'test/loss'"),
        ("save.best.metric", "accuracy", "must be written SET/METRIC"),
        ("save.best.metric", "test/", "must be written SET/METRIC"),
    ],
)
def test_names_must_be_those_of_tables(read, key, value, text):
    overrides = {"train.early_stop.mode": "min"} if key.startswith("train.early_stop") else {}
    [line] = problems(read, {**overrides, key: value})
    assert line.startswith(f'{key} = "{value}": ')
    assert text in line


def test_slices_must_divide_the_batch(read):
    assert problems(read, {"train.accumulate": 3}) == [
        "train.accumulate = 3: must divide data.train.batch_size = 100; "
        "nearest that work: 99 and 102"
    ]
    assert problems(read, {"train.accumulate": 200})[0].endswith("nearest that work: 200")
    assert read({"train.accumulate": 4}).train.accumulate == 4


def test_calls_inside_arguments_need_an_import_path_too(read):
    overrides = {"model.layers": [{"builder": "keras.layers.Dense"}], "loss.builder": "a:b"}
    assert problems(read, {**overrides, "loss.inner": {"builder": 5}}) == [
        'model.layers[0].builder = "keras.layers.Dense": must be an import path '
        "'package.module:callable', such as 'keras.optimizers:SGD'; "
        "is 'keras.layers:Dense' meant?",
        "loss.inner.builder = 5: must be an import path 'package.module:callable', such as "
        "'keras.optimizers:SGD'",
    ]


def test_broken_rules_of_several_sections_are_all_listed(read):
    lines = problems(read, {"train.accumulate": 3, "data.train.archive": "x"})
    assert len(lines) == 2


@pytest.mark.parametrize("key", ["load", "tune", "train.batch"])
def test_keys_of_later_versions_are_unknown(read, key):
    assert re.search("unknown key", problems(read, {key: [{"a": 1}]})[0])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train.metrics.loss.builder": "a:b"}, "train.metrics.loss: is recorded anyway"),
        ({"validation.test.metrics.step.builder": "a:b"}, "validation.test.metrics.step: is"),
        ({"train.metrics.step_seconds.builder": "a:b"}, "train.metrics.step_seconds: is recorded"),
        ({"train.targets.gradient_norm.builder": "a:b"}, "targets.gradient_norm: is recorded"),
        ({"train.targets.learning_rate.builder": "a:b"}, "targets.learning_rate: is recorded"),
        ({"validation.test.targets.seconds.builder": "a:b"}, "validation.test.targets.seconds: is"),
        ({"validation.again.targets.accuracy.builder": "a:b"},
         "validation.again.targets.accuracy: is a metric as well; choose another name"),
        ({"validation.test.data.augment": [{"builder": "a:b"}]},
         "validation.test.data.augment: only training data are augmented; leave it out"),
        ({"validation.test.averaged": True},
         "validation.test.averaged = true: needs train.average, such as 0.999"),
        ({"train.early_stop": {"metric": "test/loss", "mode": "min"}, "save.validate_every": 0},
         "save.validate_every = 0: train.early_stop needs validations; set it to 1 or more"),
        ({"save.best.metric": "test/zz"}, 'save.best.metric = "test/zz": unknown metric'),
        ({"collection": "system"}, "cannot name a collection"),
    ],
)  # fmt: skip
def test_names_that_are_taken_or_not_there_are_refused(read, changes, problem):
    with pytest.raises(SpecError, match=re.escape(problem)):
        read(changes)


def test_a_value_of_a_target_or_of_a_classs_may_decide(read):
    target = {"validation.test.targets.norms": {"builder": "a:b"}}
    best = {"save.best": {"metric": "test/norms/largest", "mode": "min"}}
    assert read({**target, **best}).save.best.metric == "test/norms/largest"
    read({"experiment": "mine:Mine", **best})
    for changes in (best, {**target, "save.best.metric": "again/norms/largest"}):
        with pytest.raises(SpecError, match="unknown metric"):
            read(changes)
