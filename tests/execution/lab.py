"""What experiments of the tests name: sources, models, losses and metrics, some of which misbehave.

The model "grow" has a weight whose value can be computed by hand: with SGD it grows by the learning
rate in every step, so it tells the step, and metrics and losses can depend on it.
"""

import os
import signal
import threading
import time

import numpy as np

from pipefit.data import Arrays

#: By the name of a source the indices of every `take`.
TAKEN: dict[str, list[list[int]]] = {}


def hang():
    """Never returns."""
    threading.Event().wait()


class Points(Arrays):
    """Counts what is read; hangs, or is slow, if the environment says so."""

    name = ""
    hang_after: int | None = None

    def take(self, indices):
        if len(indices) > 1:
            TAKEN.setdefault(self.name, []).append(indices.tolist())
            time.sleep(float(os.environ.get("LAB_SECONDS", "0")))
            if self.hang_after is not None and len(TAKEN[self.name]) > self.hang_after:
                hang()
        return super().take(indices)


def points(n=40, seed=0, name="", hang_after=None):
    """`n` points of 4 coordinates, by the sign of their sum in 2 classes, with their number."""
    x = np.random.default_rng(seed).normal(size=(n, 4)).astype("float32")
    labels = (x.sum(axis=1) > 0).astype("int64")
    source = Points(x=x, labels=labels, id=np.arange(n, dtype="float32"))
    source.name, source.hang_after = name, hang_after
    return source


def uneven():
    """Fields of different lengths."""
    return Arrays(x=np.zeros((8, 4), "float32"), labels=np.zeros(7, "int64"))


class Stream:
    """The same as `points`, to be read from the beginning only."""

    def __init__(self, n, hang_after, fail_after):
        self.n, self.hang_after, self.fail_after = n, hang_after, fail_after

    def __iter__(self):
        source = points(self.n)
        for i in range(self.n):
            if i == self.hang_after:
                hang()
            if i == self.fail_after:
                raise OSError(f"photo {i} cannot be read")
            yield {name: value[i] for name, value in source.fields.items()}


def stream(n=40, hang_after=None, fail_after=None):
    """A generator's examples."""
    return Stream(n, hang_after, fail_after)


def _keras():
    import keras

    return keras


def net(units=4, rate=0.3, norm=True):
    """Dense, batch normalisation, dropout, dense."""
    layers = _keras().layers
    x = _keras().Input((4,), name="x")
    y = layers.Dense(units, activation="relu", name="hidden")(x)
    if norm:
        y = layers.BatchNormalization(name="norm", momentum=0.7)(y)
    y = layers.Dropout(rate, name="dropout")(y)
    return _keras().Model(x, {"logits": layers.Dense(2, name="out")(y)})


def wide(units=6):
    """Another architecture: convolution over the coordinates."""
    layers = _keras().layers
    x = _keras().Input((4,), name="x")
    y = layers.Reshape((4, 1), name="line")(x)
    y = layers.Conv1D(units, 2, activation="relu", name="conv")(y)
    y = layers.BatchNormalization(name="norm", momentum=0.7)(y)
    y = layers.Dropout(0.2, name="dropout")(layers.Flatten(name="flat")(y))
    return _keras().Model(x, {"logits": layers.Dense(2, name="out")(y)})


def grow(units=3):
    """`net` with a further output "w": a weight, for every example."""
    keras = _keras()

    class Grown(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(name="w", initializer="zeros")

        def call(self, x):
            return keras.ops.zeros_like(x[:, 0]) + self.w

    inner = net(units)
    x = inner.input
    outputs = {"logits": inner(x)["logits"], "w": Grown(name="grown")(x)}
    return keras.Model(x, outputs)


def growing(limit=None, raise_at=None, hang_at=None):
    """A loss whose gradient lets w grow; NaN if w is above the limit; it may raise, or hang."""
    import tensorflow as tf

    def check(w):
        if raise_at is not None and w[0] >= raise_at:
            raise ValueError(f"the loss cannot bear w = {w[0]:g}")
        if hang_at is not None and w[0] >= hang_at:
            hang()
        return w

    def loss(labels, logits, w):
        if raise_at is not None or hang_at is not None:
            with tf.control_dependencies([tf.numpy_function(check, [w], tf.float32)]):
                w = tf.identity(w)
        cross = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        bad = w > (np.inf if limit is None else limit)
        return cross - w + tf.where(bad, np.nan, 0.0)

    return loss


def plain():
    """Another loss than the default one."""
    import tensorflow as tf

    def loss(labels, logits):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * 2.0

    return loss


def weight():
    """A metric: w."""
    return lambda w: w


def number():
    """A metric: the mean of the examples' numbers, which tells one batch from another."""
    return lambda id: id


def score(scores, raise_at=None):
    """A metric: `scores[w]`, a text is NaN. It kills the process if LAB_KILL is this w."""
    import tensorflow as tf

    values = np.array([float(value) for value in scores], "float32")
    kill_at = os.environ.get("LAB_KILL")

    def look(w):
        if kill_at is not None and w[0] == float(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        if raise_at is not None and w[0] >= raise_at:
            raise ValueError(f"there is no score for w = {w[0]:g}")
        return values[np.rint(w).astype(int)]

    return lambda w: tf.ensure_shape(tf.numpy_function(look, [w], tf.float32), w.shape)
