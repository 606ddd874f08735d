"""Batch normalisation takes its statistics over the whole batch, as one device does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import SEED, assert_close, make_trainer, points, weights, with_layers

from pipefit.data import Arrays, examples
from pipefit.errors import SpecError, TrainingError

L = keras.layers


def sequences() -> Arrays:
    draw = np.random.default_rng(0)
    return Arrays(x=draw.normal(size=(20, 5, 4)).astype(np.float32), labels=np.arange(20) % 3)


def flat(**options):
    def model():
        x = keras.Input((6,), name="x")
        y = L.BatchNormalization(name="norm", **options)(x)
        return keras.Model(x, {"logits": L.Dense(3, name="b")(y)})

    return model


def along_axis_1():
    x = keras.Input((5, 4), name="x")
    y = L.BatchNormalization(axis=1, name="norm")(x)
    return keras.Model(x, {"logits": L.Dense(3, name="b")(L.Flatten(name="flat")(y))})


def masked():
    x = keras.Input((5, 4), name="x")
    y = L.BatchNormalization(name="norm")(L.Masking(name="mask")(x))
    return keras.Model(
        x, {"logits": L.Dense(3, name="b")(L.GlobalAveragePooling1D(name="flat")(y))}
    )


def partly_masked() -> Arrays:
    """Most of the later steps of some sequences are masked: the slices' shares differ."""
    source = sequences()
    x = source.fields["x"].copy()
    x[::2, 1:] = 0
    return Arrays(x=x, labels=source.fields["labels"])


CASES = {
    "plain": (flat(), points),
    "momentum and epsilon": (flat(momentum=0.3, epsilon=0.1), points),
    "no scale, no centre": (flat(scale=False, center=False), points),
    "renorm": (flat(renorm=True), points),
    "asked for": (flat(synchronized=True), points),
    "axis 1": (along_axis_1, sequences),
    "mask": (masked, partly_masked),
}


@pytest.mark.parametrize("name", list(CASES))
def test_three_devices_as_one(name):
    model, source = CASES[name]
    one, more = (make_trainer(model, source(), devices=n, batch=7) for n in (1, 3))
    assert_close({"loss": more.run(4)["loss"]}, {"loss": one.run(4)["loss"]})
    assert_close(weights(more), weights(one))


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("synchronized", [False, True])
def test_moments_by_hand_also_of_numbers_far_from_zero(devices, synchronized):
    """E(x**2) - E(x)**2, as Keras takes the variance on several devices, has no digit left here."""
    x = points().fields["x"].astype(np.float64) + 3000
    source = Arrays(x=x.astype(np.float32), labels=points().fields["labels"])
    trainer = make_trainer(
        flat(momentum=0.5, synchronized=synchronized), source, devices=devices, batch=7
    )
    trainer.run(3)
    mean, variance = np.zeros(6), np.ones(6)
    for step in range(3):
        batch = source.fields["x"].astype(np.float64)[
            examples(seed=SEED, start=step * 7, count=7, n=20)
        ]
        mean = 0.5 * mean + 0.5 * batch.mean(axis=0)
        variance = 0.5 * variance + 0.5 * batch.var(axis=0)
    got = weights(trainer)
    np.testing.assert_allclose(got["norm/moving_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(got["norm/moving_variance"], variance, rtol=1e-5)


def test_masked_moments_by_hand():
    trainer = make_trainer(masked, partly_masked(), devices=4, batch=3)
    trainer.run(1)
    x = partly_masked().fields["x"].astype(np.float64)[examples(seed=SEED, start=0, count=3, n=20)]
    counted = x[np.any(x != 0, axis=-1)]
    assert len(counted) < 15
    got = weights(trainer)
    np.testing.assert_allclose(got["norm/moving_mean"], 0.01 * counted.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        got["norm/moving_variance"], 0.99 + 0.01 * counted.var(axis=0), rtol=1e-5
    )


class Running(L.Layer):
    """Keeps a running mean of what it sees: on several devices, of its slice."""

    def __init__(self, aggregation="none", **options):
        super().__init__(**options)
        self._aggregation = aggregation

    def build(self, shape):
        self.mean = self.add_weight(
            shape=(shape[-1],),
            initializer="zeros",
            trainable=False,
            aggregation=self._aggregation,
            name="mean",
        )

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, axis=0))
        return x - self.mean


class TestStatisticsOfSingleDevices:
    def test_are_refused_after_the_first_steps(self):
        trainer = make_trainer(with_layers(lambda: Running(name="own")), devices=2)
        with pytest.raises(TrainingError, match="'own/mean' differs between the devices"):
            trainer.run(1)

    def test_means_of_them_are_right_if_the_devices_share_evenly(self):
        model = with_layers(lambda: Running("mean", name="own"))
        one, two = (make_trainer(model, devices=n, batch=8) for n in (1, 2))
        one.run(1)
        two.run(1)
        np.testing.assert_allclose(weights(two)["own/mean"], weights(one)["own/mean"], atol=1e-7)

    def test_means_of_them_are_refused_if_not(self):
        model = with_layers(lambda: Running("mean", name="own"))
        with pytest.raises(SpecError, match=r"get 4, 3 examples, but the variable 'own/mean' has"):
            make_trainer(model, devices=2, batch=7)
