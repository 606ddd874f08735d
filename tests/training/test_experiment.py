"""From an experiment file to a trainer and validators."""

import math
import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest
from training_helpers import arrays, assert_equal

from pipefit.data import Arrays
from pipefit.errors import SpecError
from pipefit.records import TIMING, Best
from pipefit.spec import read_spec
from pipefit.training import Experiment, Replicas, Schedule

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where the archive of the digits is unpacked."""
    folder = tmp_path_factory.mktemp("digits")
    with tarfile.open(ROOT / "configs" / "archives" / "optdigits.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return {"digits": str(folder)}


def experiment(folders, devices=1, shipped="digits_mlp", **changes):
    """A shipped one, made small; `a__b=1` changes a.b."""
    small = {
        "digits": {"model.filters": [2, 2], "model.units": 4},
        "digits_mlp": {"model.units": [4]},
    }[shipped]
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    spec = read_spec(ROOT / "configs" / f"{shipped}.toml", {"train.steps": 8, **small, **changes})
    return Experiment(spec, folders, Replicas(kind="cpu", count=devices))


# Builders as users write them; found by import path, as this folder is on sys.path.


def no_model():
    return "model"


def plain_norm():
    """Normalises without asking for synchronisation, within a model within the model."""
    inner = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.BatchNormalization(name="norm")])
    images = keras.Input((8, 8, 1), name="images")
    y = keras.layers.Flatten(name="flat")(inner(images))
    return keras.Model(images, keras.layers.Dense(10, name="logits")(y))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = keras.layers.Dense(10, name="dense")

    def call(self, fields, training=False):
        return {"logits": self.dense(keras.ops.reshape(fields["images"], (-1, 64)))}


def misnamed():
    x = keras.Input((8, 8, 1), name="pixels")
    return keras.Model(x, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def weighted(labels, logits, inputs):
    import tensorflow as tf

    assert set(inputs) == {"images", "labels"}
    return 3 * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def make_weighted():
    return weighted


def test_the_shipped_experiment_trains_and_validates(folders):
    made = experiment(folders, shipped="digits", optimizer__learning_rate=0.05)
    trainer, validator = made.trainer(), made.validator("test")
    assert trainer.batch_size == 100
    rows = trainer.run(8)
    assert set(rows) == {"loss", "accuracy", "learning_rate", *TIMING}
    assert rows["learning_rate"].tolist() == [np.float32(0.05)] * 8
    assert rows["loss"][0] == pytest.approx(math.log(10), abs=0.5)
    outputs = []
    validated = validator.run(outputs.append)
    assert validated.examples == 360
    numbers = validated.metrics
    assert set(numbers) == {"loss", "accuracy"}
    logits = np.concatenate([batch["logits"] for batch in outputs])
    labels = made._shared.source(made.spec.data_of("test"), "x").fields["labels"]
    assert (logits.argmax(axis=1) == labels).mean() == pytest.approx(numbers["accuracy"])


def test_is_the_same_every_time_and_another_with_another_seed(folders):
    states = []
    for seed in (0, 0, 2**63 - 1):
        trainer = experiment(folders, seed=seed).trainer()
        trainer.run(2)
        states.append(arrays(trainer))
    assert_equal(states[1], states[0])
    assert (
        states[2]["model/hidden1/kernel"].tobytes() != states[0]["model/hidden1/kernel"].tobytes()
    )


def test_the_schedule_comes_from_the_file(folders):
    save = {"metrics_every": 3, "validate_every": 4, "checkpoint_every": 5, "recent_every": 6}
    assert experiment(folders, save=save).schedule() == Schedule(steps=8, **save)


def test_without_validation_sets_nothing_is_validated(folders):
    made = experiment(folders, validation={}, save={})
    assert made.schedule().validate_every == 0
    assert made.worst() is None


@pytest.mark.parametrize(("mode", "value"), [("max", -math.inf), ("min", math.inf)])
def test_the_worst_is_beaten_by_every_number(folders, mode, value):
    made = experiment(folders, save__best={"metric": "test/loss", "mode": mode})
    assert made.worst() == Best("test/loss", mode, value, -1)
    assert made.worst().improved_by(0.0)


def test_clipping_groups_and_accumulation_come_from_the_file(folders):
    made = experiment(
        folders,
        optimizer__groups=[{"match": "^hidden", "scale": 0.0}],
        optimizer__clip={"value": 1e-9},
        train__accumulate=2,
    )
    trainer = made.trainer()
    before = arrays(trainer)
    trainer.run(1)
    after = arrays(trainer)
    change = {k: np.abs(after[k] - before[k]).max() for k in before if k.startswith("model/")}
    assert change["model/hidden1/kernel"] == 0
    assert change["model/logits/bias"] <= 1e-8
    assert trainer.updates.done() == 1


def test_a_loss_and_metrics_of_ones_own(folders):
    builder = f"{__name__}:make_weighted"
    plain = experiment(folders).trainer().run(1)
    made = experiment(
        folders,
        loss={"builder": builder},
        train__metrics={"three": {"builder": builder}},
        validation__test__metrics={"three": {"builder": builder}},
    )
    rows = made.trainer().run(1)
    assert rows["loss"] == pytest.approx(3 * plain["loss"], rel=1e-5)
    assert rows["three"] == pytest.approx(rows["loss"])
    numbers = made.validator("test").run().metrics
    assert numbers["three"] == pytest.approx(numbers["loss"])


def test_with_a_loss_of_ones_own_no_accuracy_is_assumed(folders):
    made = experiment(folders, loss={"builder": f"{__name__}:make_weighted"})
    assert list(made.validator("test").run().metrics) == ["loss"]


def test_equal_data_tables_share_one_source(folders):
    made = experiment(folders)
    train = made.spec.train_data
    again = made._shared.source(train.model_copy(update={"batch_size": 7}), "x")
    assert made._shared.source(train, "data.train") is again
    assert isinstance(again, Arrays)
    assert made._shared.source(made.spec.data_of("test"), "x") is not again


def test_a_subclassed_model_is_built_on_the_data(folders):
    made = experiment(folders, model={"builder": f"{__name__}:Subclassed"})
    assert {v.path for v in made.network.variables} == {"own/dense/kernel", "own/dense/bias"}
    made.trainer().run(1)


def test_batch_normalisation_takes_its_statistics_over_all_devices(folders):
    model = {"builder": f"{__name__}:plain_norm"}
    rows = [experiment(folders, n, model=model).trainer().run(3) for n in (1, 2)]
    np.testing.assert_allclose(rows[1]["loss"], rows[0]["loss"], rtol=1e-5)


def test_two_devices_train_as_one(folders):
    rows = [experiment(folders, n).trainer().run(3) for n in (1, 2)]
    np.testing.assert_allclose(rows[1]["loss"], rows[0]["loss"], rtol=1e-5)


class TestRefused:
    def test_a_builder_that_makes_no_model(self, folders):
        with pytest.raises(SpecError, match=r"must return a keras\.Model, not str"):
            experiment(folders, model={"builder": f"{__name__}:no_model"})

    def test_an_input_that_is_no_field(self, folders):
        with pytest.raises(SpecError, match="input 'pixels' is no field of the data; fields are"):
            experiment(folders, model={"builder": f"{__name__}:misnamed"})

    def test_a_group_that_matches_nothing(self, folders):
        made = experiment(folders, optimizer__groups=[{"match": "^dense9", "scale": 0.1}])
        with pytest.raises(SpecError, match=r"match = '\^dense9' matches no trainable variable"):
            made.trainer()
