"""Different random numbers on every device of a model: see `spread` and `settle`.

Keras' random layers (dropout, RandomFlip, ...) and users' own draw from a
keras.random.SeedGenerator, whose state is one (seed, counter). On several devices every device has
a copy of it and all copies move alike, so that all devices would draw the same numbers. A
tf.random.Generator draws other numbers on each device by itself, but moves on by as many as it
gave, so that the copies drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

#: Added to the seed and the counter, times the number of the device. Keras takes both modulo
#: 2**31 - 2: the seed's are then all different, so no two devices ever draw from one pair.
_STRIDES = (1_640_531_527, 1_327_217_885)


def spread(model: keras.Model) -> None:
    """Let every device draw different numbers from the seed generators that the layers hold.

    What is drawn is a function of (seed, counter, number of the device). The stored state stays
    one (seed, counter) for all devices, and the first device draws what one device alone would.

    Args:
        model: built.
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            if "next" not in vars(generator):  # a generator may be shared by layers
                generator.next = _by_device(generator.next)


def settle(model: keras.Model) -> None:
    """Let every tf.random.Generator of the layers go on from where it is on the first device.

    Call it after every step, outside of the devices. The first device has the largest slice, so
    none goes back; each has a key of its own. The state is then one for any number of devices.

    Args:
        model: made in the scope of its devices.
    """
    for generator in _generators(model):
        copies: list[Any] = list(getattr(generator.state, "values", []))
        for copy in copies[1:]:
            copy.assign(copies[0])


def _by_device(draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    def draw_on_device(ordered: bool = True) -> tf.Tensor:
        seed = draw(ordered)
        context = tf.distribute.get_replica_context()
        if context is None:
            return seed
        device = tf.cast(context.replica_id_in_sync_group, seed.dtype)
        return seed + device * tf.constant(_STRIDES, seed.dtype)

    return draw_on_device


def _generators(model: keras.Model) -> Iterator[Any]:
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            if isinstance(value, tf.random.Generator):
                yield value
