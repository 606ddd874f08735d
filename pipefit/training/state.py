"""All state of a training as a flat dict of arrays by stable name, strict in both directions.

Names: ``model/<variable path>``, ``optimizer/<variable path>`` (of several optimizers
``optimizer/<table>/<variable path>``), ``average/<variable path>``, ``loss_scale/<name>``,
``generator/<layer>/<attribute>`` for every tf.random.Generator held by a layer, ``run/step`` and
``run/position``. Keras' own savers leave out the state of dropout's seed generators, so they are
not enough for an exact continuation. Constant learning rates are not state: the experiment file
says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from pipefit.errors import StateMismatch, TrainingError

if TYPE_CHECKING:
    from pipefit.training.updating.updates import Updates

Arrays = dict[str, np.ndarray[Any, Any]]

#: Ops whose state lives outside of variables: it cannot be saved, so a run would not be exact.
_UNSAVED_RANDOM = frozenset(
    [
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
        "RandomShuffle",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "Multinomial",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "UniformCandidateSampler",
        "LogUniformCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "FixedUnigramCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "AllCandidateSampler",
    ]
)


class State:
    """The variables of a model and, for training, of its updates.

    Args:
        model: built.
        updates: of this model; None for validation only.

    Raises:
        StateMismatch: if two variables have one name.
    """

    def __init__(self, model: keras.Model, updates: Updates | None = None):
        named = [(f"model/{v.path}", v.value) for v in model.variables]
        if updates is not None:
            named += updates.variables.items()
        named += _generators(model)
        self.variables: dict[str, Any] = {}
        for name, variable in named:
            if name in self.variables:
                raise StateMismatch(
                    f"state: two variables are called {name!r}; give the layers names of their own"
                )
            self.variables[name] = variable
        constants = [] if updates is None else updates.constants
        self._known = _handles([*self.variables.values(), *constants])
        self._copy = tf.function(self._copies, autograph=False)

    def _copies(self) -> list[tf.Tensor]:
        return [tf.identity(v) for v in self.variables.values()]

    def snapshot(self) -> dict[str, tf.Tensor]:
        """Copies of all variables as of now; later updates do not change them (copy on write)."""
        # Called as it is, TensorFlow would warn of "retracing" in a process with several models.
        return dict(zip(self.variables, self._copy.get_concrete_function()(), strict=True))

    def others(self, variables: Iterable[Any]) -> list[Any]:
        """Those of the variables that the state does not hold (nor constant learning rates)."""
        return [v for v in variables if not _handles([v]) <= self._known]

    def check(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Check that names, shapes and dtypes are exactly those of the state.

        Raises:
            StateMismatch: listing what is missing, unexpected and different.
        """
        problems = [f"  missing: {name}" for name in self.variables if name not in arrays]
        problems += [f"  unexpected: {name}" for name in arrays if name not in self.variables]
        for name, variable in self.variables.items():
            if name in arrays:
                has = (arrays[name].dtype, arrays[name].shape)
                wants = (variable.dtype.as_numpy_dtype, tuple(variable.shape))
                if has != wants:
                    problems.append(
                        f"  different: {name} is {has[0]}{list(has[1])} in the checkpoint, "
                        f"{np.dtype(wants[0])}{list(wants[1])} in the model"
                    )
        if problems:
            raise StateMismatch(
                f"checkpoint: {len(problems)} of {len(self.variables)} variables do not fit the "
                f"model; the model must be the one that was saved\n" + "\n".join(problems)
            )

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Set every variable; raises `StateMismatch` as `check` does, before anything is set."""
        self.check(arrays)
        for name, variable in self.variables.items():
            variable.assign(arrays[name])


def _handles(variables: Iterable[Any]) -> set[int]:
    """Of every variable, and on every device, what tells it from others."""
    parts = (part for v in variables for part in getattr(v, "values", [v]))
    return {id(part.handle) for part in parts if hasattr(part, "handle")}


def refuse_unsaved_random(graph: Any) -> None:
    """Check that a step draws no random numbers whose state cannot be saved.

    Args:
        graph: tf.compat.v1.GraphDef of the step.

    Raises:
        TrainingError: naming the op.
    """
    node = unsaved_random(graph)
    if node is not None:
        raise TrainingError(
            f"model: {node.name} draws random numbers with {node.op}, whose state cannot be "
            f"saved, so nothing could be repeated or continued exactly; use keras.random with a "
            f"keras.random.SeedGenerator"
        )


def unsaved_random(graph: Any) -> Any | None:
    """The first node of a tf.compat.v1.GraphDef that draws random numbers with unsaved state."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return next((node for node in nodes if node.op in _UNSAVED_RANDOM), None)


def refuse_changed(unsaved: Sequence[tuple[Any, np.ndarray[Any, Any]]]) -> None:
    """After the first steps: variables that are not saved must not have changed.

    Raises:
        TrainingError: naming the variable.
    """
    for variable, before in unsaved:
        if not np.array_equal(before, variable.numpy()):
            raise TrainingError(
                f"model: the variable {variable.name!r} changes in training, but no layer "
                f"holds it as a weight, so it would not be saved and the run could not be "
                f"continued exactly; make it with add_weight(), or hold a "
                f"tf.random.Generator as an attribute of its layer"
            )


def to_numpy(snapshot: Mapping[str, tf.Tensor]) -> Arrays:
    """A snapshot's tensors as arrays in host memory; may run in another thread.

    They are not to be written to: those that are in host memory already are not copied.
    """
    # Other than tensor.numpy(), which copies.
    return {name: np.asarray(tensor) for name, tensor in snapshot.items()}


def not_finite(arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
    """Names of floating-point arrays that hold a NaN or an infinity."""
    return [
        name
        for name, value in arrays.items()
        if value.dtype.kind not in "iub" and not np.isfinite(value).all()
    ]


def _generators(model: keras.Model) -> Iterable[tuple[str, Any]]:
    for layer in model._flatten_layers():
        for attribute, value in vars(layer).items():
            if isinstance(value, tf.random.Generator):
                yield f"generator/{layer.path}/{attribute}", value.state
