"""How Keras calls the variables of its own layers and the slots of its optimizers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipefit.loading.names import Role

_KERNEL = (("kernel",), ("kernel", "bias"))
_CELL = (("kernel", "recurrent_kernel"), ("kernel", "recurrent_kernel", "bias"))
_SEPARABLE = (
    ("depthwise_kernel", "pointwise_kernel"),
    ("depthwise_kernel", "pointwise_kernel", "bias"),
)
_MOVING = ("moving_mean", "moving_variance")
_SCALED_LAYERS = ("batch_normalization", "layer_normalization", "group_normalization")
_NOT_TRAINED = frozenset([*_MOVING, "mean", "variance", "count", "seed_generator_state"])

#: By class, in snake case, the variables of a layer in the order in which Keras saves them; of each
#: number of variables there is one list, for a number alone must tell.
_VARIABLES: Mapping[str, Sequence[Sequence[str]]] = {
    **dict.fromkeys(["dense", "einsum_dense", "conv1d", "conv2d", "conv3d"], _KERNEL),
    **dict.fromkeys(["conv1d_transpose", "conv2d_transpose", "conv3d_transpose"], _KERNEL),
    **dict.fromkeys(["depthwise_conv1d", "depthwise_conv2d"], _KERNEL),
    **dict.fromkeys(["separable_conv1d", "separable_conv2d"], _SEPARABLE),
    **dict.fromkeys(["simple_rnn_cell", "lstm_cell", "gru_cell", "conv_lstm_cell"], _CELL),
    **dict.fromkeys(["layer_normalization", "group_normalization"], (("gamma", "beta"),)),
    "batch_normalization": (_MOVING, ("gamma", "beta", *_MOVING)),
    "embedding": (("embeddings",),),
    "normalization": (("mean", "variance", "count"),),
    "p_re_lu": (("alpha",),),
    "rms_normalization": (("scale",),),
    "seed_generator": (("seed_generator_state",),),
}

#: What layers call the layers they hold in themselves: attribute, name, class.
_PARTS = {
    "query_dense": ("query", "einsum_dense"),
    "key_dense": ("key", "einsum_dense"),
    "value_dense": ("value", "einsum_dense"),
    "output_dense": ("attention_output", "einsum_dense"),
}

#: What Keras 2 calls slots, by optimizer and in the words of Keras 3; the values mean the same.
_SLOTS = {
    "adam": {"m": "momentum", "v": "velocity"},
    "adam_w": {"m": "momentum", "v": "velocity"},
    "sgd": {"m": "momentum", "momentum": "momentum"},
    "rm_sprop": {"rms": "velocity", "velocity": "velocity"},
}
_SETTINGS = frozenset(["learning_rate", "beta_1", "beta_2", "decay", "momentum", "rho", "epsilon"])
_ITERATIONS = ("iter", "iteration", "iterations")
#: Slots of Keras 3's optimizers for each trainable variable, one variable after the other.
_IN_ORDER = {
    "Adam": ("momentum", "velocity"),
    "AdamW": ("momentum", "velocity"),
    "SGD": ("momentum",),
    "RMSprop": ("velocity",),
}


def snake_case(name: str) -> str:
    """The name of a class as Keras writes it in files.

    >>> snake_case("Conv2D"), snake_case("BatchNormalization"), snake_case("LSTM")
    ('conv2d', 'batch_normalization', 'lstm')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def without_number(name: str) -> str:
    """A name without the number that makes it unique.

    >>> without_number("dense_12")
    'dense'
    """
    return re.sub(r"_\d+$", "", name)


def variable_names(layer: str, keys: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """What a layer calls its variables, in the order in which they are saved.

    Args:
        layer: its class in snake case.
        keys: that the variables have in the file, "0", "1", ... unless the layer saves them itself.
        config: of the layer, as far as it is known.

    Returns:
        Names; the keys where class and number of variables do not tell them.
    """
    if list(keys) != [str(number) for number in range(len(keys))]:
        return list(keys)
    choices = {len(names): names for names in _VARIABLES.get(layer, ())}
    first = "gamma" if config.get("scale") else "beta"
    if layer in _SCALED_LAYERS and config.get("scale", True) != config.get("center", True):
        choices[len(keys)] = (first, *_MOVING) if layer == "batch_normalization" else (first,)
    names = choices.get(len(keys), ())
    return list(names) if len(names) == len(keys) else list(keys)


def is_trained(name: str) -> bool:
    """Whether an optimizer updates variables of this name."""
    return name not in _NOT_TRAINED


def part(attribute: str, layer: str) -> tuple[str, str]:
    """Name and class, in snake case, of a layer that another layer holds in an attribute.

    Args:
        attribute: of the other layer.
        layer: the class of the other layer in snake case.
    """
    if attribute == "cell":
        return f"{layer}_cell", f"{layer}_cell"
    return _PARTS.get(attribute, (attribute, without_number(attribute)))


def of_optimizer(name: str, variables: Collection[str]) -> str:
    """The name of a part of an optimizer's state, from what a file calls it.

    Keras 2 has written OPTIMIZER/VARIABLE/SLOT and, later, OPTIMIZER/SLOT/VARIABLE; Keras 3 writes
    a path, which other sources have with "optimizer/" before it.

    >>> of_optimizer("Adam/m/out/kernel", ["out/kernel"]), of_optimizer("Adam/iter", ["out/kernel"])
    ('optimizer/adam/out_kernel_momentum', 'optimizer/adam/iteration')
    """
    optimizer, _, rest = name.partition("/")
    first, _, after = rest.partition("/")
    before, _, last = rest.rpartition("/")
    if after in variables:
        return slot_name(optimizer, after, first)
    if before in variables:
        return slot_name(optimizer, before, last)
    if not rest:
        return f"optimizer/{'iteration' if name in _ITERATIONS else name}"
    rest = "iteration" if rest in _ITERATIONS else rest
    return f"optimizer/{optimizer_kind(optimizer)}/{rest}"


def optimizer_kind(name: str) -> str:
    """What Keras 3 calls an optimizer that was not given a name, without counting how many.

    >>> optimizer_kind("AdamW"), optimizer_kind("adam_w_1")
    ('adam_w', 'adam_w')
    """
    return without_number(snake_case(name))


def role_in_optimizer(name: str) -> Role:
    """What a part of an optimizer's state is for: settings are no state, but schedules show there.

    Args:
        name: as `of_optimizer` makes it.
    """
    return (
        "other"
        if name.rpartition("/")[2] in _SETTINGS and name.startswith("optimizer/")
        else "optimizer"
    )


def slot_name(optimizer: str, variable: str, slot: str) -> str:
    """The name of a slot that Keras 2 wrote, if its optimizer is known as Keras 3 would call it.

    >>> slot_name("Adam", "out/kernel", "m")
    'optimizer/adam/out_kernel_momentum'
    """
    kind = optimizer_kind(optimizer)
    if slot not in _SLOTS.get(kind, {}):
        return f"{optimizer}/{variable}/{slot}"
    return f"optimizer/{kind}/{variable.replace('/', '_')}_{_SLOTS[kind][slot]}"


def optimizer_names(
    name: str,
    described: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    trained: Sequence[tuple[str, tuple[int, ...]]],
) -> list[str]:
    """What a Keras 3 optimizer calls its variables, in the order in which they are saved.

    Args:
        name: of the optimizer.
        described: class_name and config; empty: not known.
        shapes: of its variables.
        trained: path and shape of the variables it updates, in its order; empty: not known.

    Returns:
        Names; numbers where something else was saved than these would be.
    """
    config = described.get("config")
    config = config if isinstance(config, dict) else {}
    class_name = described.get("class_name")
    kinds = _IN_ORDER.get(class_name, ()) if isinstance(class_name, str) else ()
    if class_name == "SGD" and not config.get("momentum"):
        kinds = ()
    expected: list[tuple[str, tuple[int, ...]]] = [("iteration", ())]
    if isinstance(config.get("learning_rate"), float):  # else a schedule, which is no variable
        expected.append(("learning_rate", ()))
    sure = len(expected)
    for path, shape in trained:
        expected += [(f"{path.replace('/', '_')}_{kind}", shape) for kind in kinds]
    # Averages and the like add variables: then the others are not told apart.
    if [shape for _, shape in expected] != list(shapes):
        expected[sure:] = [(str(number), ()) for number in range(sure, len(shapes))]
    return [f"optimizer/{optimizer_kind(name)}/{own}" for own, _ in expected[: len(shapes)]]
