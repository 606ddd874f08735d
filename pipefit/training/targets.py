"""Values of any kind that are recorded of every step or validation: see `Targets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.errors import SpecError
from pipefit.training.objective import Tensors

#: f(inputs, outputs, mode) -> values by name; mode is "train" or "validation".
Target = Callable[[Tensors, Tensors, str], Mapping[str, Any]]


class Targets:
    """Functions of a batch's fields and outputs, each giving a dict of values.

    A value "x" of the target named "stats" is recorded as "stats/x". It is a tensor of any shape,
    the same at every step, of numbers, booleans or texts.

    Args:
        functions: by name.
        mode: what they are told: "train" or "validation".
    """

    def __init__(self, functions: Mapping[str, Target], mode: str):
        for name, function in functions.items():
            if not callable(function):
                raise SpecError(
                    f"targets.{name}: the builder must return a function (inputs, outputs, mode) "
                    f"-> dict, not {type(function).__name__}"
                )
        self._functions, self._mode = dict(functions), mode

    def __bool__(self) -> bool:
        return bool(self._functions)

    def __call__(self, inputs: Tensors, outputs: Tensors) -> dict[str, tf.Tensor]:
        """The values of a batch, inside of a tf.function.

        Raises:
            SpecError: if a function returns something else than a dict of tensors of fixed shape.
        """
        values = {}
        for name, function in self._functions.items():
            returned = function(dict(inputs), dict(outputs), self._mode)
            if not isinstance(returned, Mapping):
                raise SpecError(
                    f"targets.{name}: must return a dict of values by name, "
                    f"not {type(returned).__name__}"
                )
            for key, value in returned.items():
                tensor = tf.convert_to_tensor(value)
                if not tensor.shape.is_fully_defined():
                    raise SpecError(
                        f"targets.{name}: value {key!r} has shape {tensor.shape}: every step must "
                        f"give the same shape; pad it, or reduce it to fewer dimensions"
                    )
                values[f"{name}/{key}"] = tensor
        return values


class Means:
    """Means of values over the batches of a validation set, weighted by examples, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._examples = 0

    def add(self, values: Mapping[str, np.ndarray[Any, Any]], examples: int) -> None:
        """Add a batch's values.

        Raises:
            SpecError: for texts, which have no mean, or a value whose shape has changed.
        """
        self._examples += examples
        for name, value in values.items():
            if value.dtype.kind not in "biuf":
                raise SpecError(
                    f"targets: value {name!r} is {value.dtype}: in validation the mean over all "
                    f"batches is recorded, so it must be a number; use outputs for other things"
                )
            before = self._sums.get(name, np.zeros(value.shape))
            if before.shape != value.shape:
                raise SpecError(
                    f"targets: value {name!r} has shape {list(value.shape)} for one batch and "
                    f"{list(before.shape)} for another, so it has no mean; reduce it over the "
                    f"batch, or use outputs for what belongs to an example"
                )
            self._sums[name] = before + np.asarray(value, np.float64) * examples

    def values(self) -> dict[str, np.ndarray[Any, Any]]:
        """The means, float64."""
        return {name: value / self._examples for name, value in self._sums.items()}
