"""Builders of random changes to the examples of a batch, for `[data.NAME] augment`.

    augment = [
        { builder = "pipefit.training.augment:random_flip", field = "images" },
        { builder = "pipefit.training.augment:random_crop", field = "images", padding = 2 },
    ]

Each returns a function f(fields, seeds) -> fields. What an example becomes depends on its seeds
alone, not on its neighbours in the batch. `uniform` draws for functions of your own.

    >>> uniform(tf.constant([[1, 2], [3, 4]], tf.int64), 3).shape
    TensorShape([2, 3])
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from pipefit.errors import SpecError
from pipefit.training.feeding.augmenting import Batch, Change

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def uniform(seeds: tf.Tensor, count: int) -> tf.Tensor:
    """Random numbers of every example: pure functions of its seeds.

    SplitMix64 in counter mode, for a whole batch at once: `tf.random.stateless_uniform` takes one
    seed per call.

    Args:
        seeds: int64 tensor [batch, 2].
        count: numbers per example, at least 1.

    Returns:
        float32 tensor [batch, count], in [0, 1), in steps of 2**-24.
    """
    words = tf.bitcast(seeds, tf.uint64)
    counters = tf.constant(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    mixed = _mix(_mix(words[:, :1] + counters) ^ words[:, 1:])
    top = tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64))
    return tf.cast(tf.cast(top, tf.int64), tf.float32) * 2.0**-24


def normal(seeds: tf.Tensor, count: int) -> tf.Tensor:
    """As `uniform`, normally distributed with mean 0 and variance 1 (Box and Muller, 1958)."""
    pairs = math.ceil(count / 2)
    draws = uniform(seeds, 2 * pairs)
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - draws[:, :pairs]))
    angle = 2.0 * math.pi * draws[:, pairs:]
    both = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)
    return both[:, :count]


def random_flip(field: str, vertical: bool = False) -> Change:
    """Mirrors half of the images, left for right.

    Args:
        field: of images [batch, height, width, ...].
        vertical: upside down instead.
    """
    axis = 1 if vertical else 2

    def change(fields: Batch, seeds: tf.Tensor) -> Batch:
        images = _field(fields, field, "random_flip", 3)
        mirrored = _per_example(uniform(seeds, 1)[:, 0] < 0.5, images)
        return {**fields, field: tf.where(mirrored, tf.reverse(images, [axis]), images)}

    return change


def random_crop(field: str, padding: int = 0, size: tuple[int, int] | None = None) -> Change:
    """Cuts a piece out of every image, at a random place.

    Args:
        field: of images [batch, height, width, ...].
        padding: zeros added on every side first.
        size: height and width of the piece; None: those of the image.
    """

    def change(fields: Batch, seeds: tf.Tensor) -> Batch:
        images = _field(fields, field, "random_crop", 3)
        sides = [[0, 0], [padding, padding], [padding, padding]]
        padded = tf.pad(images, sides + [[0, 0]] * (images.shape.rank - 3))
        wanted = size or (images.shape[1], images.shape[2])
        draws = uniform(seeds, 2)
        for axis, length in enumerate(wanted):
            padded = _cut(padded, axis + 1, length, draws[:, axis], field)
        return {**fields, field: padded}

    return change


def random_noise(field: str, stddev: float) -> Change:
    """Adds normally distributed noise to every number.

    Args:
        field: of floating-point numbers [batch, ...].
        stddev: standard deviation of the noise.
    """

    def change(fields: Batch, seeds: tf.Tensor) -> Batch:
        values = _floats(fields, field, "random_noise")
        noise = normal(seeds, math.prod(values.shape[1:]))
        noise = stddev * tf.reshape(noise, tf.shape(values))
        return {**fields, field: values + tf.cast(noise, values.dtype)}

    return change


def random_brightness(field: str, delta: float) -> Change:
    """Adds one number to all of an example, drawn from -delta to delta.

    Args:
        field: of floating-point numbers [batch, ...].
        delta: at most so much.
    """

    def change(fields: Batch, seeds: tf.Tensor) -> Batch:
        values = _floats(fields, field, "random_brightness")
        added = (2.0 * uniform(seeds, 1)[:, 0] - 1.0) * delta
        return {**fields, field: values + _per_example(tf.cast(added, values.dtype), values)}

    return change


def _mix(x: tf.Tensor) -> tf.Tensor:
    """The finaliser of SplitMix64 (see `pipefit.data.order`)."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        x = (x ^ _right(x, shift)) * tf.constant(factor, tf.uint64)
    return x ^ _right(x, 31)


def _right(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, tf.constant(bits, tf.uint64))


def _per_example(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """[batch] as [batch, 1, ..., 1], to go with a tensor."""
    return tf.reshape(values, [-1] + [1] * (like.shape.rank - 1))


def _cut(images: tf.Tensor, axis: int, length: int, draws: tf.Tensor, field: str) -> tf.Tensor:
    """Of every example `length` consecutive rows (axis 1) or columns (axis 2)."""
    spare = images.shape[axis] - length
    if spare < 0:
        raise SpecError(
            f"augment: random_crop of field {field!r}: pieces of {length} do not fit into the "
            f"{images.shape[axis]} that axis {axis} has; choose a smaller size or more padding"
        )
    first = tf.minimum(tf.cast(draws * (spare + 1), tf.int32), spare)  # the product may be rounded
    kept = first[:, None] + tf.range(length)
    return tf.gather(images, kept, axis=axis, batch_dims=1)


def _field(fields: Batch, name: str, where: str, rank: int) -> tf.Tensor:
    if name not in fields:
        raise SpecError(
            f"augment: {where}: field = {name!r} is no field of the data; fields are "
            f"{', '.join(fields)}"
        )
    if fields[name].shape.rank < rank:
        raise SpecError(
            f"augment: {where}: field {name!r} has the shape {fields[name].shape[1:]}; images of "
            f"[height, width, ...] are needed"
        )
    return fields[name]


def _floats(fields: Batch, name: str, where: str) -> tf.Tensor:
    values = _field(fields, name, where, 1)
    if not values.dtype.is_floating:
        raise SpecError(
            f"augment: {where}: field {name!r} is {values.dtype.name}; floating-point numbers are "
            f"needed"
        )
    return values
