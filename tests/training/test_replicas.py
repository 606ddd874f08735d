"""The numbers do not depend on the number of devices, whatever the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    arrays,
    assert_close,
    bare_loop,
    make_trainer,
    perceptron,
    pictures,
    sgd,
    small_convnet,
    weights,
    with_layers,
)

from pipefit.data import Arrays
from pipefit.errors import DeviceError
from pipefit.training import Clip, Replicas
from pipefit.training.objective import accuracy
from pipefit.training.replicas import devices

MANY = pytest.mark.parametrize("devices", [2, 3, 4])


@pytest.fixture(scope="module")
def convnet_on_one():
    """Metrics and state after some steps on one device."""
    return after_steps(1)


def after_steps(devices):
    trainer = make_trainer(
        small_convnet,
        pictures(),
        optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        metrics={"accuracy": accuracy()},
        clip=Clip(global_norm=0.5),
        devices=devices,
        batch=10,
    )
    return trainer.run(5), arrays(trainer)


@MANY
def test_uneven_slices_with_batch_normalisation_clipping_and_metrics(devices, convnet_on_one):
    rows, state = after_steps(devices)
    assert_close(rows, convnet_on_one[0])
    assert_close(state, convnet_on_one[1])


@pytest.mark.parametrize("limit", [{"value": 0.05}, {"norm": 0.2}])
def test_gradients_are_clipped_after_they_are_summed(limit):
    one, two = (make_trainer(clip=Clip(**limit), devices=n, batch=9) for n in (1, 2))
    assert_close(two.run(4), one.run(4))
    assert_close(weights(two), weights(one))


def test_clipping_by_the_optimizer_itself_is_exact_too():
    def optimizer():
        return keras.optimizers.SGD(0.1, global_clipnorm=0.2)

    ours = make_trainer(clip=Clip(global_norm=0.2))
    keras_own = make_trainer(optimizer=optimizer, devices=2)
    assert_close(keras_own.run(4), ours.run(4))
    assert_close(weights(keras_own), weights(ours))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_regularisers_count_once(devices):
    trainer = make_trainer(
        lambda: perceptron(kernel_regularizer=keras.regularizers.L2(0.05)), devices=devices, batch=9
    )
    start = weights(trainer)
    rows = trainer.run(4)
    expected, losses, _ = bare_loop(start, 4, sgd(0.1), batch=9, l2=0.05)
    assert_close(weights(trainer), expected)
    np.testing.assert_allclose(rows["loss"], losses, rtol=1e-6)


def test_added_losses_are_means_over_the_batch_also_between_synchronised_layers():
    """At a synchronised layer one device's forward pass waits while another's begins."""

    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * tf.reduce_mean(x**2))
            return x

    def activity():
        return keras.layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1), name="act")

    def norm():
        return keras.layers.BatchNormalization(synchronized=True, name="norm")

    model = with_layers(lambda: Adds(name="before"), activity, norm, lambda: Adds(name="after"))
    one, two = (make_trainer(model, devices=n, batch=7) for n in (1, 2))
    assert_close(two.run(4), one.run(4), tolerance=2e-6)
    assert_close(weights(two), weights(one), tolerance=2e-6)


def test_slices_within_slices():
    one, two = (
        make_trainer(devices=n, batch=10, accumulate=parts) for n, parts in ((1, 1), (2, 2))
    )
    assert_close(two.run(4), one.run(4))
    assert_close(weights(two), weights(one))


@pytest.mark.parametrize("clip", [Clip(), Clip(global_norm=0.1)], ids=["free", "clipped"])
def test_sparse_gradients(clip):
    def model():
        words = keras.Input((4,), name="words", dtype="int64")
        y = keras.layers.Flatten(name="flat")(keras.layers.Embedding(3, 2, name="e")(words))
        return keras.Model(words, keras.layers.Dense(3, name="b")(y))

    words = np.random.default_rng(0).integers(0, 3, (20, 4))
    source = Arrays(words=words, labels=np.arange(20) % 3)
    one, two = (
        make_trainer(
            model,
            source,
            optimizer=lambda: keras.optimizers.Adam(0.01),
            clip=clip,
            devices=n,
            batch=7,
        )
        for n in (1, 2)
    )
    assert_close(two.run(4), one.run(4))
    assert_close(weights(two), weights(one), tolerance=2e-6)


def test_learning_rates_by_name_and_weight_decay():
    one, two = (
        make_trainer(
            optimizer=lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
            groups=[("^a/", 0.1)],
            devices=n,
            batch=7,
        )
        for n in (1, 2)
    )
    assert_close(two.run(5), one.run(5))
    assert_close(weights(two), weights(one), tolerance=2e-6)


def test_constraints():
    def model():
        return perceptron(kernel_constraint=keras.constraints.MaxNorm(0.5))

    one, two = (make_trainer(model, devices=n, batch=7) for n in (1, 2))
    assert_close(two.run(4), one.run(4))
    assert np.linalg.norm(weights(two)["a/kernel"], axis=0).max() < 0.5001
    assert_close(weights(two), weights(one))


def test_batch_normalisation_keeps_equal_statistics_on_all_devices():
    trainer = make_trainer(small_convnet, pictures(), devices=2, batch=9)
    trainer.run(3)
    for name, variable in trainer.state.variables.items():
        copies = [copy.numpy() for copy in variable.values]
        assert len(copies) == 2
        np.testing.assert_array_equal(copies[1], copies[0], err_msg=name)


class TestSplitting:
    @pytest.mark.parametrize(
        ("devices", "examples", "sizes"),
        [(1, 7, [7]), (2, 7, [4, 3]), (4, 10, [3, 3, 2, 2]), (4, 2, [1, 1, 0, 0])],
    )
    def test_sizes_differ_by_at_most_one(self, devices, examples, sizes):
        assert Replicas(count=devices).sizes(examples) == sizes

    def test_parts_and_slices_follow_each_other(self):
        batch = {"x": tf.range(10), "y": tf.range(10) * 10}
        slices = Replicas(count=2).split(batch, parts=2)
        assert [[s.fields["x"].numpy().tolist() for s in parts] for parts in slices] == [
            [[0, 1, 2], [5, 6, 7]],
            [[3, 4], [8, 9]],
        ]
        assert slices[1][0].fields["y"].numpy().tolist() == [30, 40]


class TestChosenDevices:
    def test_models_of_one_process_take_different_or_the_same_devices(self):
        first, second, third = (
            Replicas(kind="cpu", indices=i, alone=False) for i in ([0, 1], [3, 2], [1])
        )
        assert [[name[-5:] for name in r.names] for r in (first, second, third)] == [
            ["CPU:0", "CPU:1"],
            ["CPU:3", "CPU:2"],
            ["CPU:1"],
        ]

    def test_several_strategies_in_one_function(self):
        """Each sums over its own devices."""
        models = [Replicas(kind="cpu", indices=i, alone=False) for i in ([0, 1], [3, 2], [0, 2, 3])]

        @tf.function
        def all_at_once(batch):
            return [
                r.total(r.run(lambda slices: tf.reduce_sum(slices[0].fields["x"]), r.split(batch)))
                for r in models
            ]

        assert [int(v) for v in all_at_once({"x": tf.range(10)})] == [45, 45, 45]


def test_one_group_of_gpus_of_a_process_sums_by_nccl(monkeypatch):
    """No GPU is needed to see which: TensorFlow fails at a second group."""
    monkeypatch.setattr(devices, "_group", [])
    first, other = (["/device:GPU:0", f"/device:GPU:{i}"] for i in (1, 2))
    wanted = [["/device:CPU:0", "/device:CPU:1"], first, other, first]
    assert [devices._have_nccl(names) for names in wanted] == [False, True, False, True]


class TestRefused:
    @pytest.mark.parametrize("indices", [[], [-1], [1, 1]])
    def test_indices_that_are_none(self, indices):
        with pytest.raises(DeviceError, match="different numbers from 0"):
            Replicas(kind="cpu", indices=indices)

    def test_more_devices_than_there_are(self):
        with pytest.raises(DeviceError, match="5 CPU devices wanted, TensorFlow has 4"):
            Replicas(kind="cpu", count=5)

    def test_gpus_on_a_machine_without(self):
        there = len(tf.config.list_physical_devices("GPU"))
        with pytest.raises(DeviceError, match=f"{there + 1} GPU devices wanted"):
            Replicas(kind="gpu", count=there + 1)
