"""Batch normalisation over the whole batch on any number of devices: see `synchronise`.

Keras' own synchronised layers come near to this, but not to the numbers of one device: they take
the variance as E(x**2) - E(x)**2, which loses the digits that mean and deviation do not share, and
under a mask (after Masking or Embedding(mask_zero=True)) every device takes its own statistics.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from pipefit.training.replicas.meeting import sum_over_devices


def synchronise(model: keras.Model) -> None:
    """Let every layer of batch normalisation take its statistics over all devices together.

    Moving statistics are then the same on all devices, too. One device alone computes what it
    would without `synchronized`.

    Args:
        model: built.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            if type(layer)._moments is keras.layers.BatchNormalization._moments:
                layer._moments = functools.partial(_moments, layer)
            else:  # a user's own statistics
                layer.synchronized = True


def training_statistics(model: keras.Model) -> list[str]:
    """Paths of the layers that take statistics over the batch in training."""
    return [
        layer.path
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


def _moments(
    layer: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of each channel over the batch; in two passes, as on one device."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        if mask is None:
            mean, variance = keras.ops.moments(inputs, axes=layer._reduction_axes)
            return mean, variance
        mean, variance = type(layer)._moments(layer, inputs, mask)
        return mean, variance
    channels = inputs.shape[layer.axis]
    if mask is None:
        each = tf.cast(tf.size(inputs) // channels, inputs.dtype)
        count = tf.fill([channels], each)
    else:
        mask = tf.broadcast_to(tf.expand_dims(tf.cast(mask, tf.bool), -1), tf.shape(inputs))
        count = _sum(layer, tf.cast(mask, inputs.dtype))
    sums = sum_over_devices(tf.stack([_sum(layer, _only(mask, inputs)), count]))
    # Keras adds this under a mask; it keeps a batch without anything from 0 / 0.
    count = sums[1] if mask is None else sums[1] + keras.config.epsilon()
    mean = sums[0] / count
    shape = [1] * inputs.shape.rank
    shape[layer.axis] = channels
    # Of the mean's gradient through the variance nothing is left: deviations add up to zero.
    squares = tf.square(inputs - tf.reshape(tf.stop_gradient(mean), shape))
    return mean, sum_over_devices(_sum(layer, _only(mask, squares))) / count


def _only(mask: Any, values: tf.Tensor) -> tf.Tensor:
    return values if mask is None else tf.where(mask, values, 0)


def _sum(layer: keras.layers.BatchNormalization, values: tf.Tensor) -> tf.Tensor:
    """Over all dimensions but the channels."""
    return tf.reduce_sum(values, axis=layer._reduction_axes)
