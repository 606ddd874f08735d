"""What `prepare` refuses, and which group a variable falls into."""

import keras
import pytest
from training_helpers import perceptron

from pipefit.errors import SpecError
from pipefit.training import prepare

PATHS = "a/kernel, a/bias, b/kernel, b/bias"


def prepared(optimizer=None, groups=()):
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    return prepare(optimizer, perceptron().trainable_variables, groups)


def test_the_first_group_that_is_found_in_the_path_counts():
    groups = [("^a/k", 0.1), ("kernel", 0.2), ("a", 0.3)]
    assert prepared(groups=groups).pipefit_scales == [0.1, 0.3, 0.2, 0.3]


def test_without_groups_all_learn_alike():
    assert prepared().pipefit_scales == [1.0] * 4


def test_it_stays_an_optimizer_of_its_class_and_name():
    optimizer = prepared(keras.optimizers.Adam(0.1, name="mine"))
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert optimizer.built
    assert optimizer.iterations.path == "mine/iteration"


@pytest.mark.parametrize("pattern", ["^c/", "A/kernel"])
def test_a_group_that_matches_nothing_is_refused(pattern):
    with pytest.raises(SpecError) as refused:
        prepared(groups=[("kernel", 0.1), (pattern, 0.2)])
    assert str(refused.value) == (
        f"optimizer.groups: match = {pattern!r} matches no trainable variable; there are {PATHS}"
    )


def test_a_group_all_of_whose_variables_fall_into_earlier_ones_is_fine():
    assert prepared(groups=[("kernel", 0.1), ("b/kernel", 0.2)]).pipefit_scales == [0.1, 1, 0.1, 1]


@pytest.mark.parametrize("thing", ["sgd", keras.optimizers.SGD, None])
def test_something_else_is_no_optimizer(thing):
    with pytest.raises(SpecError, match=r"must return a keras\.optimizers\.Optimizer, not"):
        prepare(thing, perceptron().trainable_variables)


def test_keras_own_accumulation_is_refused():
    with pytest.raises(SpecError, match=r"set train\.accumulate instead"):
        prepared(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


def test_an_optimizer_for_scaled_losses_is_refused():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(SpecError, match="use its inner optimizer"):
        prepared(scaled)
