"""Keras 3: `.keras` archives (also those of Keras 2.12 and later), and `.weights.h5` files.

These files have no names of variables: a layer's variables are numbered, and layers are numbered
by class. What names say here:

- `.keras`: the paths of the variables, "dense/kernel", as `model.variables` has them. They follow
  from the description of the model, which is read as data: nothing in it is run or built.
- `.weights.h5`: likewise, with the layers' own names if a newer Keras 3 wrote the file (it says
  them), else "dense_1/kernel" for the second Dense of the model, and so on. What a Sequential puts
  before the paths of its variables is not in the file.

In both, variables of Keras' own layers have their names, those of other layers numbers
("my_layer/0"). A layer that another one holds is named after the attribute where its own name is
not in the file. Slots of the optimizer have names where the order of the variables is certain: in a
`.keras` file, of models that list all their layers, for Adam, AdamW, SGD and RMSprop.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from pipefit.archives import Members, open_members
from pipefit.loading import keras_names
from pipefit.loading.apart import Apart
from pipefit.loading.filesource import Kind, Origin, zip_names
from pipefit.loading.hdf5 import Hdf5, Hdf5Source, is_group
from pipefit.loading.keras_layers import FUNCTIONAL, Layer, Layers, Variable
from pipefit.loading.names import Role, is_counter, is_seed
from pipefit.loading.window import Window

_NAME = "Keras 3 archive (.keras)"
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_TOLD = (_CONFIG, _METADATA)
# The description of a model of 10,000 layers has 10 MB.
_LONGEST = 2**28

_OPTIMIZER = "optimizer"
# What a model that is compiled has beside its layers.
_METRICS = ("metrics", "compile_metrics", "_compile_metrics", "_metrics", "_loss_tracker")


@dataclass(frozen=True)
class Description:
    """What a `.keras` file says of its model; nothing of it is run.

    Attributes:
        kind: the model's class in snake case.
        config: of the model.
        optimizer: class_name and config.
        version: of Keras.
    """

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    version: str = ""


def matches(file: Hdf5) -> bool:
    """Whether an HDF5 file has this layout."""
    layers = Layers(file)
    groups = [group for group in file.children(file.root).values() if is_group(group)]
    return any(_holds(file, layers, group) for group in (file.root, *groups))


def _holds(file: Hdf5, layers: Layers, group: Any) -> bool:
    inside = (child for child in file.children(group).values() if is_group(child))
    return layers.has_variables(group) or any(layers.has_variables(child) for child in inside)


def open_keras3(file: Hdf5, description: Description | None = None) -> Hdf5Source:
    """The variables of a file.

    Args:
        file: with the layout of `.weights.h5`.
        description: of the model; None: there is none.

    Raises:
        LoadError: it is damaged.
    """
    told = description or Description(_kind(file))
    layers = Layers(file, sequential_scopes=not told.version.startswith("2."))
    name = layers.name(file.root) if layers.has_variables(file.root) else None
    model = Layer(name or str(told.config.get("name", "model")), told.kind, told.config)
    variables = list(layers.variables(file.root, model, skip=(_OPTIMIZER, *_METRICS)))
    datasets = _named(variables)
    state = dict(_state(file, layers, variables, told))
    datasets |= {n: (dataset, keras_names.role_in_optimizer(n)) for n, dataset in state.items()}
    datasets |= _rest(file, {dataset.name for dataset, _ in datasets.values()})
    source = Hdf5Source(file, datasets)
    source.step = source.only_number(filter(is_counter, state))
    return source


def _kind(file: Hdf5) -> str:
    """The model's class, as far as it shows: the layers of a subclassed model are attributes."""
    known = {"vars", "layers", "_layer_checkpoint_dependencies", _OPTIMIZER, *_METRICS}
    return FUNCTIONAL[0] if file.children(file.root).keys() <= known else ""


def _named(variables: Sequence[Variable]) -> dict[str, tuple[Any, Role]]:
    """Variables by their paths; those of one path by their places in the file."""
    count = Counter(variable.path for variable in variables)
    found: dict[str, tuple[Any, Role]] = {}
    for path, dataset, _ in variables:
        name = path if count[path] == 1 else dataset.name.lstrip("/")
        found[name] = dataset, "other" if is_seed(path) else "model"
    return found


def _rest(file: Hdf5, taken: Collection[str]) -> dict[str, tuple[Any, Role]]:
    """What else is in the file, by its place there: nothing is left out in silence."""
    found: dict[str, tuple[Any, Role]] = {}
    for path, dataset in file.datasets(file.root):
        if dataset.name not in taken:
            top = path.partition("/")[0]
            role: Role = "optimizer" if top == _OPTIMIZER else "other"
            found[path] = dataset, role if top in (_OPTIMIZER, *_METRICS) else "model"
    return found


def _state(
    file: Hdf5, layers: Layers, variables: Sequence[Variable], told: Description
) -> Iterator[tuple[str, Any]]:
    """The variables of the optimizer."""
    group = file.child(file.root, _OPTIMIZER)
    if not is_group(group) or not layers.has_variables(group):
        return
    own = [dataset for _, dataset in layers.numbered(group)]
    certain = all(variable.trained is not None for variable in variables)
    trained = [(v.path, v.dataset.shape) for v in variables if v.trained] if certain else []
    name = layers.name(group) or str(told.optimizer.get("config", {}).get("name", _OPTIMIZER))
    shapes = [dataset.shape for dataset in own]
    names = keras_names.optimizer_names(name, told.optimizer, shapes, trained)
    yield from zip(names, own, strict=True)


# ---- archives and folders ----


def open_archive(path: Path, origin: Origin) -> Hdf5Source:
    """The variables in a `.keras` file; only what is needed of it is read.

    Raises:
        LoadError: it is damaged, or has no weights.
        ArchiveError: it has members that lead outside, or is otherwise refused.
    """
    with ExitStack() as stack:
        members = open_members(path)
        stack.callback(members.close)
        if _WEIGHTS not in members.names:
            raise origin.damaged(_NAME, f"it has no {_WEIGHTS}")
        read = {name: _limited(members, name, origin) for name in _TOLD if name in members.names}
        weights, size = _weights(path, members, stack)
        source = _open(weights, size, read, origin)
        source.also_close(stack.pop_all())
        return source


def is_folder(path: Path) -> bool:
    """Whether a folder is what Keras' `save_model(..., zipped=False)` writes."""
    return (path / _CONFIG).is_file() and (path / _WEIGHTS).is_file()


def open_folder(path: Path, origin: Origin) -> Hdf5Source:
    """The variables in a `.keras` file that is unpacked.

    Raises:
        LoadError: it is damaged.
    """
    told = [name for name in _TOLD if (path / name).is_file()]
    if any((path / name).stat().st_size > _LONGEST for name in told):
        raise origin.damaged(_NAME, f"{told[0]} is longer than {_LONGEST} bytes")
    read = {name: (path / name).read_bytes() for name in told}
    return _open(path / _WEIGHTS, (path / _WEIGHTS).stat().st_size, read, origin)


def _open(
    weights: Path | IO[bytes], size: int, told: Mapping[str, bytes], origin: Origin
) -> Hdf5Source:
    description = _description(told, origin)
    file = Hdf5(weights, size, origin)
    try:
        return open_keras3(file, description)
    except BaseException:
        file.close()
        raise


def _limited(members: Members, name: str, origin: Origin) -> bytes:
    found = bytearray()
    for piece in members.pieces(name):
        found += piece
        if len(found) > _LONGEST:
            raise origin.damaged(_NAME, f"{name} is longer than {_LONGEST} bytes")
    return bytes(found)


def _weights(path: Path, members: Members, stack: ExitStack) -> tuple[IO[bytes], int]:
    """The file of weights and its size: as it lies in the archive, or unpacked without a name."""
    if place := members.place(_WEIGHTS):
        return cast(IO[bytes], stack.enter_context(Window(path, *place))), place[1]
    unpacked = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115, the stack closes it
    for piece in members.pieces(_WEIGHTS):
        unpacked.write(piece)
    return unpacked, unpacked.tell()


def _description(told: Mapping[str, bytes], origin: Origin) -> Description:
    try:
        model = json.loads(told[_CONFIG]) if _CONFIG in told else {}
        version = json.loads(told[_METADATA])["keras_version"] if _METADATA in told else ""
        compiled = model.get("compile_config") or {}
        optimizer = compiled.get("optimizer")
        # Keras names one that has no settings with a word.
        if not (isinstance(optimizer, dict) and isinstance(optimizer.get("config"), dict)):
            optimizer = {}
        return Description(
            kind=keras_names.snake_case(model["class_name"]),
            config=dict(model["config"]),
            optimizer=optimizer,
            version=str(version),
        )
    # What is damaged or hostile may be any JSON.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{_CONFIG} and {_METADATA} do not describe a model: {error!r}"
        raise origin.damaged(_NAME, reason) from error


def _matches(path: Path, start: bytes) -> bool:
    names = zip_names(path, start)
    return _CONFIG in names and bool({_METADATA, _WEIGHTS} & set(names))


def _open_apart(path: Path, origin: Origin) -> Apart:
    return Apart("archive", path, origin)


KIND = Kind(_NAME, _matches, _open_apart)
