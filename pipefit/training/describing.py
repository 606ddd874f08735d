"""What a model is, for people and for rebuilding it: see `description`."""

from __future__ import annotations

import io
import json
from typing import Any

import keras
import numpy as np

from pipefit.training.updates import Updates


def description(model: keras.Model, updates: Updates) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A few numbers of a model, and texts.

    Args:
        model: built.
        updates: what is trained of it, and how.

    Returns:
        Plain values: its name, parameters, trainable_parameters, layers (type and parameters by
        name), optimizers. Texts by name: "model.txt", a table of layers, shapes and parameters;
        "model.json", from which `keras.models.model_from_json` rebuilds it, unless it has layers
        that cannot say how they are made.
    """
    summary = io.StringIO()
    # No wider: where there is no terminal, Keras cuts off what is beyond 80 columns.
    model.summary(line_length=80, print_fn=lambda line, **_: summary.write(f"{line}\n"))
    facts: dict[str, Any] = {
        "name": model.name,
        "parameters": _count(model.weights),
        "trainable_parameters": _count(updates.trainable),
        "layers": [
            {
                "name": layer.name,
                "type": type(layer).__name__,
                "parameters": _count(layer.weights),
                "trainable": bool(layer.trainable),
            }
            for layer in model.layers
        ],
    }
    texts = {"model.txt": summary.getvalue().encode()}
    try:
        texts["model.json"] = json.dumps(json.loads(model.to_json()), indent=1).encode()
    except (NotImplementedError, TypeError, ValueError) as error:
        facts["config"] = f"none: {error}".split("\n")[0]
    return facts, texts


def _count(variables: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)
