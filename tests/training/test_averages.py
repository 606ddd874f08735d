"""Validation with averaged weights: its numbers are theirs, and training does not notice."""

import numpy as np
import pytest
from training_helpers import arrays, assert_equal, make_trainer, points

from pipefit.errors import SpecError
from pipefit.training import Objective, Validator, per_example
from pipefit.training.objective import accuracy, sparse_softmax_cross_entropy

DEVICES = pytest.mark.parametrize("devices", [1, 2])


def trained(devices):
    """Six steps, far enough for averages to differ from the weights."""
    trainer = make_trainer(devices=devices, updates={"average": 0.98})
    trainer.run(6)
    return trainer


def validator(trainer, averages):
    return Validator(
        objective=Objective(
            trainer.objective.model,
            per_example(sparse_softmax_cross_entropy(), "loss"),
            {"accuracy": per_example(accuracy(), "accuracy")},
        ),
        source=points(10, seed=1),
        replicas=trainer.replicas,
        batch_size=4,
        averages=averages,
    )


def by_hand(state, kind):
    """Loss and accuracy of a perceptron with the weights of this kind, "model" or "average"."""
    w = {name: state[f"{kind}/{name}"] for name in ("a/kernel", "a/bias", "b/kernel", "b/bias")}
    x, labels = points(10, seed=1).fields["x"], points(10, seed=1).fields["labels"]
    logits = np.maximum(x @ w["a/kernel"] + w["a/bias"], 0) @ w["b/kernel"] + w["b/bias"]
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = chances[np.arange(10), labels]
    return {
        "loss": -np.log(right).mean(),
        "accuracy": (logits.argmax(axis=1) == labels).mean(),
    }


@DEVICES
def test_the_numbers_are_those_of_the_averages(devices):
    trainer = trained(devices)
    state = arrays(trainer)
    averages = validator(trainer, trainer.updates.average_values()).run().metrics
    weights = validator(trainer, None).run().metrics
    assert averages == pytest.approx(by_hand(state, "average"), rel=1e-5)
    assert weights == pytest.approx(by_hand(state, "model"), rel=1e-5)
    assert abs(averages["loss"] - weights["loss"]) > 1e-3


@DEVICES
def test_training_goes_on_bit_for_bit_as_without_it(devices):
    validated, other = trained(devices), trained(devices)
    before = arrays(validated)
    validator(validated, validated.updates.average_values()).run()
    assert_equal(arrays(validated), before)
    validated.run(3)
    other.run(3)
    assert_equal(arrays(validated), arrays(other))


def test_the_weights_come_back_after_an_error():
    trainer = trained(1)
    before = arrays(trainer)
    broken = validator(trainer, trainer.updates.average_values())
    broken.outputs = ("nothing",)
    with pytest.raises(SpecError, match="the model has no such outputs"):
        broken.run()
    assert_equal(arrays(trainer), before)
