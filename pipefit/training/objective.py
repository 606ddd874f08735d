"""Losses and metrics, one value per example, called by the names of their arguments.

What a `[loss]` or metric builder returns is called with what its parameters are named after:

- a field of the data or an output of the model by its own name, such as ``labels`` or ``logits``;
- ``inputs``: the dict of all fields, ``outputs``: the dict of all outputs;
- ``y_true``: the field "labels", ``y_pred``: the model's only output.

It returns one value per example, shape [examples] or [examples, ...] (then averaged over the other
dimensions). Means over a batch, over uneven slices of it and over a whole validation set are then
all weighted by examples and do not depend on the number of devices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipefit.errors import SpecError
from pipefit.training.replicas.meeting import stand_in
from pipefit.training.replicas.precision import in_float32

Tensors = Mapping[str, tf.Tensor]
PerExample = Callable[[Tensors, Tensors], tf.Tensor]
#: Gives the outputs by name in place of calling the model: f(model, fields).
Forward = Callable[[keras.Model, Tensors], Tensors]

#: What is recorded of every step besides the metrics.
RESERVED = frozenset({"loss", "learning_rate"})


def sparse_softmax_cross_entropy(
    labels: str = "labels", logits: str | None = None
) -> Callable[[Tensors, Tensors], tf.Tensor]:
    """The default loss: cross entropy of the softmax of the logits with integer labels.

    Args:
        labels: the field with the labels, integers of shape [examples] from 0 to classes - 1.
        logits: the output with the logits, [examples, classes]; None: the model's only output.
    """

    def loss(inputs: Tensors, outputs: Tensors) -> tf.Tensor:
        scores = _only(outputs) if logits is None else _pick(logits, outputs, "outputs")
        targets = _pick(labels, inputs, "fields")
        if targets.dtype.is_integer:  # also of a type that the op does not know
            targets = tf.cast(targets, tf.int64)
        # The deterministic op does not look: on a GPU another label would count as no loss.
        with tf.device("CPU:0"), tf.control_dependencies([_in_range(targets, scores, labels)]):
            targets = tf.identity(targets)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(scores, tf.float32))

    return loss


def accuracy(
    labels: str = "labels", logits: str | None = None
) -> Callable[[Tensors, Tensors], tf.Tensor]:
    """1 where the largest logit is at the label, else 0; arguments as of the default loss."""

    def correct(inputs: Tensors, outputs: Tensors) -> tf.Tensor:
        scores = _only(outputs) if logits is None else _pick(logits, outputs, "outputs")
        guess = tf.argmax(scores, axis=-1, output_type=tf.int64)
        return tf.cast(
            tf.equal(guess, tf.cast(_pick(labels, inputs, "fields"), tf.int64)), tf.float32
        )

    return correct


def per_example(function: Any, where: str) -> PerExample:
    """Make what a builder returned callable as f(fields, outputs) -> float32 [examples].

    Args:
        function: a function or a keras.losses.Loss (of which the unreduced values are taken).
        where: dotted key in the experiment file, for messages.

    Raises:
        SpecError: if it is not callable, is a stateful Keras metric or a summing Keras loss, or
            (when it is called) asks for a name that is not there or returns another shape.
    """
    if isinstance(function, keras.losses.Loss):
        if function.reduction == "sum":
            raise SpecError(
                f"{where}: reduction = 'sum': the mean over the batch's examples is always taken; "
                f"leave reduction out"
            )
        function = function.call
    if isinstance(function, keras.metrics.Metric) or not callable(function):
        raise SpecError(
            f"{where}: the builder must return a function of the data's fields and the model's "
            f"outputs, one value per example, not {type(function).__name__}"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:  # some C functions do not tell
        raise SpecError(
            f"{where}: the names of its arguments cannot be read ({error}); wrap it in a function"
        ) from error
    names = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]

    def call(inputs: Tensors, outputs: Tensors) -> tf.Tensor:
        values = function(**{name: _argument(name, inputs, outputs, where) for name in names})
        return _flat(tf.convert_to_tensor(values), inputs, where)

    return call


class Objective:
    """A model with its loss and metrics.

    Args:
        model: called with the fields that its inputs name (a model without named inputs gets the
            dict of all fields), and `training`.
        loss: see `per_example`.
        metrics: likewise, by name.

    Raises:
        SpecError: if a metric has the name of a column that is always there.
    """

    def __init__(self, model: keras.Model, loss: PerExample, metrics: Mapping[str, PerExample]):
        if taken := RESERVED & set(metrics):
            raise SpecError(
                f"metrics: a metric cannot be called {', '.join(sorted(taken))}: this is always "
                f"recorded; choose another name"
            )
        self.model = model
        self.loss = loss
        self.metrics = dict(metrics)

    def __call__(
        self,
        fields: Tensors,
        spare: Tensors | None = None,
        *,
        training: bool,
        forward: Forward | None = None,
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Values per example, float32 [examples], by name ("loss" first), and the outputs.

        Args:
            fields: a batch, or one device's slice of it.
            spare: an example that stands in if a slice is empty; see `devices.Slice`.
            training: whether the model is called as in training.
            forward: is called in place of the model.
        """
        if not spare or next(iter(fields.values())).shape[0]:
            return self._values(fields, training, forward)
        with stand_in():
            values, outputs = self._values(spare, training, forward)
        return _without_rows(values), _without_rows(outputs)

    def _values(
        self, fields: Tensors, training: bool, forward: Forward | None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        if forward is None:
            returned = self.model(model_inputs(self.model, fields), training=training)
        else:
            returned = forward(self.model, fields)
        outputs = in_float32(named_outputs(returned))
        values = {"loss": self.loss(fields, outputs)}
        for name, metric in self.metrics.items():
            values[name] = metric(fields, outputs)
        return values, outputs


def _without_rows(tensors: Tensors) -> dict[str, tf.Tensor]:
    return {name: tensor[:0] if tensor.shape.rank else tensor for name, tensor in tensors.items()}


def model_inputs(model: keras.Model, fields: Tensors) -> Any:
    """The fields that the model's inputs name, in the model's structure.

    Raises:
        SpecError: if an input is named like no field, or a Sequential model names none.
    """
    if not getattr(model, "inputs", None):
        if isinstance(model, keras.Sequential):
            raise SpecError(
                f"model: this keras.Sequential does not say which field it reads; begin it with "
                f"keras.Input(shape, name=FIELD), fields are {', '.join(fields)}"
            )
        return dict(fields)

    def pick(name: str) -> tf.Tensor:
        if name not in fields:
            raise SpecError(
                f"model: input {name!r} is no field of the data; fields are {', '.join(fields)}"
            )
        return fields[name]

    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    if isinstance(structure, dict):
        return {key: pick(key) for key in structure}
    return keras.tree.map_structure(lambda tensor: pick(tensor.name), structure)


def named_outputs(outputs: Any) -> dict[str, tf.Tensor]:
    """A model's outputs by name: dicts as they are, a tensor as "output", lists numbered."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, list | tuple):
        return {f"output_{i}": value for i, value in enumerate(outputs)}
    return {"output": outputs}


def _argument(name: str, inputs: Tensors, outputs: Tensors, where: str) -> Any:
    if name in inputs and name in outputs:
        raise SpecError(f"{where}: argument {name!r} is both a field and an output; rename one")
    special = {"inputs": lambda: inputs, "outputs": lambda: outputs}
    special["y_true"] = lambda: _pick("labels", inputs, "fields")
    special["y_pred"] = lambda: _only(outputs)
    for known in (inputs, outputs):
        if name in known:
            return known[name]
    if name in special:
        return special[name]()
    raise SpecError(
        f"{where}: argument {name!r} is neither a field ({', '.join(inputs)}) nor an output "
        f"({', '.join(outputs)}) nor one of {', '.join(special)}"
    )


def _in_range(labels: tf.Tensor, logits: tf.Tensor, name: str) -> tf.Operation:
    classes = logits.shape[-1]
    fine = tf.reduce_all((labels >= 0) & (labels < classes))
    message = f"field {name} must hold labels from 0 to {classes - 1}, but holds"
    return tf.raw_ops.Assert(condition=fine, data=[message, labels], summarize=8)


def _pick(name: str, tensors: Tensors, kind: str) -> tf.Tensor:
    if name not in tensors:
        raise SpecError(f"{name!r} is not among the {kind}; they are {', '.join(tensors)}")
    return tensors[name]


def _only(outputs: Tensors) -> tf.Tensor:
    if len(outputs) != 1:
        raise SpecError(f"the model has {len(outputs)} outputs ({', '.join(outputs)}); name one")
    return next(iter(outputs.values()))


def _flat(values: tf.Tensor, inputs: Tensors, where: str) -> tf.Tensor:
    examples = next(iter(inputs.values())).shape[0]
    if values.shape.rank is None or values.shape.rank < 1 or values.shape[0] != examples:
        raise SpecError(
            f"{where}: must return one value per example, shape [{examples}, ...], "
            f"not {values.shape}; do not reduce over the batch"
        )
    values = tf.cast(values, tf.float32)
    return (
        tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
        if values.shape.rank > 1
        else values
    )
