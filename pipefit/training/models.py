"""Small models that are shipped as examples: `mlp` and `convnet`.

A model is what a builder returns: a keras.Model whose inputs are named like the fields of the data
and whose outputs are a dict of named tensors (a single unnamed tensor is called "output").
"""

from __future__ import annotations

from collections.abc import Sequence

import keras


def mlp(
    units: Sequence[int],
    outputs: int,
    input_shape: Sequence[int] = (8, 8, 1),
    dropout: float = 0.0,
) -> keras.Model:
    """A multilayer perceptron on the flattened field "images".

    Args:
        units: sizes of the hidden layers (ReLU).
        outputs: number of classes.
        input_shape: shape of one example of "images".
        dropout: rate after every hidden layer, in [0, 1).

    Returns:
        Model giving {"logits": float32 [batch, outputs]}.
    """
    images = keras.Input(tuple(input_shape), name="images")
    x = keras.layers.Flatten()(images)
    for i, size in enumerate(units, 1):
        x = keras.layers.Dense(size, activation="relu", name=f"hidden{i}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout{i}")(x)
    logits = keras.layers.Dense(outputs, name="logits")(x)
    return keras.Model(images, {"logits": logits}, name="mlp")


def convnet(
    filters: Sequence[int],
    outputs: int,
    input_shape: Sequence[int] = (8, 8, 1),
    units: int = 64,
    dropout: float = 0.5,
) -> keras.Model:
    """A small convolutional net with batch normalisation and dropout on the field "images".

    Args:
        filters: channels of the 3x3 convolutions; each is followed by batch normalisation over
            the whole batch (all devices), ReLU and, except the last, 2x2 max pooling.
        outputs: number of classes.
        input_shape: shape of one example of "images".
        units: size of the dense layer before the logits.
        dropout: rate before the logits, in [0, 1).

    Returns:
        Model giving {"logits": float32 [batch, outputs]}.
    """
    images = keras.Input(tuple(input_shape), name="images")
    x = images
    for i, channels in enumerate(filters, 1):
        x = keras.layers.Conv2D(channels, 3, padding="same", use_bias=False, name=f"conv{i}")(x)
        x = keras.layers.BatchNormalization(name=f"norm{i}")(x)
        x = keras.layers.ReLU(name=f"relu{i}")(x)
        if i < len(filters):
            x = keras.layers.MaxPooling2D(name=f"pool{i}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(units, activation="relu", name="dense")(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout")(x)
    logits = keras.layers.Dense(outputs, name="logits")(x)
    return keras.Model(images, {"logits": logits}, name="convnet")
