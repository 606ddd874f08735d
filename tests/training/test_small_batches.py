"""A batch smaller than the number of devices, and slices as uneven as can be: as one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import assert_close, make_trainer, pictures, weights, with_layers

from pipefit.data import Arrays
from pipefit.errors import SpecError
from pipefit.training import Replicas, Validator
from pipefit.training.objective import Objective, accuracy, per_example

L = keras.layers


class Adds(L.Layer):
    """Adds a mean over the batch to the loss."""

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(x**2))
        return x


def dense():
    return with_layers(
        lambda: Adds(name="before"),
        lambda: L.Dense(4, kernel_regularizer="l2", activity_regularizer="l2", name="c"),
        lambda: L.BatchNormalization(momentum=0.7, name="norm"),
        lambda: Adds(name="after"),
        lambda: L.BatchNormalization(renorm=True, name="renorm"),
    )()


def convolution():
    x = keras.Input((4, 4, 1), name="images")
    y = L.Conv2D(3, 3, padding="same", name="conv")(x)
    y = L.BatchNormalization(name="norm")(y)
    y = L.MaxPooling2D(name="pool")(y)
    y = L.SeparableConv2D(3, 2, name="separable")(y)
    y = L.GlobalAveragePooling2D(name="average")(y)
    return keras.Model(x, {"logits": L.Dense(3, name="b")(y)})


def recurrent():
    x = keras.Input((6,), name="words")
    wide = keras.initializers.RandomNormal(stddev=1.0)
    y = L.Embedding(4, 3, embeddings_initializer=wide, mask_zero=True, name="embedding")(x)
    y = L.BatchNormalization(name="norm")(y)  # under the mask
    y = L.Bidirectional(L.GRU(3), name="gru")(y)
    return keras.Model(x, {"logits": L.Dense(3, name="b")(y)})


def sentences() -> Arrays:
    draw = np.random.default_rng(0)
    return Arrays(words=draw.integers(0, 4, (20, 6)), labels=np.arange(20) % 3)


MODELS = {
    "dense": (dense, lambda: None),
    "convolution": (convolution, pictures),
    "recurrent": (recurrent, sentences),
}


def after_steps(name, devices, **options):
    model, source = MODELS[name]
    trainer = make_trainer(
        model, source(), devices=devices, metrics={"accuracy": accuracy()}, **options
    )
    rows = trainer.run(4)
    columns = {column: rows[column] for column in ("loss", "accuracy")}
    return {**columns, **weights(trainer)}


@pytest.mark.parametrize("name", list(MODELS))
def test_fewer_examples_than_devices(name):
    assert_close(after_steps(name, 3, batch=2), after_steps(name, 1, batch=2))


@pytest.mark.parametrize(
    ("devices", "options"),
    [(2, {"batch": 1}), (4, {"batch": 5}), (3, {"batch": 4, "accumulate": 2})],
    ids=["one example", "uneven", "slices of a batch"],
)
def test_other_splits(devices, options):
    expected = after_steps("convolution", 1, **options)
    assert_close(after_steps("convolution", devices, **options), expected, tolerance=2e-6)


def test_losses_of_a_single_example_by_hand():
    """Three of four devices have nothing to say."""

    def model():
        x = keras.Input((2,), name="x")
        return keras.Model(x, L.Dense(1, use_bias=False, kernel_initializer="ones", name="d")(x))

    x = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    trainer = make_trainer(
        model, Arrays(x=x), loss=lambda y_pred: y_pred[:, 0] ** 2, batch=1, devices=4
    )
    rows = trainer.run(2)
    kernel, losses = np.ones(2), []
    for example in trainer.feed.iterator(0), trainer.feed.iterator(1):
        value = next(example)["x"].numpy()[0].astype(np.float64)
        losses.append((value @ kernel) ** 2)
        kernel -= 0.1 * 2 * (value @ kernel) * value
    np.testing.assert_allclose(rows["loss"], losses, rtol=1e-6)
    np.testing.assert_allclose(weights(trainer)["d/kernel"][:, 0], kernel, atol=1e-6)


def test_an_output_of_the_whole_slice_is_in_nobodys_way():
    def model():
        x = keras.Input((6,), name="x")
        y = L.Dense(3, name="b")(x)
        return keras.Model(x, {"logits": y, "scale": keras.ops.mean(y)})

    one, two = (
        make_trainer(model, loss=lambda logits: logits[:, 0], devices=n, batch=1).run(2)["loss"]
        for n in (1, 2)
    )
    np.testing.assert_allclose(two, one, rtol=1e-6)


def test_targets_get_the_rows_of_the_batch_alone():
    seen = {"t": lambda inputs, outputs, mode: {"logits": outputs["logits"]}}
    one, four = (make_trainer(devices=n, batch=3, targets=seen).run(2)["t/logits"] for n in (1, 4))
    assert four.shape == (2, 3, 3)
    np.testing.assert_allclose(four, one, atol=1e-6)


def test_a_validation_whose_last_batch_is_smaller_than_the_devices():
    """9 examples in batches of 4: the last has one, for four devices."""
    source = pictures(9)
    results, seen = [], []
    for devices in (1, 4):
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        replicas = Replicas(kind="cpu", count=devices)
        with replicas.scope():
            model = convolution()
        objective = Objective(
            model,
            per_example(lambda logits: logits[:, 0], "loss"),
            {"accuracy": per_example(accuracy(), "accuracy")},
        )
        validator = Validator(
            objective=objective, source=source, replicas=replicas, batch_size=4, outputs=("logits",)
        )
        rows: list[np.ndarray] = []
        results.append(validator.run(lambda got, rows=rows: rows.append(got["logits"])))
        seen.append(np.concatenate(rows))
    assert results[1].examples == 9
    assert results[1].metrics == pytest.approx(results[0].metrics, rel=1e-6)
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-6)


class Centred(L.Layer):
    """Statistics over the batch that a user sums over the devices."""

    def call(self, x):
        context = tf.distribute.get_replica_context()
        if context is None:  # while the model is built
            return x
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(x, axis=0))
        count = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(tf.shape(x)[0], tf.float32))
        return x - total / count


class Normalised(L.BatchNormalization):
    """Moments of a user's own."""

    def _moments(self, inputs, mask):
        return super()._moments(inputs, mask)


@pytest.mark.parametrize("layer", [Centred, Normalised])
class TestStatisticsOfAUsersOwn:
    def test_are_right_if_every_device_has_examples(self, layer):
        model = with_layers(lambda: layer(name="own"))
        one, two = (make_trainer(model, devices=n, batch=7) for n in (1, 2))
        np.testing.assert_allclose(two.run(3)["loss"], one.run(3)["loss"], rtol=1e-6)
        assert_close(weights(two), weights(one))

    def test_are_refused_if_one_has_none(self, layer):
        model = with_layers(lambda: layer(name="own"))
        trainer = make_trainer(model, devices=2, batch=1)
        with pytest.raises(SpecError, match="every device needs an example") as refused:
            trainer.run(1)
        assert layer.__name__ in str(refused.value)
