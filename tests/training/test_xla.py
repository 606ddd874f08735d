"""Compiled by XLA: the same numbers, on any number of devices; what it cannot is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    arrays,
    assert_close,
    make_trainer,
    perceptron,
    pictures,
    small_convnet,
    weights,
    with_layers,
)

from pipefit.data import Arrays
from pipefit.errors import SpecError
from pipefit.training import Clip
from pipefit.training.objective import accuracy

L = keras.layers


def recurrent():
    words = keras.Input((6,), name="words")
    y = L.Embedding(4, 3, mask_zero=True, name="e")(words)
    return keras.Model(words, L.Dense(3, name="b")(L.SimpleRNN(3, name="rnn")(y)))


def convolution():
    x = keras.Input((4, 4, 1), name="images")
    y = L.Flatten(name="f")(L.AveragePooling2D(2, name="p")(L.Conv2D(3, 3, name="c")(x)))
    return keras.Model(x, L.Dense(3, name="b")(y))


def regularised():
    return perceptron(kernel_regularizer="l2", activity_regularizer="l2")


def sentences() -> Arrays:
    draw = np.random.default_rng(0)
    return Arrays(words=draw.integers(0, 4, (20, 6)), labels=np.arange(20) % 3)


@pytest.mark.parametrize(
    ("model", "source", "devices", "options"),
    [
        (regularised, lambda: None, 2, {"batch": 10, "accumulate": 2}),
        (convolution, pictures, 4, {"batch": 2}),
        (recurrent, sentences, 2, {"batch": 7}),
    ],
    ids=["uneven slices", "fewer examples", "recurrent"],
)
def test_several_devices_compiled_as_one_that_is_not(model, source, devices, options):
    options |= {"metrics": {"accuracy": accuracy()}, "clip": Clip(global_norm=0.5)}
    one = make_trainer(model, source(), **options)
    more = make_trainer(model, source(), devices=devices, jit_compile=True, **options)
    expected, rows = one.run(3), more.run(3)
    assert_close(*({k: r[k] for k in ("loss", "accuracy")} for r in (rows, expected)))
    assert_close(weights(more), weights(one))


def test_what_is_compiled_is_the_pass_of_each_device():
    """Which XLA makes one operation of, so nothing but that call is left of the layers."""
    trainer = make_trainer(devices=2, jit_compile=True)
    batch = {k: tf.constant(v) for k, v in next(trainer.feed.iterator(0)).items()}
    graph = tf.function(lambda: trainer.update(batch)[0]).get_concrete_function().graph
    calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    passes = [call.get_attr("f").name for call in calls]
    compiled = {
        f.signature.name
        for f in graph.as_graph_def().library.function
        if f.attr["_XlaMustCompile"].b
    }
    assert len(set(passes) & compiled) == 2
    assert "MatMul" not in {op.type for op in graph.get_operations()}


def test_devices_draw_different_masks_and_the_same_again():
    model = with_layers(lambda: L.Dropout(0.5, name="drop"))
    trainer = make_trainer(model, devices=2, jit_compile=True)
    first = arrays(trainer)
    losses = trainer.run(3)["loss"]
    trainer.restore(first)
    np.testing.assert_array_equal(trainer.run(3)["loss"], losses)


class Centred(L.Layer):
    """Exchanges sums with the other devices."""

    def call(self, x):
        context = tf.distribute.get_replica_context()
        if context is None:  # while the model is built
            return x
        return x - context.all_reduce("mean", tf.reduce_mean(x, axis=0))


class TestRefused:
    def test_batch_normalisation_on_several_devices(self):
        with pytest.raises(SpecError, match=r"jit_compile = true: .* 2 devices .*'norm'"):
            make_trainer(small_convnet, pictures(), devices=2, jit_compile=True)

    def test_a_layer_of_ones_own_that_exchanges_values(self):
        trainer = make_trainer(
            with_layers(lambda: Centred(name="own")), devices=2, jit_compile=True
        )
        with pytest.raises(SpecError, match="which XLA cannot amid a pass") as refused:
            trainer.run(1)
        assert "Centred" in str(refused.value)

    def test_frozen_batch_normalisation_takes_no_statistics(self):
        def model():
            made = small_convnet()
            made.get_layer("norm").trainable = False
            return made

        make_trainer(model, pictures(), devices=2, jit_compile=True)
