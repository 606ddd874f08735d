"""A training that is continued from a snapshot ends bit for bit where it would have ended."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    arrays,
    assert_close,
    assert_equal,
    make_trainer,
    pictures,
    small_convnet,
    with_layers,
)

from pipefit.errors import StateMismatch, TrainingError

DEVICES = pytest.mark.parametrize("devices", [1, 2])


def dropout_and_norm():
    return with_layers(
        lambda: keras.layers.BatchNormalization(synchronized=True, name="norm"),
        lambda: keras.layers.Dropout(0.5, name="drop"),
    )()


def adam():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.02, 10)
    return keras.optimizers.Adam(schedule)


@DEVICES
def test_dropout_batch_normalisation_and_adam(devices):
    options = {"optimizer": adam, "devices": devices, "batch": 7}
    whole = make_trainer(dropout_and_norm, **options)
    whole.run(3)
    saved = arrays(whole)
    rows = whole.run(5)

    continued = make_trainer(dropout_and_norm, initial=99, **options)
    assert saved["model/a/kernel"].tobytes() != arrays(continued)["model/a/kernel"].tobytes()
    continued.restore(saved)
    assert (continued.step, continued.position) == (3, 21)
    assert_equal(arrays(continued), saved)
    assert_equal(continued.run(5), rows)
    assert_equal(arrays(continued), arrays(whole))


@DEVICES
def test_a_random_generator_held_by_a_layer(devices):
    class Noise(keras.layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.generator = tf.random.Generator.from_seed(3)

        def call(self, x):
            return x + self.generator.normal(tf.shape(x))

    whole, continued = (
        make_trainer(with_layers(lambda: Noise(name="noise")), devices=devices) for _ in range(2)
    )
    whole.run(2)
    saved = arrays(whole)
    assert "generator/noise/generator" in saved
    rows = whole.run(3)
    continued.restore(saved)
    assert_equal(continued.run(3), rows)


def test_going_back_within_one_trainer():
    trainer = make_trainer(dropout_and_norm, optimizer=adam)
    trainer.run(2)
    saved = arrays(trainer)
    copies = {name: value.copy() for name, value in saved.items()}
    rows = trainer.run(4)
    trainer.restore(saved)
    assert_equal(trainer.run(4), rows)
    assert_equal(saved, copies)  # training does not write into what it was restored from


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_on_another_number_of_devices(before, after):
    def trainer(devices):
        return make_trainer(
            small_convnet,
            pictures(),
            optimizer=lambda: keras.optimizers.Adam(0.01),
            devices=devices,
            batch=10,
        )

    first, second = trainer(before), trainer(after)
    first.run(3)
    saved = arrays(first)
    second.restore(saved)
    assert_equal(arrays(second), saved)
    assert_close(second.run(3), first.run(3), tolerance=1e-5)


def test_a_snapshot_is_not_changed_by_later_steps():
    trainer = make_trainer(dropout_and_norm, optimizer=adam, devices=2)
    trainer.run(1)
    snapshot = trainer.snapshot()
    then = {name: value.numpy() for name, value in snapshot.items()}
    trainer.run(3)
    assert_equal({name: value.numpy() for name, value in snapshot.items()}, then)
    changed = [name for name, value in arrays(trainer).items() if (value != then[name]).any()]
    assert {"model/a/kernel", "model/norm/moving_mean", "run/step", "run/position"} <= set(changed)


class TestWhatIsState:
    def test_all_names(self):
        state = arrays(make_trainer(dropout_and_norm, optimizer=adam))
        layers = {
            "a": ["kernel", "bias"],
            "norm": ["gamma", "beta", "moving_mean", "moving_variance"],
            "b": ["kernel", "bias"],
        }
        model = [f"model/{layer}/{name}" for layer, names in layers.items() for name in names]
        slots = [
            f"optimizer/adam/{layer}_{name}_{slot}"
            for layer, names in layers.items()
            for name in names
            if "moving" not in name
            for slot in ("momentum", "velocity")
        ]
        seeds = [name for name in state if "seed" in name]
        assert len(seeds) == 1
        rest = ["optimizer/adam/iteration", "run/step", "run/position"]
        assert sorted(state) == sorted(model + slots + seeds + rest)

    def test_a_constant_learning_rate_is_not_part_of_it(self):
        """So that an experiment file with another one continues with that."""
        first, second = (
            make_trainer(optimizer=lambda rate=rate: keras.optimizers.Adam(rate))
            for rate in (0.1, 0.03)
        )
        first.run(2)
        saved = arrays(first)
        assert not any("learning_rate" in name for name in saved)
        second.restore(saved)
        assert second.run(1)["learning_rate"].tolist() == [np.float32(0.03)]

    def test_a_schedule_goes_on_at_its_step(self):
        first, second = (make_trainer(optimizer=adam) for _ in range(2))
        first.run(4)
        second.restore(arrays(first))
        np.testing.assert_allclose(
            second.run(2)["learning_rate"], [0.0001 + 0.0199 * x for x in (0.6, 0.5)], rtol=1e-5
        )


class TestUnsavedStateIsRefused:
    @pytest.mark.parametrize(
        "draw",
        [
            lambda x: x + tf.random.normal(tf.shape(x)),
            lambda x: x * tf.random.uniform([], 0, 2),
        ],
        ids=["normal", "uniform"],
    )
    def test_ops_that_keep_their_own_random_state(self, draw):
        trainer = make_trainer(with_layers(lambda: keras.layers.Lambda(draw, name="draw")))
        with pytest.raises(TrainingError, match="whose state cannot be saved") as refused:
            trainer.run(1)
        assert "Random" in str(refused.value)
        assert "keras.random with a keras.random.SeedGenerator" in str(refused.value)
        assert (trainer.step, trainer.position) == (0, 0)

    @DEVICES
    def test_a_variable_that_keras_does_not_know(self, devices):
        class Counts(keras.layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.calls = tf.Variable(0.0, trainable=False, name="calls")

            def call(self, x):
                self.calls.assign_add(1.0, read_value=False)
                return x * self.calls

        def model():
            return with_layers(lambda: Counts(name="counts"))()

        with pytest.raises(TrainingError, match="the variable 'calls:0' changes in training"):
            make_trainer(model, devices=devices).run(1)

    def test_a_constant_in_a_variable_is_fine(self):
        class Scales(keras.layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.factor = tf.Variable(2.0, trainable=False)

            def call(self, x):
                return x * self.factor

        make_trainer(with_layers(lambda: Scales(name="scales"))).run(2)

    def test_seeded_keras_random_numbers_are_fine_and_saved(self):
        class Noise(keras.layers.Layer):
            def __init__(self, **options):
                super().__init__(**options)
                self.seed = keras.random.SeedGenerator(1)

            def call(self, x):
                return x + keras.random.normal(keras.ops.shape(x), seed=self.seed)

        whole, continued = (
            make_trainer(with_layers(lambda: Noise(name="noise"))) for _ in range(2)
        )
        whole.run(2)
        saved = arrays(whole)
        continued.restore(saved)
        assert_equal(continued.run(2), whole.run(2))


class TestMismatch:
    def test_says_what_is_missing_unexpected_and_different_and_changes_nothing(self):
        trainer = make_trainer()
        trainer.run(1)
        before = arrays(trainer)
        wrong = {name: value + 1 for name, value in before.items()}
        del wrong["model/a/kernel"]
        wrong["model/c/kernel"] = np.zeros(3)
        wrong["model/b/kernel"] = np.zeros((5, 4), np.float32)
        wrong["model/b/bias"] = np.zeros(3, np.float64)
        with pytest.raises(StateMismatch) as refused:
            trainer.restore(wrong)
        first, *details = str(refused.value).splitlines()
        assert first.startswith("checkpoint: 4 of 5 variables do not fit the model")
        assert details == [
            "  missing: model/a/kernel",
            "  unexpected: model/c/kernel",
            "  different: model/b/kernel is float32[5, 4] in the checkpoint, "
            "float32[5, 3] in the model",
            "  different: model/b/bias is float64[3] in the checkpoint, float32[3] in the model",
        ]
        assert_equal(arrays(trainer), before)
        assert (trainer.step, trainer.position) == (1, 8)

    @pytest.mark.parametrize("name", ["run/step", "run/position"])
    def test_a_checkpoint_that_does_not_say_where_it_was(self, name):
        trainer = make_trainer()
        before = arrays(trainer)
        wrong = {key: value + 1 for key, value in before.items() if key != name}
        with pytest.raises(StateMismatch, match=f"{name} missing"):
            trainer.restore(wrong)
        assert_equal(arrays(trainer), before)
