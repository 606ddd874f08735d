"""Lists of gradients: clipped, summed, averaged, checked."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import assert_close
from updates_helpers import Steps, gradients

from pipefit.training.updating.gradients import Clip, all_finite, averaged, distinct
from pipefit.training.updating.updates import Part


def norm(*values):
    return np.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in values))


def by_value(g):
    return {path: np.clip(v, -0.5, 0.5) for path, v in g.items()}


def by_norm(g):
    return {path: v * min(1.0, 2.5 / norm(v)) for path, v in g.items()}


def by_global_norm(g):
    return {path: v * min(1.0, 1.0 / norm(*g.values())) for path, v in g.items()}


CLIPS = {
    "value 0.5": (Clip(value=0.5), by_value),
    "norm 2.5": (Clip(norm=2.5), by_norm),
    "global norm 1": (Clip(global_norm=1.0), by_global_norm),
}


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_clipping_comes_after_the_sum_over_the_devices(name, devices):
    clip, by_hand = CLIPS[name]
    steps = Steps(lambda: [Part(keras.optimizers.SGD(1.0), clip=clip)], devices=devices)
    start, (given,) = steps.weights(), gradients(1)
    assert min(norm(g) for g in given.values()) < 2.5 < max(norm(g) for g in given.values())
    steps.run([given])
    expected = {path: start[path] - g for path, g in by_hand(given).items()}
    assert_close(steps.weights(), expected)


@pytest.mark.parametrize(
    "clip", [Clip(), Clip(value=9.0), Clip(norm=90.0), Clip(global_norm=90.0)], ids=str
)
def test_below_the_limit_nothing_is_clipped(clip):
    (given,) = gradients(1)
    clipped = clip([None, *map(tf.constant, given.values())])
    assert clipped[0] is None
    for got, expected in zip(clipped[1:], given.values(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_rows_that_a_sparse_gradient_names_twice_are_added_before_anything_else():
    twice = tf.IndexedSlices(tf.constant([[3.0], [3.0]]), tf.constant([1, 1]), tf.constant([2, 1]))
    dense = tf.constant([1.0])
    none, once, same = distinct([None, twice, dense])
    assert none is None
    assert same is dense
    assert (once.values.numpy().tolist(), once.indices.numpy().tolist()) == ([[6.0]], [1])
    for clip in (Clip(norm=2.0), Clip(global_norm=2.0), Clip(value=2.0)):
        (clipped,) = clip([once])
        np.testing.assert_allclose(tf.convert_to_tensor(clipped), [[0.0], [2.0]], rtol=1e-6)


def test_gradients_of_slices_add_up_also_where_some_have_none():
    sparse = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([1]), tf.constant([2, 1]))
    first = [tf.constant([1.0]), None, None, sparse]
    second = [tf.constant([2.0]), None, tf.constant([4.0]), sparse]
    added = averaged([first, second])
    assert added[1] is None
    assert [added[i].numpy().ravel().tolist() for i in (0, 2, 3)] == [[3], [4], [0, 6]]
    assert averaged([first]) is first


@pytest.mark.parametrize(("bad", "fine"), [(np.nan, False), (-np.inf, False), (1e38, True)])
def test_finite_are_all_or_not(bad, fine):
    assert bool(all_finite([tf.zeros([2]), None, tf.constant([1.0, bad])])) is fine
