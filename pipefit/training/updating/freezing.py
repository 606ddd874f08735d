"""Training only some of a model's variables. See `freeze`."""

from __future__ import annotations

import re

import keras

from pipefit.errors import SpecError


def freeze(model: keras.Model, trainable: str) -> None:
    """Leave only those variables trainable whose path matches.

    A layer of which no variable matches is frozen as a whole: a batch normalisation then also
    keeps its moving statistics and normalises with them. In other layers single variables are
    frozen. Nothing that is frozen already becomes trainable. Call it before the first step.

    Args:
        model: built.
        trainable: regex, looked for in each variable's path.

    Raises:
        SpecError: if no trainable variable matches.
    """
    paths = [v.path for v in model.trainable_variables]
    if not any(re.search(trainable, path) for path in paths):
        raise SpecError(
            f"model.trainable = {trainable!r}: matches no trainable variable; "
            f"there are {', '.join(paths) or 'none'}"
        )
    for layer in model._flatten_layers():
        if not any(re.search(trainable, v.path) for v in layer.variables):
            layer.trainable = False
    for variable in model.trainable_variables:
        if not re.search(trainable, variable.path):
            variable.trainable = False
