"""The layers in an HDF5 file of Keras 3, and how their variables are called: see `keras3`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipefit.loading import keras_names
from pipefit.loading.hdf5 import Hdf5, is_group

_VARS = "vars"
# What the list of a model's layers is called, also by Keras 2.12.
_LISTS = ("layers", "_layer_checkpoint_dependencies")
# Where the description of a layer has another word than the attribute.
_DESCRIBED_AS = {"forward_layer": "layer"}

FUNCTIONAL, SEQUENTIAL = ("functional", "model"), "sequential"

Scope = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """A layer or model.

    Attributes:
        name: it has, or is given here.
        kind: its class in snake case.
        config: what the file says of it; empty where it says nothing.
        in_order: whether layers come here in the order in which the model has them.
    """

    name: str
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    in_order: bool = False


class Variable(NamedTuple):
    """A variable in the file.

    Attributes:
        path: as `model.variables` has it, as far as the file tells.
        dataset: its values.
        trained: whether an optimizer updates it; None: the file does not tell, or not in which
            order it updates it.
    """

    path: str
    dataset: Any
    trained: bool | None


class Layers:
    """Goes through the layers of a model, in the order of its description.

    Args:
        file: that holds them.
        sequential_scopes: whether Sequential adds its name to the paths of its layers, as in
            Keras 3.
    """

    def __init__(self, file: Hdf5, *, sequential_scopes: bool = True):
        self._file = file
        self._sequential_scopes = sequential_scopes

    def variables(
        self,
        group: Any,
        layer: Layer,
        scope: Scope = (),
        parent: Layer | None = None,
        skip: Collection[str] = (),
    ) -> Iterator[Variable]:
        """The variables of a layer and of all layers in it.

        Args:
            group: of the layer.
            layer: described.
            scope: names that stand before that of the layer.
            parent: the layer it is in.
            skip: groups that hold no layers.
        """
        yield from self._own(group, layer, scope)
        scope = self._scope(layer, scope, parent)
        for key, child in self._groups(group):
            if key in _LISTS:
                inner = self._listed(child, layer)
            elif key in skip:
                continue
            elif self.has_variables(child):
                inner = iter([(child, self._held(key, child, layer))])
            else:  # an attribute with a list of layers
                inner = ((entry, self._entry(key, entry)) for key, entry in self._groups(child))
            for found, described in inner:
                yield from self.variables(found, described, scope, layer)

    def has_variables(self, group: Any) -> bool:
        """Whether a group is that of a layer; even one without variables has a place for them."""
        return is_group(self._file.child(group, _VARS))

    def name(self, group: Any) -> str | None:
        """The name of a layer, if its group says it."""
        found = self._file.texts(self._file.child(group, _VARS), "name")
        return found[0] if found else None

    def numbered(self, group: Any) -> list[tuple[str, Any]]:
        """The variables of a group in their order."""
        found = self._file.children(self._file.child(group, _VARS))
        if any(is_group(variable) for variable in found.values()):
            raise self._file.origin.damaged("HDF5 file of Keras", f"{group.name} is no layer")
        return sorted(found.items(), key=lambda item: (len(item[0]), item[0]))

    def _own(self, group: Any, layer: Layer, scope: Scope) -> Iterator[Variable]:
        if not self.has_variables(group):
            return
        variables = self.numbered(group)
        names = keras_names.variable_names(layer.kind, [key for key, _ in variables], layer.config)
        for name, (_, dataset) in zip(names, variables, strict=True):
            trained = layer.config.get("trainable") is not False and keras_names.is_trained(name)
            told = layer.in_order and not name.isdigit()
            path = "/".join([*scope, layer.name, name])
            yield Variable(path, dataset, trained if told else None)

    def _scope(self, layer: Layer, scope: Scope, parent: Layer | None) -> Scope:
        """The names before those of the layers in a layer."""
        if layer.kind in FUNCTIONAL:
            return ()
        if layer.kind == SEQUENTIAL:
            if not self._sequential_scopes:
                return scope
            if parent is None or parent.kind in (*FUNCTIONAL, SEQUENTIAL):
                return (layer.name,)  # it was built before it was put there
        return (*scope, layer.name)

    def _listed(self, group: Any, model: Layer) -> Iterator[tuple[Any, Layer]]:
        """The layers in the list of a model: a key is a class and a number."""
        found = dict(self._groups(group))
        configs = _by_key(model.config.get("layers"))
        order = {key: number for number, key in enumerate(configs)}
        for key in sorted(found, key=lambda key: order.get(key, len(order))):
            config = configs.get(key, {})
            name = self.name(found[key]) or str(config.get("name", key))
            kind = keras_names.without_number(key)
            yield found[key], Layer(name, kind, config, in_order=key in configs)

    def _entry(self, key: str, group: Any) -> Layer:
        """A layer in a list that another layer has as an attribute."""
        return Layer(self.name(group) or key, keras_names.without_number(key))

    def _held(self, key: str, group: Any, owner: Layer) -> Layer:
        """A layer that another one has as an attribute."""
        name, kind = keras_names.part(key, owner.kind)
        own = self.name(group)
        described = owner.config.get(_DESCRIBED_AS.get(key, key))
        if isinstance(described, dict) and isinstance(described.get("config"), dict):
            kind = keras_names.snake_case(str(described.get("class_name")))
            name = str(described["config"].get("name", name))
            return Layer(own or name, kind, described["config"])
        if own is not None and name == key:  # not one of those that Keras always holds there
            kind = keras_names.without_number(own)
        return Layer(own or name, kind)

    def _groups(self, group: Any) -> list[tuple[str, Any]]:
        children = self._file.children(group).items()
        return [(key, child) for key, child in children if key != _VARS and is_group(child)]


def _by_key(layers: Any) -> dict[str, dict[str, Any]]:
    """What is said of the layers in a list, by the keys that they have in the file."""
    found: dict[str, dict[str, Any]] = {}
    count: Counter[str] = Counter()
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and isinstance(layer.get("config"), dict):
            kind = keras_names.snake_case(str(layer.get("class_name")))
            found[f"{kind}_{count[kind]}" if count[kind] else kind] = layer["config"]
            count[kind] += 1
    return found
