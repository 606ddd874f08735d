"""Values of any kind that are recorded of every step or validation: see `Targets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.errors import SpecError
from pipefit.training.callables import checked
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
        self._functions = {
            name: checked(function, f"targets.{name}", ("inputs", "outputs", "mode"))
            for name, function in functions.items()
        }
        self._mode = mode

    def __bool__(self) -> bool:
        return bool(self._functions)

    def __call__(self, inputs: Tensors, outputs: Tensors) -> dict[str, tf.Tensor]:
        """The values of a batch, inside of a tf.function.

        Raises:
            SpecError: if a function returns something else than a dict of tensors that can be
                recorded.
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
                values[f"{name}/{key}"] = _recordable(value, f"targets.{name}: value {key!r}")
        return values


def _recordable(value: Any, what: str) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{what} is {type(value).__name__}, not a tensor: {error}") from error
    if not tensor.shape.is_fully_defined():
        raise SpecError(
            f"{what} has shape {tensor.shape}: every step must give the same shape; pad it, reduce "
            f"it to fewer dimensions, or, if it is always the same, say so by tf.ensure_shape"
        )
    kind = tensor.dtype
    if kind == tf.bfloat16:  # NumPy has no such type
        return tf.cast(tensor, tf.float32)
    if not (kind.is_floating or kind.is_integer or kind in (tf.bool, tf.string)):
        raise SpecError(f"{what} is {kind.name}: give numbers (not complex), booleans or texts")
    return tensor


def refuse_taken(names: Iterable[str], values: Iterable[str]) -> None:
    """Check that no value of a target has the name of something else that is recorded.

    Raises:
        SpecError: naming it.
    """
    if twice := sorted(set(names) & set(values)):
        raise SpecError(
            f"targets: {twice[0]!r} is recorded already under this name, as a metric or on request;"
            f" choose another name"
        )


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
        for name, given in values.items():
            value = np.asarray(given)  # TensorFlow gives a single text as plain bytes
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
