"""Checking the builders of an experiment, and what importing the public names costs."""

import subprocess
import sys

import pytest

import pipefit
from pipefit.errors import SpecError
from pipefit.spec import check_builders


def test_the_calls_of_all_tables_are_listed_with_their_places(read):
    spec = read({
        "loss.builder": "a:loss",
        "train.metrics": {"m": {"builder": "a:m"}},
        "train.targets": {"t": {"builder": "a:t"}},
        "train.loop": {"builder": "a:loop"},
        "data.train.augment": [{"builder": "a:flip"}, {"builder": "a:crop"}],
        "validation.again.targets.t.builder": "a:t",
        "validation.again.loop.builder": "a:loop",
        "optimizer.groups": [{"match": "x", "learning_rate": {"builder": "a:schedule"}}],
        "model.layers": [{"builder": "a:layer", "init": {"builder": "a:init"}}],
    })  # fmt: skip
    assert [(place, call.builder) for place, call in spec.calls()] == [
        ("data.train", "pipefit.data:digits"),
        ("data.train.augment[0]", "a:flip"),
        ("data.train.augment[1]", "a:crop"),
        ("model", "pipefit.training.models:mlp"),
        ("model.layers[0]", "a:layer"),
        ("model.layers[0].init", "a:init"),
        ("loss", "a:loss"),
        ("optimizer", "keras.optimizers:SGD"),
        ("optimizer.learning_rate", "keras.optimizers.schedules:ExponentialDecay"),
        ("optimizer.groups[0].learning_rate", "a:schedule"),
        ("train.metrics.m", "a:m"),
        ("train.targets.t", "a:t"),
        ("train.loop", "a:loop"),
        ("validation.test.data", "pipefit.data:digits"),
        ("validation.again.metrics.accuracy", "keras.metrics:SparseCategoricalAccuracy"),
        ("validation.again.targets.t", "a:t"),
        ("validation.again.loop", "a:loop"),
    ]


def test_the_builders_of_the_example_are_fine(read):
    check_builders(read())


def test_all_problems_are_listed_after_the_file(read, config):
    spec = read({
        "model.unitz": [1],
        "model.device": "all",
        "optimizer.learning_rate.decay_stepz": 4,
        "loss.builder": "keras.losses:SparseCategoricalCrossentropi",
        "validation.again.metrics.accuracy.nmae": "x",
    })  # fmt: skip
    with pytest.raises(SpecError) as raised:
        check_builders(spec)
    lines = str(raised.value).splitlines()
    expected = [
        f"{config}: model.unitz = [1]: unknown argument of pipefit.training.models:mlp, nearest "
        "allowed is 'units' (allowed: builder, devices, trainable, units, outputs",
        'model.device = "all": unknown argument of pipefit.training.models:mlp, nearest allowed '
        "is 'devices'",
        'loss.builder = "keras.losses:SparseCategoricalCrossentropi": module',
        "optimizer.learning_rate.decay_stepz = 4: unknown argument of keras.optimizers.schedules:",
        'validation.again.metrics.accuracy.nmae = "x": unknown argument of keras.metrics:',
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_the_users_modules_beside_the_file_are_found_without_running_them(read, config):
    (config.parent / "my_lab.py").write_text(
        "raise RuntimeError('ran')\n"
        "def source(archive, split): ...\n"
        "def bare(split): ...\n"
        "def net(units, outputs): ...\n"
    )
    path = list(sys.path)
    spec = read({"data.train.builder": "my_lab:source", "model.builder": "my_lab:net"})
    check_builders(spec)
    assert sys.path == path
    with pytest.raises(SpecError, match=r"model\.unitz = 3: unknown argument of my_lab:net"):
        check_builders(read({"model.builder": "my_lab:net", "model.unitz": 3}))
    assert sys.path == path
    assert "my_lab" not in sys.modules


def test_the_class_of_an_experiment_is_looked_at_without_running_it(read, config):
    (config.parent / "my_class.py").write_text(
        "from pipefit.training import Experiment\n"
        "raise RuntimeError('ran')\n"
        "class Mine(Experiment): ...\n"
        "class Other: ...\n"
    )
    check_builders(read({"experiment": "my_class:Mine"}))
    with pytest.raises(SpecError) as raised:
        check_builders(read({"experiment": "my_class:Other"}))
    assert str(raised.value) == (
        f'{config}: experiment = "my_class:Other": must be a class derived from '
        "pipefit.training:Experiment"
    )
    with pytest.raises(SpecError, match=r"my_class\.py\) has no 'Mein', nearest is 'Mine'"):
        check_builders(read({"experiment": "my_class:Mein"}))


def test_a_source_gets_the_folder_of_its_archive_as_an_argument(read, config):
    (config.parent / "my_sources.py").write_text(
        "def with_archive(archive, split): ...\ndef bare(split): ...\n"
    )
    inline = {"builder": "my_sources:with_archive", "split": "test", "batch_size": 1}
    with pytest.raises(SpecError, match=r"validation\.test\.data\.archive: missing argument of"):
        check_builders(read({"validation.test.data": inline}))
    with pytest.raises(SpecError) as raised:
        check_builders(read({"data.train.builder": "my_sources:bare"}))
    assert str(raised.value) == (
        f'{config}: data.train.archive = "digits": unknown argument of my_sources:bare '
        "(allowed: augment, batch_size, builder, fields, prefetch, readers, split)"
    )


LIGHT = """
import sys
import pipefit
assert "pydantic" not in sys.modules
assert "Spec" in dir(pipefit) and "open_store" in dir(pipefit)
import pipefit.spec
pipefit.read_spec, pipefit.Spec, pipefit.PipefitError
heavy = {"numpy", "pandas", "keras", "tensorflow", "pymongo", "luigi", "matplotlib"}
print(sorted(heavy & set(sys.modules)))
"""


def test_reading_and_checking_specs_needs_no_heavy_module():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_there():
    assert sorted(pipefit.__all__) == [
        "PipefitError", "Spec", "__version__", "fit", "load_model", "load_weights", "open_store",
        "read_spec",
    ]  # fmt: skip
    for name in pipefit.__all__:
        assert getattr(pipefit, name) is not None
    assert pipefit.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="has no attribute 'open_stroe'"):
        _ = pipefit.open_stroe
