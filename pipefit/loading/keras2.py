"""HDF5 files of Keras 2 (`save_weights` and whole models), and Keras 3's files of that layout.

A weight is called by its own name without ":0", for instance "dense/kernel"; where two layers
have weights of one name, by that of its layer and its own. The slots of Adam, AdamW, SGD and
RMSprop are called as in Keras 3 ("optimizer/adam/dense_kernel_momentum"), where they mean the same;
those of others "OPTIMIZER/dense/kernel/SLOT". The description of the model is not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from pipefit.errors import LoadError
from pipefit.loading import keras_names
from pipefit.loading.hdf5 import Hdf5, Hdf5Source, is_group
from pipefit.loading.names import Role, is_seed

_LAYERS, _WEIGHTS = "layer_names", "weight_names"
_MODEL, _TOP, _OPTIMIZER = "model_weights", "top_level_model_weights", "optimizer_weights"
_ITERATIONS = ("iter", "iteration", "iterations")


def matches(file: Hdf5) -> bool:
    """Whether a file has this layout."""
    return file.texts(_model(file), _LAYERS) is not None


def open_keras2(file: Hdf5) -> Hdf5Source:
    """The weights of a file.

    Raises:
        LoadError: it is damaged.
    """
    model = _model(file)
    layers = [*(file.texts(model, _LAYERS) or ()), _TOP]
    found = [
        (layer, *weight)
        for layer in dict.fromkeys(layers)
        for weight in _weights(file, file.child(model, layer), must=layer != _TOP)
    ]
    count = Counter(name for _, name, _ in found)
    datasets: dict[str, tuple[Any, Role]] = {}
    for layer, own, dataset in found:
        name = own if count[own] == 1 else f"{layer}/{own}"
        datasets[name] = dataset, "other" if is_seed(name) else "model"
    variables = set(datasets)
    state = list(_weights(file, file.child(file.root, _OPTIMIZER), must=False))
    datasets |= {_of_optimizer(name, variables): (dataset, "optimizer") for name, dataset in state}
    source = Hdf5Source(file, datasets)
    counters = [n for n, _ in state if n.rpartition("/")[2] in _ITERATIONS]
    if len(counters) == 1:
        source.step = source.whole_number(_of_optimizer(counters[0], variables))
    return source


def _model(file: Hdf5) -> Any:
    inside = file.child(file.root, _MODEL)
    return inside if is_group(inside) else file.root


def _weights(file: Hdf5, group: Any, *, must: bool) -> list[tuple[str, Any]]:
    """Names and datasets of a group that lists them."""
    names = file.texts(group, _WEIGHTS) if is_group(group) else None
    if names is None:
        if must:
            raise _damaged(file, "a layer is listed and not there")
        return []
    found = []
    for name in names:
        dataset = file.child(group, name)
        if dataset is None or is_group(dataset):
            raise _damaged(file, f"{name!r} is listed and not there")
        found.append((name.removesuffix(":0"), dataset))
    return found


def _of_optimizer(name: str, variables: Collection[str]) -> str:
    """The name of a part of the optimizer's state.

    Keras 2 has written OPTIMIZER/VARIABLE/SLOT and, later, OPTIMIZER/SLOT/VARIABLE; Keras 3 writes
    a path, which other sources have with "optimizer/" before it.
    """
    optimizer, _, rest = name.partition("/")
    if rest.partition("/")[2] in variables:
        return keras_names.slot_name(optimizer, rest.partition("/")[2], rest.partition("/")[0])
    if rest.rpartition("/")[0] in variables:
        return keras_names.slot_name(optimizer, rest.rpartition("/")[0], rest.rpartition("/")[2])
    if name.rpartition("/")[2] in _ITERATIONS:
        return "/".join(["optimizer", *name.lower().split("/")[:-1], "iteration"])
    return f"optimizer/{name}"


def _damaged(file: Hdf5, reason: str) -> LoadError:
    return file.origin.damaged("HDF5 file of Keras", reason)
