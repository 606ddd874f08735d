"""Names of state, and what is done with the copies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import perceptron

from pipefit.errors import StateMismatch
from pipefit.training import Part, State, Updates, not_finite, to_numpy


def test_two_variables_of_one_name_are_refused():
    class Both(keras.layers.Layer):
        def build(self, shape):
            self.first = self.add_weight(shape=(2,), name="w")
            self.second = self.add_weight(shape=(2,), name="w")

        def call(self, x):
            return x + self.first + self.second

    x = keras.Input((2,), name="x")
    model = keras.Model(x, Both(name="both")(x))
    with pytest.raises(StateMismatch, match="two variables are called 'model/both/w'"):
        State(model)


def test_without_an_optimizer_it_is_the_model():
    state = State(perceptron())
    assert list(state.variables) == [
        "model/a/kernel",
        "model/a/bias",
        "model/b/kernel",
        "model/b/bias",
    ]


def test_others_are_the_variables_it_does_not_hold():
    model = perceptron()
    optimizer = keras.optimizers.SGD(0.1)
    updates = Updates(model, [Part(optimizer)], average=0.9, loss_scaling=True)
    state, foreign = State(model, updates), tf.Variable(1.0)
    known = [v.value for v in [*model.variables, *optimizer.variables]]
    known += [*updates.variables.values(), *updates.constants]
    assert state.others([*known, foreign]) == [foreign]


def test_not_finite_names_the_arrays_that_hold_nan_or_infinity():
    values = {
        "fine": np.ones(3, np.float32),
        "nan": np.array([1, np.nan], np.float16),
        "infinite": np.array([[-np.inf]]),
        "integer": np.array([2**40]),
        "flag": np.array([True]),
        "empty": np.zeros(0, np.float32),
        "bfloat": tf.constant([np.nan, 1.0], tf.bfloat16).numpy(),
        "fine bfloat": tf.constant([2.0], tf.bfloat16).numpy(),
    }
    assert not_finite(values) == ["nan", "infinite", "bfloat"]


def test_a_snapshot_is_of_one_step_and_nobody_changes_it_by_mistake():
    """It shares the memory of variables until they are updated."""
    variable = tf.Variable([1.0, 2.0])
    update = tf.function(lambda: variable.assign_add([1.0, 1.0]))
    snapshot = tf.function(lambda: tf.identity(variable))()
    early = to_numpy({"v": snapshot})
    update()
    late = to_numpy({"v": snapshot})
    update()

    assert early["v"].tolist() == late["v"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        early["v"][:] = 7
    assert variable.numpy().tolist() == [3, 4]
