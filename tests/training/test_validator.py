"""Validation: weighted by examples, changes nothing, the same wherever and whenever it is done."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    arrays,
    assert_equal,
    make_trainer,
    pictures,
    points,
    small_convnet,
    with_layers,
)

from pipefit.errors import SpecError
from pipefit.training import Objective, Replicas, State, Validator, per_example
from pipefit.training.objective import accuracy, sparse_softmax_cross_entropy

METRICS = {"accuracy": accuracy()}


def make_validator(
    model, source, *, loss=None, batch=4, replicas=None, outputs=(), metrics=METRICS
):
    called = {name: per_example(metric, name) for name, metric in metrics.items()}
    loss = per_example(loss or sparse_softmax_cross_entropy(), "loss")
    return Validator(
        objective=Objective(model, loss, called),
        source=source,
        replicas=replicas or Replicas(),
        batch_size=batch,
        outputs=outputs,
    )


def dropout_and_norm():
    return with_layers(
        lambda: keras.layers.BatchNormalization(name="norm"),
        lambda: keras.layers.Dropout(0.5, name="drop"),
    )()


@pytest.fixture(scope="module")
def trainer():
    """In the middle of a training with dropout and batch normalisation."""
    trainer = make_trainer(dropout_and_norm, optimizer=lambda: keras.optimizers.Adam(0.01))
    trainer.run(5)
    return trainer


def test_a_small_last_batch_weighs_as_much_as_its_examples():
    """10 examples in batches of 4, 4 and 2: the mean is the sum divided by 10."""
    source = points(10)
    validator = make_validator(
        dropout_and_norm(), source, loss=lambda x: x[:, 0], metrics={"label": lambda labels: labels}
    )
    validated = validator.run()
    assert validated.examples == 10
    numbers = validated.metrics
    assert numbers["loss"] == pytest.approx(source.fields["x"][:, 0].sum() / 10, rel=1e-6)
    assert numbers["label"] == pytest.approx((0 + 1 + 2) * 3 / 10)


def test_sums_are_taken_in_float64():
    from pipefit.data import Arrays

    big = Arrays(v=np.r_[np.float32(2**25), np.ones(99, np.float32)])
    x = keras.Input((), name="v")
    validator = make_validator(keras.Model(x, x * 1), big, loss=lambda v: v, batch=1, metrics={})
    assert validator.run().metrics["loss"] == (2**25 + 99) / 100


def test_without_dropout_twice_the_same(trainer):
    validator = make_validator(trainer.objective.model, points(10, seed=1))
    first, second = validator.run().metrics, validator.run().metrics
    assert first == second
    assert list(first) == ["loss", "accuracy"]


def test_changes_no_variable(trainer):
    before = arrays(trainer)
    make_validator(trainer.objective.model, points(10, seed=1)).run()
    assert_equal(arrays(trainer), before)


def test_training_goes_on_as_if_there_had_been_none():
    one, two = (make_trainer(dropout_and_norm) for _ in range(2))
    rows = one.run(4)
    validator = make_validator(two.objective.model, points(10))
    parts = []
    for _ in range(4):
        parts.append(two.run(1))
        validator.run()
    assert_equal({k: np.concatenate([p[k] for p in parts]) for k in rows}, rows)
    assert_equal(arrays(two), arrays(one))


def test_is_bit_equal_on_a_restored_model(trainer):
    """Training and a later evaluation of its checkpoint, which makes no optimizer."""
    source = points(10, seed=1)
    got = {}
    in_training = make_validator(trainer.objective.model, source, outputs=("logits",))
    numbers = in_training.run(lambda outputs: got.setdefault("training", []).append(outputs))

    keras.utils.clear_session(free_memory=False)
    model = dropout_and_norm()
    saved = {k: v for k, v in arrays(trainer).items() if k.startswith(("model/", "generator/"))}
    State(model).restore(saved)
    later = make_validator(model, source, outputs=("logits",))
    assert later.run(lambda outputs: got.setdefault("later", []).append(outputs)) == numbers
    for one, other in zip(got["training"], got["later"], strict=True):
        assert_equal(one, other)


class TestOutputs:
    def test_come_in_order_with_what_was_asked_for(self, trainer):
        model, source, got = trainer.objective.model, points(10, seed=1), []
        make_validator(model, source, outputs=("logits",)).run(got.append)
        assert [list(batch) for batch in got] == [["logits"]] * 3
        assert [len(batch["logits"]) for batch in got] == [4, 4, 2]
        together = np.concatenate([batch["logits"] for batch in got])
        expected = model(source.fields["x"], training=False)["logits"]
        np.testing.assert_allclose(together, expected, rtol=1e-6, atol=1e-6)

    def test_without_wanted_outputs_the_sink_gets_nothing(self, trainer):
        make_validator(trainer.objective.model, points(3)).run(pytest.fail)

    def test_a_name_that_the_model_does_not_have(self, trainer):
        validator = make_validator(trainer.objective.model, points(3), outputs=("logit",))
        with pytest.raises(SpecError) as refused:
            validator.run()
        assert str(refused.value) == (
            "outputs = ['logit']: the model has no such outputs; it has logits"
        )


@pytest.mark.parametrize("devices", [2, 4])
def test_on_several_devices_the_same_numbers_and_outputs(devices):
    """Of the last batch, one example, most devices get none."""
    results = []
    for count in (1, devices):
        trainer = make_trainer(small_convnet, pictures(), devices=count)
        outputs = []
        validator = make_validator(
            trainer.objective.model,
            pictures(9, seed=1),
            replicas=trainer.replicas,
            outputs=("logits",),
        )
        results.append((validator.run(outputs.append).metrics, outputs))
    (one, one_outputs), (many, many_outputs) = results
    assert many == pytest.approx(one, rel=1e-6)
    assert [len(batch["logits"]) for batch in many_outputs] == [4, 4, 1]
    for got, expected in zip(many_outputs, one_outputs, strict=True):
        np.testing.assert_allclose(got["logits"], expected["logits"], rtol=1e-5, atol=1e-6)


def test_regularisers_are_not_part_of_the_validated_loss():
    x = keras.Input((6,), name="x")
    dense = keras.layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l2")
    model = keras.Model(x, {"logits": dense(x)})
    source = points(6)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
        source.fields["labels"], model(source.fields["x"])["logits"]
    )
    assert make_validator(model, source).run().metrics["loss"] == pytest.approx(
        float(tf.reduce_mean(loss)), rel=1e-6
    )
