"""Why a checkpoint is not one of Keras' or TensorFlow's files; docs/resume.md says so."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipefit.training.state import State, to_numpy


def dropout_model() -> keras.Model:
    keras.utils.clear_session()
    x = keras.Input((4,), name="x")
    return keras.Model(x, keras.layers.Dropout(0.5, seed=7, name="dropout")(x))


def generator_state(model: keras.Model) -> list[int]:
    return np.asarray(model.get_layer("dropout").seed_generator.state).tolist()


def by_keras_file(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def by_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    other = dropout_model()
    other.load_weights(folder / "model.weights.h5")
    return other


def by_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
    other = dropout_model()
    tf.train.Checkpoint(model=other).restore(path)
    return other


def by_state(model, folder):
    arrays = to_numpy(State(model).snapshot())
    other = dropout_model()
    State(other).restore(arrays)
    return other


@pytest.mark.parametrize(
    ("save_and_load", "continues"),
    [(by_keras_file, False), (by_weights, False), (by_checkpoint, False), (by_state, True)],
    ids=["keras-file", "save_weights", "tf.train.Checkpoint", "pipefit"],
)
def test_which_of_them_keep_the_random_generator_of_dropout(save_and_load, continues, tmp_path):
    model = dropout_model()
    fresh = generator_state(model)
    for _ in range(3):
        model(np.ones((2, 4), np.float32), training=True)
    used = generator_state(model)
    assert used != fresh
    assert generator_state(save_and_load(model, tmp_path)) == (used if continues else fresh)
