"""What is computed in half precision, and what stays float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import SEED, make_trainer, perceptron, pictures, points, small_convnet

from pipefit.data import Arrays, examples
from pipefit.training.objective import Objective, per_example
from pipefit.training.replicas.precision import precision

HALF = pytest.mark.parametrize("name", ["bfloat16", "float16"])


def recurrent():
    words = keras.Input((6,), name="words")
    y = keras.layers.Embedding(4, 3, mask_zero=True, name="e")(words)
    y = keras.layers.BatchNormalization(name="norm")(y)
    y = keras.layers.GRU(3, name="gru")(y)
    return keras.Model(words, keras.layers.Dense(3, name="b")(y))


def sentences() -> Arrays:
    draw = np.random.default_rng(0)
    return Arrays(words=draw.integers(0, 4, (20, 6)), labels=np.arange(20) % 3)


def trained(model, source, name, **options):
    """A trainer after four steps, and their losses."""

    def made():
        with precision(name):
            return model()

    trainer = make_trainer(made, source, updates={"loss_scaling": name == "float16"}, **options)
    return trainer, trainer.run(4)["loss"]


@pytest.mark.parametrize(
    ("model", "source", "name"),
    [
        (perceptron, points, "bfloat16"),
        (small_convnet, pictures, "bfloat16"),
        (small_convnet, pictures, "float16"),
        (recurrent, sentences, "float16"),
    ],
)
def test_models_train_near_to_float32_and_their_variables_stay_float32(model, source, name):
    trainer, losses = trained(model, source(), name, devices=2, batch=7)
    _, expected = trained(model, source(), "float32", batch=7)
    error = np.abs(losses - expected).max()
    assert 0 < error < (0.02 if name == "bfloat16" else 0.003)
    assert {v.dtype for v in trainer.objective.model.weights} == {"float32"}


@HALF
def test_losses_and_metrics_are_computed_in_float32(name):
    """From outputs in half precision: by hand in NumPy from the outputs themselves."""
    seen = []

    def squares(outputs):
        seen.append(outputs["logits"].dtype)
        return tf.reduce_sum(outputs["logits"] ** 2, axis=-1)

    with precision(name):
        model = perceptron()
    x = tf.constant(points().fields["x"] * 300)
    values, outputs = Objective(
        model, per_example(squares, "loss"), {"twice": per_example(squares, "metric")}
    )({"x": x}, training=True)
    half = model(x)["logits"]
    assert half.dtype == name
    exact = np.sum(half.numpy().astype(np.float64) ** 2, axis=-1)
    assert seen == [tf.float32] * 2
    assert outputs["logits"].dtype == tf.float32
    for value in values.values():
        np.testing.assert_allclose(value.numpy(), exact, rtol=1e-6)


def test_a_layer_with_a_dtype_of_its_own_keeps_it():
    with precision("bfloat16"):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
        assert keras.layers.Dense(1, dtype="float32").compute_dtype == "float32"
    assert keras.layers.Dense(1).compute_dtype == "float32"


@HALF
def test_statistics_of_batch_normalisation_are_float32(name):
    """Against NumPy, from what the layer is given."""

    def model():
        x = keras.Input((6,), name="x")
        y = keras.layers.BatchNormalization(momentum=0.5, name="norm")(x)
        return keras.Model(x, keras.layers.Dense(3, name="b")(y))

    trainer, _ = trained(model, points(), name, devices=2, batch=7)
    mean = np.zeros(6)
    for step in range(4):
        order = examples(seed=SEED, start=step * 7, count=7, n=20)
        x = tf.cast(points().fields["x"][order], name).numpy().astype(np.float64)
        mean = 0.5 * mean + 0.5 * x.mean(axis=0)
    moving = trainer.objective.model.get_layer("norm").moving_mean
    np.testing.assert_allclose(moving.numpy(), mean, rtol=1e-5, atol=1e-6)
