"""What is recorded of every step besides the loss: norms and learning rates, by hand or a tape."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    SEED,
    make_trainer,
    perceptron,
    points,
    weights,
)

from pipefit.data import Arrays, examples
from pipefit.training import Clip, Group, Part

BOTH = frozenset({"gradient_norms", "update_norms"})


def tape_norms(model, source, step, batch=8):
    """By a tape of our own, on the whole batch of a step, the norm of every gradient."""
    order = examples(seed=SEED, start=(step - 1) * batch, count=batch, n=len(source))
    fields = source.take(order)
    with tf.GradientTape() as tape:
        logits = model(fields[model.inputs[0].name], training=True)["logits"]
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(fields["labels"], logits)
        ) + sum(model.losses)
    trained = model.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in trained])
    found = {}
    for variable, gradient in zip(trained, gradients, strict=True):
        value = 0.0 if gradient is None else tf.convert_to_tensor(gradient).numpy()
        found[variable.path] = float(np.sqrt(np.sum(np.square(value, dtype=np.float64))))
    return found


def regularised():
    return perceptron(kernel_regularizer=keras.regularizers.L2(0.03))


def with_embedding():
    """Sparse gradients, and rows that a batch names several times."""
    words = keras.Input((4,), name="words", dtype="int64")
    y = keras.layers.Flatten(name="flat")(keras.layers.Embedding(3, 2, name="e")(words))
    return keras.Model(words, {"logits": keras.layers.Dense(3, name="b")(y)})


def with_one_that_does_not_count():
    x = keras.Input((6,), name="x")
    unused = keras.layers.Dense(2, name="unused")(x)
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(x), "unused": unused})


WORDS = Arrays(
    words=np.random.default_rng(0).integers(0, 3, (20, 4)), labels=np.arange(20, dtype=np.int64) % 3
)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (1, {}),
        (2, {}),
        (3, {"accumulate": 2}),
        (1, {"jit_compile": True}),
        (1, {"updates": {"loss_scaling": True}}),
        (2, {"clip": Clip(global_norm=0.1)}),
    ],
)
@pytest.mark.parametrize(("model", "source"), [(regularised, points()), (with_embedding, WORDS)])
def test_norms_are_those_of_a_tape_and_of_the_changes(devices, options, model, source):
    trainer = make_trainer(
        model,
        source,
        optimizer=lambda: keras.optimizers.Adam(0.02),
        devices=devices,
        record=BOTH,
        **options,
    )
    reference = model()
    for step in (1, 2, 3):
        before = weights(trainer)
        for variable in reference.variables:
            variable.assign(before[variable.path])
        rows, after = trainer.run(1), weights(trainer)
        expected = tape_norms(reference, source, step)
        assert len(expected) == len(before)
        for path, norm in expected.items():
            assert rows[f"gradient_norm/{path}"] == pytest.approx([norm], rel=1e-4, abs=1e-6)
            change = np.linalg.norm(after[path].astype(np.float64) - before[path])
            assert rows[f"update_norm/{path}"] == pytest.approx([change], rel=1e-4, abs=1e-7)


def test_norms_of_what_the_loss_does_not_depend_on_are_zero():
    trainer = make_trainer(
        with_one_that_does_not_count, record=BOTH, loss=lambda logits, labels: logits[:, 0]
    )
    rows = trainer.run(2)
    assert rows["gradient_norm/unused/kernel"].tolist() == [0, 0]
    assert rows["update_norm/unused/kernel"].tolist() == [0, 0]
    assert min(rows["gradient_norm/b/kernel"]) > 0


@pytest.mark.parametrize("record", [frozenset(), *({name} for name in BOTH)])
def test_only_what_was_asked_for_is_recorded(record):
    rows = make_trainer(record=frozenset(record)).run(1)
    kinds = {name.partition("/")[0] + "s" for name in rows if "norm" in name}
    assert kinds == set(record)


def test_of_several_steps_at_once():
    one, many = make_trainer(record=BOTH), make_trainer(record=BOTH)
    rows, parts = many.run(4), [one.run(1) for _ in range(4)]
    for name in rows:
        if "norm" in name:
            assert rows[name].tobytes() == np.concatenate([p[name] for p in parts]).tobytes()


def halving(rate, every):
    return keras.optimizers.schedules.ExponentialDecay(rate, every, 0.5, staircase=True)


def cosine(rate, steps):
    return keras.optimizers.schedules.CosineDecay(rate, steps)


def two_optimizers():
    return [
        Part(
            keras.optimizers.SGD(halving(0.2, 2)),
            name="body",
            match="^a/",
            groups=(Group("bias$", 0.1),),
        ),
        Part(
            keras.optimizers.Adam(0.01),
            name="head",
            match="^b/",
            groups=(Group("kernel$", learning_rate=cosine(0.05, 10)), Group("b", 0.0)),
        ),
    ]


class TestLearningRates:
    """The columns are what the steps used: equal to the formulas, and to how far SGD went."""

    @pytest.mark.parametrize("devices", [1, 2])
    def test_of_two_optimizers_and_their_groups(self, devices):
        rows = make_trainer(parts=two_optimizers, devices=devices).run(6)
        body = [0.2 * 0.5 ** (step // 2) for step in range(6)]
        kernel = [0.05 * 0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(6)]
        expected = {
            "learning_rate/body": body,
            "learning_rate/body/bias$": [0.1 * rate for rate in body],
            "learning_rate/head": [0.01] * 6,
            "learning_rate/head/kernel$": kernel,
            "learning_rate/head/b": [0.0] * 6,
        }
        assert {name for name in rows if "rate" in name} == set(expected)
        for name, rates in expected.items():
            np.testing.assert_allclose(rows[name], rates, rtol=1e-6, err_msg=name)

    @pytest.mark.parametrize("devices", [1, 2])
    def test_are_the_quotients_of_update_and_gradient(self, devices):
        trainer = make_trainer(
            parts=lambda: [
                Part(
                    keras.optimizers.SGD(halving(0.2, 2)),
                    groups=(Group("^a/bias", 0.1), Group("^b/", learning_rate=halving(0.4, 1))),
                )
            ],
            devices=devices,
            record=BOTH,
        )
        rows = trainer.run(6)
        for path, column in {
            "a/kernel": "learning_rate",
            "a/bias": "learning_rate/^a/bias",
            "b/kernel": "learning_rate/^b/",
            "b/bias": "learning_rate/^b/",
        }.items():
            quotients = rows[f"update_norm/{path}"] / rows[f"gradient_norm/{path}"]
            np.testing.assert_allclose(rows[column], quotients, rtol=1e-4, err_msg=path)
        assert rows["learning_rate"].tolist() == [
            np.float32(0.2 * 0.5 ** (i // 2)) for i in range(6)
        ]

    def test_go_on_where_they_were(self):
        one, other = make_trainer(parts=two_optimizers), make_trainer(parts=two_optimizers)
        rows = one.run(6)
        first = make_trainer(parts=two_optimizers)
        first.run(3)
        other.restore({k: v.numpy() for k, v in first.snapshot().items()})
        rest = other.run(3)
        for name in rows:
            if "rate" in name:
                assert rest[name].tobytes() == rows[name][3:].tobytes(), name
