"""Dynamic loss scaling: exact while gradients are finite, and a bad step changes nothing else."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import arrays, assert_equal, make_trainer, points, weights
from updates_helpers import Steps, gradients

from pipefit.errors import Diverged
from pipefit.training import Course, Loop, Schedule
from pipefit.training.updating.loss_scaling import GROWTH_STEPS, INITIAL, LossScale
from pipefit.training.updating.updates import Part

DEVICES = pytest.mark.parametrize("devices", [1, 2])


def parts():
    return [
        Part(keras.optimizers.SGD(0.1, momentum=0.9), "first", "^a/"),
        Part(keras.optimizers.Adam(0.01), "second", "^b/"),
    ]


def scaled(devices=1, **options):
    return Steps(parts, devices=devices, loss_scaling=True, average=0.9, **options)


def with_one(bad, path="b/kernel"):
    """A step's gradients, of which one element is not finite."""
    step = gradients(1, seed=9)[0]
    step[path][1, 1] = bad
    return step


def split(state):
    """The state of the scale by name, and all the rest."""
    scale = {k.removeprefix("loss_scale/"): v.item() for k, v in state.items() if "loss_" in k}
    return scale, {k: v for k, v in state.items() if "loss_" not in k}


@DEVICES
def test_finite_steps_are_those_without_it_bit_for_bit(devices):
    with_scale, without = scaled(devices), Steps(parts, devices=devices, average=0.9)
    given = gradients(5)
    with_scale.run(given)
    without.run(given)
    scale, rest = split(with_scale.arrays())
    assert scale == {"scale": 2.0**15, "good_steps": 5, "skipped_steps": 0}
    assert_equal(rest, without.arrays())


@DEVICES
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_that_is_not_finite_halves_the_scale_and_changes_nothing_else(devices, bad):
    steps = scaled(devices)
    steps.run(gradients(2))
    _, before = split(steps.arrays())
    steps.run([with_one(bad)])
    scale, after = split(steps.arrays())
    assert scale == {"scale": 2.0**14, "good_steps": 0, "skipped_steps": 1}
    assert_equal(after, before)
    assert {"optimizer/first/sgd/a_kernel_momentum", "average/a/kernel"} < set(after)
    assert steps.updates.done() == 3


@DEVICES
def test_training_goes_on_after_a_bad_step_as_if_it_had_not_been(devices):
    disturbed, calm = scaled(devices), scaled(devices)
    first, second = gradients(2)
    disturbed.run([first, with_one(np.nan, "a/kernel"), with_one(np.inf), second])
    calm.run([first, second])
    scale, rest = split(disturbed.arrays())
    assert scale == {"scale": 2.0**13, "good_steps": 1, "skipped_steps": 2}
    assert_equal(rest, split(calm.arrays())[1])


def test_the_scale_doubles_after_2000_good_steps_in_a_row():
    scale = LossScale()
    rescale = tf.function(scale.rescale, autograph=False)
    values = []
    for step in range(1, 2 * GROWTH_STEPS + 3):
        rescale(tf.constant(step != 1000))
        values.append(scale.variables["scale"].numpy())
    assert GROWTH_STEPS == 2000
    expected = [INITIAL] * 999 + [INITIAL / 2] * 2000 + [INITIAL] * 1003
    assert values == expected


@DEVICES
def test_its_state_continues_bit_for_bit(devices):
    whole, continued = scaled(devices), scaled(devices)
    whole.run([*gradients(2), with_one(np.nan), *gradients(1)])
    saved = whole.arrays()
    rest = [with_one(np.inf), *gradients(2, seed=4)]
    whole.run(rest)
    continued.state.restore(saved)
    assert continued.updates.done() == 4
    continued.run(rest)
    assert_equal(continued.arrays(), whole.arrays())


def test_gradients_that_are_never_finite_are_told():
    steps = scaled()
    steps.run([with_one(np.nan)] * 38)
    steps.updates.check()
    steps.run([with_one(np.nan)])
    assert steps.updates.done() == 39
    with pytest.raises(Diverged, match=r"not finite, at a loss scale of 5\.96046e-08 either"):
        steps.updates.check()
    assert split(steps.arrays())[0]["scale"] == 2.0**-24  # no further, or it would become 0


class Recorded:
    """Actions of a course of which only the end matters."""

    error = None

    def stop_requested(self):
        return None

    def failed(self, error):
        self.error = error

    def __getattr__(self, name):
        return lambda *values: None


def test_of_several_models_only_the_one_that_stands_still_fails():
    def steep(labels, logits):
        """Its value is finite, its gradient is not."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return losses + tf.sqrt(tf.reduce_sum(0 * logits, axis=1))

    updates = {"loss_scaling": True}
    trainers = [make_trainer(updates=updates, loss=loss) for loss in (steep, None)]
    actions = [Recorded(), Recorded()]
    courses = [
        Course(trainer=trainer, validators={}, schedule=Schedule(steps=60), actions=each)
        for trainer, each in zip(trainers, actions, strict=True)
    ]
    with pytest.raises(Diverged, match="the training stands still"):
        Loop(courses).run()
    assert isinstance(actions[0].error, Diverged)
    assert actions[1].error is None
    assert trainers[1].step == 60


class TestUnscaled:
    """Gradients of the loss itself."""

    def test_gradients_of_16_bits_are_divided_in_32(self):
        (gradient,) = LossScale().unscaled([tf.constant([2.0**-14, 3.0], tf.float16)])
        assert gradient.dtype == tf.float32
        assert gradient.numpy().tolist() == [2.0**-29, 3 * 2.0**-15]

    def test_none_stays_none_and_sparse_stays_sparse(self):
        sparse = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([1, 1]), [3, 1])
        none, divided = LossScale().unscaled([None, sparse])
        assert none is None
        assert isinstance(divided, tf.IndexedSlices)
        dense = tf.convert_to_tensor(divided).numpy().ravel()
        assert dense.tolist() == [0, 6 * 2.0**-15, 0]

    def test_a_sparse_gradient_may_be_the_bad_one(self):
        steps = scaled()
        sparse = tf.IndexedSlices(tf.constant([[np.nan]]), tf.constant([1]), [3, 1])
        assert not steps.updates.finite([tf.constant(1.0), None, sparse])
        assert steps.updates.finite([tf.constant(1.0), None])


class TestTraining:
    """A model that computes in float16."""

    @staticmethod
    def trainer(size=1.0, loss_scaling=True, **options):
        def model():
            x = keras.Input((6,), name="x")
            a = keras.layers.Dense(5, activation="relu", name="a", dtype="mixed_float16")(x)
            return keras.Model(x, {"logits": keras.layers.Dense(3, name="b", dtype="float32")(a)})

        def loss(labels, logits):
            return size * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

        return make_trainer(
            model,
            loss=loss,
            optimizer=lambda: keras.optimizers.SGD(0.1 / size),
            updates={"loss_scaling": loss_scaling},
            **options,
        )

    @DEVICES
    @pytest.mark.parametrize("loss_scaling", [True, False])
    def test_gradients_too_small_for_float16_are_kept(self, loss_scaling, devices):
        plain = make_trainer(optimizer=lambda: keras.optimizers.SGD(0.1))
        small = self.trainer(2.0**-24, loss_scaling, devices=devices)
        start = weights(plain)
        for trainer in (plain, small):
            trainer.run(3)
        change = weights(small)["a/kernel"] - start["a/kernel"]
        expected = weights(plain)["a/kernel"] - start["a/kernel"]
        wrong = np.linalg.norm(change - expected) / np.linalg.norm(expected)
        assert wrong < 0.01 if loss_scaling else wrong > 0.3

    @DEVICES
    def test_an_overflow_is_skipped_and_training_goes_on(self, devices):
        # Times 2^15 a loss of this size leaves the range of float16, times 2^10 it does not.
        trainer = self.trainer(256.0, devices=devices)
        before = weights(trainer)
        trainer.run(1)
        assert_equal(weights(trainer), before)
        trainer.run(11)
        assert trainer.step == 12
        state = arrays(trainer)
        skipped = int(state["loss_scale/skipped_steps"])
        assert 1 <= skipped < 12
        assert state["loss_scale/scale"] == 2.0 ** (15 - skipped)
        assert state["optimizer/sgd/iteration"] == 12 - skipped
        assert any((weights(trainer)[path] != before[path]).any() for path in before)

    def test_compiled_by_xla_too(self):
        plain, compiled = (self.trainer(source=points(), jit_compile=jit) for jit in (False, True))
        for trainer in (plain, compiled):
            trainer.run(4)
        for path, value in weights(plain).items():
            np.testing.assert_allclose(weights(compiled)[path], value, rtol=1e-2, atol=1e-3)
        assert arrays(compiled)["loss_scale/good_steps"] == 4
