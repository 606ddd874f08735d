"""The losses that a model adds to the one it is trained on: see `AddedLosses`."""

from __future__ import annotations

import threading

import keras
import tensorflow as tf


class AddedLosses:
    """Weight and activity regularisers, and what layers add by `add_loss`.

    Keras keeps what layers add in lists on the layers. On several devices the forward passes
    interleave (at every synchronised batch normalisation another device's thread goes on), and
    each pass empties the lists at its start: so there it is gathered here, by thread.

    Args:
        model: built.
        devices: on how many devices it is trained.
    """

    def __init__(self, model: keras.Model, devices: int):
        self._model = model
        self._thread = threading.local()
        if devices > 1:
            for layer in model._flatten_layers():
                layer.add_loss = self._add

    def begin(self) -> None:
        """Forget what was added before; call it before the forward pass."""
        self._thread.losses = []

    def losses(self) -> list[tf.Tensor]:
        """Scalars: what this thread's forward pass added, and the weight regularisers."""
        return [*self._thread.losses, *self._model.losses]

    def _add(self, loss: object) -> None:
        # Validation calls the same layers from threads that gather nothing.
        getattr(self._thread, "losses", []).extend(keras.tree.flatten(loss))
