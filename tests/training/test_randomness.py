"""Every device draws its own random numbers, from (seed, step, device), and none is lost."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import arrays, assert_equal, make_trainer, with_layers

from pipefit.data import Arrays

ONES = Arrays(x=np.ones((8, 6), np.float32), labels=np.zeros(8, np.int64))


class Noise(keras.layers.Layer):
    """A layer of a user's own that draws by Keras."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), seed=self.seeds)


class Generated(keras.layers.Layer):
    """A layer of a user's own that draws from a tf.random.Generator."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x):
        return x + self.generator.normal(tf.shape(x))


def layered(*layers):
    """Gives what these layers make of ones, besides the logits."""

    def make():
        x = keras.Input((6,), name="x")
        y = x
        for layer in layers:
            y = layer()(y)
        flat = keras.layers.Flatten(name="flat")(y)
        return keras.Model(x, {"seen": flat, "logits": keras.layers.Dense(3, name="b")(flat)})

    return make


def as_pictures():
    return keras.layers.Reshape((3, 2, 1), name="pictures")


def as_sequences():
    return keras.layers.Reshape((3, 2), name="sequences")


def drawing(model, devices=1, batch=8):
    """A trainer on ones, whose weights stay as they are."""
    return make_trainer(
        model,
        ONES,
        loss=lambda logits: logits[:, 0],
        devices=devices,
        batch=batch,
        targets={"t": lambda inputs, outputs, mode: {"seen": outputs["seen"]}},
        optimizer=lambda: keras.optimizers.SGD(0.0),
    )


def drawn(model, devices=1, batch=8, steps=3):
    """What came of ones at every step, [steps, batch, ...], and the trainer."""
    trainer = drawing(model, devices, batch)
    return trainer.run(steps)["t/seen"], trainer


LAYERS = {
    "dropout": [lambda: keras.layers.Dropout(0.5, name="r")],
    "noise": [lambda: keras.layers.GaussianNoise(1.0, name="r")],
    "translation": [
        lambda: keras.layers.Dense(6, name="a"),
        as_pictures,
        lambda: keras.layers.RandomTranslation(0.5, 0.5, seed=1, name="r"),
    ],
    "lstm": [as_sequences, lambda: keras.layers.LSTM(9, dropout=0.5, seed=1, name="r")],
    "cell": [
        as_sequences,
        lambda: keras.layers.Bidirectional(
            keras.layers.RNN(keras.layers.GRUCell(9, recurrent_dropout=0.5)), name="r"
        ),
    ],
    "own": [lambda: Noise(name="r")],
    "generator": [lambda: Generated(name="r")],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=list(LAYERS))
def test_devices_draw_different_numbers_and_the_same_again(layers):
    trainer = drawing(layered(*layers), devices=2)
    first = arrays(trainer)
    seen = trainer.run(3)["t/seen"]
    trainer.restore(first)
    np.testing.assert_array_equal(trainer.run(3)["t/seen"], seen)
    halves = [*seen[:, :4], *seen[:, 4:]]  # of three steps on two devices
    assert len({half.tobytes() for half in halves}) == 6
    for variable in trainer.objective.model.variables:
        first, *others = [copy.numpy() for copy in variable.value.values]
        assert all(np.array_equal(other, first) for other in others), variable.path


@pytest.mark.parametrize("name", ["dropout", "translation", "lstm", "own"])
def test_the_first_device_draws_what_one_device_would(name):
    two, _ = drawn(layered(*LAYERS[name]), devices=2)
    one, _ = drawn(layered(*LAYERS[name]), devices=1, batch=4)
    np.testing.assert_array_equal(two[:, :4], one)


@pytest.mark.parametrize("devices", [2, 4])
def test_masks_of_devices_are_independent(devices):
    """Of 4000 units those that two devices keep both are a quarter, within 5 deviations."""

    def model():
        x = keras.Input((6,), name="x")
        wide = keras.layers.Dense(500, kernel_initializer="ones", name="w")(x)
        seen = keras.layers.Dropout(0.5, seed=0, name="r")(wide)
        return keras.Model(x, {"seen": seen, "logits": keras.layers.Dense(3, name="b")(seen)})

    seen, _ = drawn(model, devices, steps=8)
    kept = seen.reshape(8, devices, -1).swapaxes(0, 1).reshape(devices, -1)[:, :4000] > 0
    for i in range(devices):
        for j in range(i):
            assert abs(np.mean(kept[i] & kept[j]) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize("layer", [Noise, Generated])
@pytest.mark.parametrize("batch", [7, 1])
def test_two_devices_continue_bit_for_bit_also_with_uneven_slices(layer, batch):
    """A tf.random.Generator moves on by as many numbers as it gives: more on the first device."""
    model = with_layers(lambda: layer(name="own"))
    whole, continued = (make_trainer(model, devices=2, batch=batch) for _ in range(2))
    whole.run(2)
    saved = arrays(whole)
    rows = whole.run(3)
    continued.restore(saved)
    again = continued.run(3)
    np.testing.assert_array_equal(again["loss"], rows["loss"])
    assert_equal(arrays(continued), arrays(whole))


@pytest.mark.parametrize("layer", [Noise, Generated])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_a_state_is_good_for_any_number_of_devices(layer, before, after):
    model = with_layers(lambda: layer(name="own"))
    first, then = (make_trainer(model, devices=n, batch=6) for n in (before, after))
    first.run(2)
    then.restore(arrays(first))
    assert_equal(arrays(then), arrays(first))
    then.run(1)
    assert then.step == 3
