"""What a model is, for people and for rebuilding it: see `description`."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from typing import Any

import keras

from pipefit.training.updating.updates import Updates

#: So many layers are told in the run's document; the texts tell of all.
_MOST_LAYERS = 300


def description(model: keras.Model, updates: Updates) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A few numbers of a model, and texts.

    Args:
        model: built.
        updates: what is trained of it, and how.

    Returns:
        Plain values: its name, parameters, trainable_parameters, layers (of each name, type,
        output shape if it is known, parameters, and whether it is trainable), optimizers (of each
        table, type and parameters), config ("model.json", or why there is none). Texts by name:
        "model.txt", a table of layers, shapes and parameters, and of the variables;
        "model.json", from which `keras.models.model_from_json` rebuilds the model, unless it has
        parts that do not tell how they are made; "variables.json", the paths of its variables in
        the order in which a rebuilt model has them, where layers within layers may get others.
    """
    problem, config = _config(model)
    facts = {
        "name": model.name,
        "parameters": _count(model.weights),
        "trainable_parameters": _count(updates.trainable),
        "layers": [_layer(layer) for layer in model.layers[:_MOST_LAYERS]],
        "more_layers": max(0, len(model.layers) - _MOST_LAYERS),
        "optimizers": updates.describe(),
        "config": problem or "model.json",
    }
    paths = [variable.path for variable in model.variables]
    texts = {
        "model.txt": _summary(model, updates).encode(),
        "variables.json": json.dumps(paths, indent=1).encode(),
    }
    if config:
        texts["model.json"] = config.encode()
    return facts, texts


def _layer(layer: keras.Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "type": type(layer).__name__,
        "shape": _shape(layer),
        "parameters": _count(layer.weights),
        "trainable": bool(layer.trainable),
    }


def _shape(layer: keras.Layer) -> str | None:
    """Of its output, as text; None if it is called several times, or outside of a graph."""
    try:
        output = layer.output
    except (AttributeError, ValueError):
        return None
    return ", ".join(str(tuple(tensor.shape)) for tensor in keras.tree.flatten(output))


def _summary(model: keras.Model, updates: Updates) -> str:
    text = io.StringIO()
    # Wider, it loses the column of the parameters.
    model.summary(
        line_length=80,
        expand_nested=True,
        print_fn=lambda line, **_: text.write(f"{line}\n"),
    )
    trained = {variable.path for variable in updates.trainable}
    text.write("\nVariables\n")
    for variable in model.variables:
        kind = "trained" if variable.path in trained else "not trained"
        shape = list(variable.shape)
        text.write(f"{variable.path}  {variable.dtype}{shape}  {kind}\n")
    return text.getvalue()


def _config(model: keras.Model) -> tuple[str | None, str]:
    """Why there is no configuration, or the configuration."""
    for part in model._flatten_layers():
        if _forgets_arguments(part):
            name = type(part).__name__
            return f"none: {name} is a subclass of keras.Model without get_config()", ""
    try:
        return None, json.dumps(json.loads(model.to_json()), indent=1)
    except Exception as error:  # of users' get_config(), which a training does not need
        reason = " ".join(str(error).split())[:200]
        return f"none: {type(error).__name__}: {reason}", ""


def _forgets_arguments(part: keras.Layer) -> bool:
    """Whether Keras would rebuild it with the defaults of its arguments, whatever they were.

    Of a layer it remembers what it was made with; of a subclass of Model it does not.
    """
    default = keras.Model.get_config
    return isinstance(part, keras.Model) and getattr(type(part), "get_config", None) is default


def _count(variables: Iterable[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)
