"""HDF5 files of Keras 2 (`save_weights` and whole models), and Keras 3's files of that layout.

A weight is called by its own name without ":0", for instance "dense/kernel"; where two layers
have weights of one name, by that of its layer and its own. The slots of Adam, AdamW, SGD and
RMSprop are called as in Keras 3 ("optimizer/adam/dense_kernel_momentum"), where they mean the same;
those of others "OPTIMIZER/dense/kernel/SLOT". The description of the model is not read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipefit.errors import LoadError
from pipefit.loading import keras_names
from pipefit.loading.hdf5 import Hdf5, Hdf5Source, is_group
from pipefit.loading.names import Role, is_counter, is_seed

_LAYERS, _WEIGHTS = "layer_names", "weight_names"
_MODEL, _TOP, _OPTIMIZER = "model_weights", "top_level_model_weights", "optimizer_weights"


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
    state = _weights(file, file.child(file.root, _OPTIMIZER), must=False)
    named = {keras_names.of_optimizer(name, variables): dataset for name, dataset in state}
    if len(named) < len(state):
        named = {f"optimizer/{name}": dataset for name, dataset in state}
    datasets |= {n: (dataset, keras_names.role_in_optimizer(n)) for n, dataset in named.items()}
    source = Hdf5Source(file, datasets)
    source.step = source.only_number(filter(is_counter, named))
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


def _damaged(file: Hdf5, reason: str) -> LoadError:
    return file.origin.damaged("HDF5 file of Keras", reason)
