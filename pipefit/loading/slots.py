"""The slots of optimizers: which variable each belongs to, so that they follow its name.

>>> slots = Slots(["enc/dense/kernel", "enc/dense/bias"])
>>> slots.of("optimizer/adam/enc_dense_kernel_velocity")
Slot(variable='enc/dense/kernel', kind='adam/velocity')
>>> slots.of("enc/dense/kernel/Adam_1")
Slot(variable='enc/dense/kernel', kind='adam/velocity')
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_AVERAGE = "average/"
_OPTIMIZER = "optimizer/"

#: TensorFlow 1 calls slots by its optimizers; of these the values mean the same in Keras 3.
_OF_TENSORFLOW_1 = {"Adam": "adam/momentum", "Adam_1": "adam/velocity"}

#: What TensorFlow 1's momentum is for people: no slot of Keras 3 has these values.
MOMENTUM = "Momentum"


class Slot(NamedTuple):
    """A slot of a variable.

    Attributes:
        variable: whose it is.
        kind: of optimizer and slot, for instance "adam/velocity"; "average" of the average.
    """

    variable: str
    kind: str


class Slots:
    """Tells of which of some variables a slot is.

    Args:
        variables: the names of the model's variables, as the source of the slots calls them.
    """

    def __init__(self, variables: Collection[str]):
        self._variables = set(variables)
        self._flat = {name.replace("/", "_"): name for name in variables}

    def of(self, name: str) -> Slot | None:
        """The slot that a part of the state is; None if it belongs to none of the variables."""
        if name.startswith(_AVERAGE):
            variable = name.removeprefix(_AVERAGE)
            return Slot(variable, "average") if variable in self._variables else None
        if name.startswith(_OPTIMIZER):
            # A run that was imported has the names of TensorFlow 1 below it.
            return self._of_keras(name) or self._of_tensorflow_1(name.removeprefix(_OPTIMIZER))
        return self._of_tensorflow_1(name)

    def _of_tensorflow_1(self, name: str) -> Slot | None:
        # [SCOPE OF THE OPTIMIZER/]NAME_OF_THE_VARIABLE/SLOT
        *parts, last = name.split("/")
        for begin in range(len(parts)):
            if (variable := "/".join(parts[begin:])) in self._variables:
                return Slot(variable, _OF_TENSORFLOW_1.get(last, last))
        return None

    def _of_keras(self, name: str) -> Slot | None:
        # optimizer/[TABLE/]TYPE/PATH_OF_THE_VARIABLE_SLOT
        before, _, flat = name.rpartition("/")
        # Without the number that Keras gives to the second optimizer of a process.
        optimizer = re.sub(r"_\d+$", "", before.rpartition("/")[2])
        end = flat.rfind("_")
        while end > 0:  # the longest wins: a/b and a may both be variables
            if (variable := self._flat.get(flat[:end])) is not None:
                return Slot(variable, f"{optimizer}/{flat[end + 1 :]}")
            end = flat.rfind("_", 0, end)
        return None
