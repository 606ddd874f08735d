"""What the tensors of a file are for, where the file has nothing but their names."""

from __future__ import annotations

from collections.abc import Collection

from pipefit.loading.names import Role, is_seed

#: What TensorFlow 1 calls the number of updates, and a training's state of Pipefit.
STEP, STATE_STEP = "global_step", "run/step"

#: Counters of TensorFlow 1 optimizers, which belong to no variable.
_COUNTERS = ("beta1_power", "beta2_power")
_AVERAGE = "ExponentialMovingAverage"


def roles(names: Collection[str]) -> dict[str, Role]:
    """What tensors are for, told by the names that TensorFlow 1 gives them.

    >>> list(roles(["a/kernel", "a/kernel/Momentum", "train/a/kernel/Adam_1"]).values())
    ['model', 'optimizer', 'optimizer']
    """
    known = set(names)
    return {name: _role(name, known) for name in names}


def _role(name: str, known: set[str]) -> Role:
    owner, _, last = name.rpartition("/")
    if last in (STEP, _AVERAGE) or is_seed(name):
        return "other"
    if last in _COUNTERS:
        return "optimizer"
    # A slot is named after its variable, perhaps within the scope of its optimizer.
    parts = owner.split("/")
    if any("/".join(parts[begin:]) in known for begin in range(len(parts))):
        return "optimizer"
    return "model"
