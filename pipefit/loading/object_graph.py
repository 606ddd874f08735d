"""Names and purposes of the variables in a TensorFlow 2 checkpoint, from its graph of objects.

Such a checkpoint calls a variable by a path of attributes, "model/_layers/1/kernel"; in the graph
variables have their own names. Here a variable is called by its own name where no other has it,
else by that path. Slots of Adam, AdamW, SGD and RMSprop are called as in Keras 3
("optimizer/adam/dense_kernel_momentum").

    >>> root = Node(children=(("net", 1), ("save_counter", 2)))
    >>> kernel = Node(variables=(("dense/kernel", "net/w/.ATTRIBUTES/VARIABLE_VALUE"),))
    >>> counter = Node(variables=(("save_counter", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"),))
    >>> [named.name for named in describe([root, kernel, counter]).values()]
    ['dense/kernel', 'save_counter']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipefit.loading import keras_names
from pipefit.loading.names import Role, is_seed

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"

# An optimizer is what counts its updates and has one of the others; by Keras 3, and 2.
_ITERATIONS = {"_iterations", "iterations", "iter"}
_OF_OPTIMIZERS = {"_variables", "_learning_rate", "learning_rate", "_trainable_variables"}
# What an optimizer holds of the model.
_NOT_ITS_OWN = "_trainable_variables"
# What Keras 2 keeps in a SavedModel beside the model's layers: metrics, for instance.
_BESIDE = "keras_api"
# Keras 3's `export` writes every variable twice.
_TWICE = ("_all_variables/", "variables/")
_COUNTERS = ("save_counter", "step", "global_step")


@dataclass(frozen=True)
class Node:
    """An object in the graph; the first is the checkpoint.

    Attributes:
        children: attributes and numbers of the objects in them.
        variables: own names, and keys in the checkpoint.
        slots: numbers of the objects that are slots of the optimizer that this object is.
    """

    children: Sequence[tuple[str, int]] = ()
    variables: Sequence[tuple[str, str]] = ()
    slots: Sequence[int] = ()


class Named(NamedTuple):
    """A variable's name, and what it is for."""

    name: str
    role: Role


def describe(nodes: Sequence[Node]) -> dict[str, Named]:
    """The variables of a checkpoint by their keys in it; what is there twice is left out once.

    Args:
        nodes: its graph; numbers of objects that are not there are passed over.
    """
    optimizers = [number for number, node in enumerate(nodes) if _is_optimizer(node)]
    closed = set(optimizers)
    trained = [
        child for o in optimizers for name, child in nodes[o].children if name == _NOT_ITS_OWN
    ]
    of_model = _reached(nodes, [0], closed) | _reached(nodes, trained, closed)
    own = [
        child for o in optimizers for name, child in nodes[o].children if name != _NOT_ITS_OWN
    ] + [slot for o in optimizers for slot in nodes[o].slots]
    of_optimizer = _reached(nodes, own, closed)
    found: dict[str, Named] = {}
    for number, node in enumerate(nodes):
        is_state = number in of_optimizer and number not in of_model
        for own_name, key in node.variables:
            found[key] = Named(own_name, _role(own_name, key, is_state=is_state))
    return _unique(_once(found))


def _is_optimizer(node: Node) -> bool:
    names = {name for name, _ in node.children}
    return bool(names & _ITERATIONS) and bool(names & _OF_OPTIMIZERS or node.slots)


def _reached(nodes: Sequence[Node], starts: Iterable[int], closed: set[int]) -> set[int]:
    """The objects that can be reached without going through those that are closed."""
    reached: set[int] = set()
    left = list(starts)
    while left:
        number = left.pop()
        if number in reached or number in closed or not 0 <= number < len(nodes):
            continue
        reached.add(number)
        left += [child for _, child in nodes[number].children]
    return reached


def _role(name: str, key: str, *, is_state: bool) -> Role:
    if is_state:
        return "optimizer"
    parts = key.split("/")
    if _BESIDE in parts or is_seed(name) or (len(parts) == 3 and parts[0] in _COUNTERS):
        return "other"
    return "model"


def _once(found: dict[str, Named]) -> dict[str, Named]:
    """Without the second copies of an export."""
    copies, originals = _TWICE
    kept = {named.name for key, named in found.items() if key.startswith(originals)}
    return {
        key: named
        for key, named in found.items()
        if not (key.startswith(copies) and named.name in kept)
    }


def _unique(found: dict[str, Named]) -> dict[str, Named]:
    """With names that are nobody else's."""
    count = Counter(named.name for named in found.values())
    variables = {n.name for n in found.values() if n.role == "model" and count[n.name] == 1}
    own = {key: _of_role(*named, variables) for key, named in found.items()}
    count = Counter(named.name for named in own.values())
    paths = {key: key.removesuffix(_SUFFIX) for key in found}
    return {
        key: named if named.name and count[named.name] == 1 else Named(paths[key], named.role)
        for key, named in own.items()
    }


def _of_role(name: str, role: Role, variables: Collection[str]) -> Named:
    if role != "optimizer" or not name:
        return Named(name, role)
    name = keras_names.of_optimizer(name, variables)
    return Named(name, keras_names.role_in_optimizer(name))
