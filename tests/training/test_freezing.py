"""What is frozen stays bit for bit, the rest trains as if it stood alone."""

import keras
import numpy as np
import pytest
from training_helpers import (
    assert_close,
    bare_loop,
    make_trainer,
    perceptron,
    sgd,
    weights,
    with_layers,
)

from pipefit.errors import SpecError
from pipefit.training.updating.freezing import freeze

DEVICES = pytest.mark.parametrize("devices", [1, 2])

# Of `with_norm`.
LAYERS = {"a/kernel", "a/bias", "b/kernel", "b/bias"}
SCALES = {"norm/gamma", "norm/beta"}
STATISTICS = {"norm/moving_mean", "norm/moving_variance"}


def with_norm(**options):
    return with_layers(
        lambda: keras.layers.BatchNormalization(name="norm", synchronized=True, **options)
    )


def moved(trainer, steps=4):
    """Paths of the variables that these steps changed."""
    before = weights(trainer)
    trainer.run(steps)
    return {path for path, w in weights(trainer).items() if w.tobytes() != before[path].tobytes()}


@DEVICES
@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("^b/", {"b/kernel", "b/bias"}),
        ("kernel$", {"a/kernel", "b/kernel"}),
        ("^a/bias|^b/kernel", {"a/bias", "b/kernel"}),
        ("", {"a/kernel", "a/bias", "b/kernel", "b/bias"}),
    ],
)
def test_only_what_matches_changes(trainable, expected, devices):
    trainer = make_trainer(
        optimizer=lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        trainable=trainable,
        devices=devices,
    )
    assert moved(trainer) == expected
    assert {v.path for v in trainer.updates.trainable} == expected


def test_the_rest_trains_by_the_same_gradients():
    trainer = make_trainer(trainable="bias")
    start = weights(trainer)
    trainer.run(5)
    rule = sgd(0.1)
    expected, _, _ = bare_loop(
        start, 5, lambda path, w, g, t: rule(path, w, g, t) if "bias" in path else w
    )
    assert_close(weights(trainer), expected)


@DEVICES
class TestBatchNormalisation:
    def test_keeps_its_statistics_if_nothing_of_it_matches(self, devices):
        assert moved(make_trainer(with_norm(), trainable="^b/", devices=devices)) == {
            "b/kernel",
            "b/bias",
        }

    def test_normalises_with_them_too(self, devices):
        def fixed():
            """The same model with what the frozen layer does written as a constant."""
            return with_layers(lambda: keras.layers.Rescaling(1 / np.sqrt(1 + 1e-3), name="norm"))()

        frozen = make_trainer(with_norm(epsilon=1e-3), trainable="^[ab]/", devices=devices)
        other = make_trainer(fixed)
        frozen.run(3)
        other.run(3)
        assert_close({p: weights(frozen)[p] for p in LAYERS}, weights(other))

    def test_without_scales_of_its_own_is_frozen_all_the_same(self, devices):
        model = with_norm(center=False, scale=False)
        assert moved(make_trainer(model, trainable="^[ab]/", devices=devices)) == LAYERS

    def test_trains_in_part(self, devices):
        trainer = make_trainer(with_norm(), trainable="gamma", devices=devices)
        assert moved(trainer) == {"norm/gamma"} | STATISTICS

    def test_not_frozen_moves(self, devices):
        trainer = make_trainer(with_norm(), trainable="", devices=devices)
        assert moved(trainer) == LAYERS | SCALES | STATISTICS


def nested():
    x = keras.Input((6,), name="x")
    inner = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, name="deep"),
            keras.layers.BatchNormalization(name="norm"),
        ],
        name="inner",
    )
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(inner(x))})


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [("^b/", {"b/kernel", "b/bias"}), ("deep/k", {"inner/deep/kernel"})],
)
def test_layers_within_layers(trainable, expected):
    assert moved(make_trainer(nested, trainable=trainable)) == expected


def test_what_is_frozen_already_stays_so():
    model = perceptron()
    model.get_layer("a").trainable = False
    freeze(model, "kernel")
    assert [v.path for v in model.trainable_variables] == ["b/kernel"]


def test_regularisers_of_frozen_variables_are_not_in_the_loss():
    l2 = {"kernel_regularizer": keras.regularizers.L2(0.5)}
    plain = make_trainer().run(1)["loss"][0]
    frozen = make_trainer(lambda: perceptron(**l2), trainable="^b/").run(1)["loss"][0]
    assert frozen == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("pattern", ["^c/", "moving", "A/"])
def test_a_regex_that_matches_nothing_that_could_be_trained_is_refused(pattern):
    model = with_norm()()
    with pytest.raises(SpecError) as refused:
        freeze(model, pattern)
    assert str(refused.value) == (
        f"model.trainable = {pattern!r}: matches no trainable variable; there are "
        f"a/kernel, a/bias, norm/gamma, norm/beta, b/kernel, b/bias"
    )
    assert len(model.trainable_variables) == 6
