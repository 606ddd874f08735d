"""What a model computes in, and that what is said about it is computed in float32.

Variables, gradients, optimizers, statistics of batch normalisation, losses and metrics stay
float32. Scaling the loss for float16 is `pipefit.training.updating.loss_scaling`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import keras
import tensorflow as tf

#: Keras' policies by `train.precision`.
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
_HALF = (tf.float16, tf.bfloat16)


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Layers made inside compute in this precision unless they are given a dtype of their own.

    Args:
        name: as `train.precision`: "float32", "bfloat16" or "float16".
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[name])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def in_float32(outputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Outputs for losses, metrics and storing: those of half precision cast up."""
    return {k: tf.cast(v, tf.float32) if v.dtype in _HALF else v for k, v in outputs.items()}
