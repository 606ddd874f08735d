"""From gradients to updates, on one or several devices. See `Updates`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from pipefit.errors import SpecError, TrainingError
from pipefit.training.updating.averaging import Averages
from pipefit.training.updating.gradients import Clip, all_finite, distinct
from pipefit.training.updating.loss_scaling import LossScale
from pipefit.training.updating.rates import Group, Rates, adapt, check_optimizer


@dataclass(frozen=True)
class Part:
    """An optimizer and the variables it updates.

    Attributes:
        optimizer: a keras.optimizers.Optimizer, not built yet.
        name: of its table [optimizers.NAME]; "" if it is the only one, [optimizer].
        match: regex, looked for in the paths of its variables; None: all trainable variables.
        clip: of the gradients of its variables.
        groups: learning rates of some of its variables.
        weight_decay_on: regex of the variables to which the optimizer's weight_decay applies;
            None: all of its variables.
    """

    optimizer: Any
    name: str = ""
    match: str | None = None
    clip: Clip | None = None
    groups: Sequence[Group] = ()
    weight_decay_on: str | None = None

    @property
    def where(self) -> str:
        """Dotted key in the experiment file, for messages."""
        return f"optimizers.{self.name}" if self.name else "optimizer"


class Updates:
    """What turns the gradients of one model's trainable variables into updates of them.

        on every device:  gradients = tape.gradient(updates.scaled(loss), updates.trainable)
                          gradients = updates.unscaled(summed(gradients))    # over the devices
        finite = updates.finite(gradients)
        if finite:
            on every device:  updates.apply(gradients):
                                  every part: clip, then its optimizer, with its groups' rates
                                  averages of the weights
        updates.rescale(finite)

    Without loss scaling every step is applied, and only `apply` remains.
    The sum comes before clipping, so several devices do what one does.

    Args:
        model: built; only what is trainable now is ever updated.
        parts: every trainable variable matches exactly one.
        average: momentum of the averaged weights, see `Averages`; None: there are none.
        loss_scaling: dynamic loss scaling, see `LossScale`.
        rate_scale: factor on all learning rates. Like constant learning rates it is not state.

    Raises:
        SpecError: naming the table and what is wrong with it.
    """

    def __init__(
        self,
        model: keras.Model,
        parts: Sequence[Part],
        *,
        average: float | None = None,
        loss_scaling: bool = False,
        rate_scale: float = 1.0,
    ):
        self.trainable: list[Any] = list(model.trainable_variables)
        owned = _distributed(self.trainable, parts)
        self._rate_scale = tf.Variable(rate_scale, trainable=False, dtype=tf.float32)
        self._parts = [
            _BoundPart(part, [self.trainable[i] for i in indices], self._rate_scale)
            for part, indices in zip(parts, owned, strict=True)
        ]
        self._owned = owned
        self._averages = Averages(self.trainable, average) if average is not None else None
        self.loss_scaling = loss_scaling
        self._loss_scale = LossScale() if loss_scaling else None
        self.rate_columns: tuple[str, ...] = tuple(
            column for part in self._parts for column in part.rate_columns
        )
        self.variables: dict[str, Any] = self._named_variables()

    @property
    def rate_scale(self) -> float:
        """Factor on all learning rates; may be set between steps."""
        return float(self._rate_scale.numpy())

    @rate_scale.setter
    def rate_scale(self, scale: float) -> None:
        self._rate_scale.assign(scale)

    @property
    def constants(self) -> list[Any]:
        """Variables that never change in a step and are not state: constant learning rates."""
        return [self._rate_scale, *(v for part in self._parts for v in part.constants)]

    def describe(self) -> list[dict[str, Any]]:
        """Of every part, as plain values: its table, its optimizer, and how much it updates."""
        return [part.describe() for part in self._parts]

    def rates(self) -> list[tf.Tensor]:
        """The learning rates of the next step, float32 scalars in the order of `rate_columns`."""
        return [rate for part in self._parts for rate in part.rates()]

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate."""
        return loss if self._loss_scale is None else self._loss_scale.scaled(loss)

    def unscaled(self, gradients: list[Any]) -> list[Any]:
        """Gradients of the loss itself, from those of the scaled one."""
        return gradients if self._loss_scale is None else self._loss_scale.unscaled(gradients)

    def finite(self, gradients: list[Any]) -> tf.Tensor:
        """Whether a step with these summed gradients is to be applied; a bool scalar."""
        return all_finite(gradients)

    def rescale(self, finite: tf.Tensor) -> None:
        """With loss scaling: take note of a step after it; not in a replica context."""
        if self._loss_scale is not None:
            self._loss_scale.rescale(finite)

    def apply(self, gradients: list[Any]) -> None:
        """Do one update; in a replica context.

        Args:
            gradients: one per trainable variable, unscaled and summed over the devices; None
                where the loss does not depend on the variable.

        Raises:
            TrainingError: if a part has no gradient at all.
        """
        gradients = distinct(gradients)
        for part, indices in zip(self._parts, self._owned, strict=True):
            part.apply([gradients[i] for i in indices])
        if self._averages is not None:
            self._averages.update()

    def done(self) -> int:
        """Updates applied and skipped so far.

        Raises:
            TrainingError: if the optimizers have not all done as many.
        """
        counts = {part.where: part.iterations() for part in self._parts}
        if len(set(counts.values())) > 1:
            each = ", ".join(f"{where} {count}" for where, count in counts.items())
            raise TrainingError(f"the optimizers count different numbers of updates: {each}")
        skipped = 0 if self._loss_scale is None else self._loss_scale.skipped()
        return next(iter(counts.values())) + skipped

    def check(self) -> None:
        """Raises Diverged if with loss scaling no step is good any more."""
        if self._loss_scale is not None:
            self._loss_scale.check()

    def average_values(self) -> Mapping[str, Any]:
        """The averages (variables) by the path of the model's variable; empty without averages."""
        return {} if self._averages is None else self._averages.values

    def _named_variables(self) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for part in self._parts:
            named.update(part.named_variables())
        named |= {f"average/{path}": v for path, v in self.average_values().items()}
        if self._loss_scale is not None:
            named |= {f"loss_scale/{name}": v for name, v in self._loss_scale.variables.items()}
        return named


class _BoundPart:
    """A part with the variables it matches, its optimizer made ready for them."""

    def __init__(self, part: Part, variables: Sequence[Any], rate_scale: Any):
        self._optimizer = part.optimizer
        self._variables = variables
        self._clip = part.clip or Clip()
        self.where = part.where
        self._prefix = f"optimizer/{part.name}/" if part.name else "optimizer/"
        paths = [v.path for v in variables]
        check_optimizer(part.optimizer, part.where)
        _check_groups(part, paths)
        _check_decay(part, paths)
        self._rates = Rates(paths, part.groups, rate_scale, part.weight_decay_on)
        adapt(part.optimizer, variables, self._rates)
        column = f"learning_rate/{part.name}" if part.name else "learning_rate"
        self.rate_columns = [column, *(f"{column}/{group.match}" for group in part.groups)]

    def describe(self) -> dict[str, Any]:
        return {
            "table": self.where,
            "type": type(self._optimizer).__name__,
            "variables": len(self._variables),
            "parameters": sum(math.prod(v.shape) for v in self._variables),
        }

    @property
    def constants(self) -> list[Any]:
        rate = self._optimizer._learning_rate
        return [rate.value] if isinstance(rate, keras.Variable) else []

    def rates(self) -> list[tf.Tensor]:
        rates = []
        for group in (None, *self._rates.groups):
            with self._rates.within(group):
                rates.append(tf.cast(self._optimizer.learning_rate, tf.float32))
        return rates

    def iterations(self) -> int:
        return int(tf.convert_to_tensor(self._optimizer.iterations.value))

    def apply(self, gradients: list[Any]) -> None:
        if all(g is None for g in gradients):
            raise TrainingError(
                f"{self.where}: the loss depends on none of its variables, "
                f"{', '.join(v.path for v in self._variables)}"
            )
        self._optimizer.apply(self._clip(gradients), self._variables)

    def named_variables(self) -> dict[str, Any]:
        """The optimizer's state by name, which does not depend on what else the process holds."""
        rate = self._optimizer._learning_rate
        named: dict[str, Any] = {}
        for variable in self._optimizer.variables:
            if variable is not rate:
                path = base = _stable_path(variable.path, self._optimizer)
                count = 1
                while self._prefix + path in named:
                    count += 1
                    path = f"{base}_{count}"
                named[self._prefix + path] = variable.value
        return named


def _stable_path(path: str, optimizer: Any) -> str:
    """Without the numbers that Keras gives to things made in one process: adam_1 is adam."""
    first, slash, rest = path.partition("/")
    unnumbered = re.sub(r"_\d+$", "", first)
    generated = type(optimizer).__name__.lower() if slash else "variable"
    return unnumbered + slash + rest if unnumbered.replace("_", "") == generated else path


def _distributed(variables: Sequence[Any], parts: Sequence[Part]) -> list[list[int]]:
    """The indices of the variables of each part."""
    if not variables:
        raise SpecError("model: none of its variables is trainable, so there is nothing to train")
    _check_parts(parts)
    paths = [v.path for v in variables]
    owned: list[list[int]] = [
        [i for i, path in enumerate(paths) if part.match is None or re.search(part.match, path)]
        for part in parts
    ]
    wrong = []
    for i, path in enumerate(paths):
        names = [part.name for part, indices in zip(parts, owned, strict=True) if i in indices]
        if len(names) != 1:
            wrong.append(f"  {path}: {', '.join(names) or 'none'}")
    if wrong:
        raise SpecError(
            f"optimizers: {len(wrong)} of {len(paths)} trainable variables match no table or "
            f"several; change `match` so that every one matches exactly one\n" + "\n".join(wrong)
        )
    for part, indices in zip(parts, owned, strict=True):
        if not indices:
            raise _matches_nothing(f"{part.where}.match = {part.match!r}", paths)
    return owned


def _check_parts(parts: Sequence[Part]) -> None:
    names = [part.name for part in parts]
    if not parts or len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        raise SpecError(f"optimizers: {names}: there must be one, or several with different names")
    if len({id(part.optimizer) for part in parts}) < len(parts):
        raise SpecError("optimizers: every part needs an optimizer of its own")


def _check_groups(part: Part, paths: Sequence[str]) -> None:
    for group in part.groups:
        if not any(re.search(group.match, path) for path in paths):
            raise _matches_nothing(f"{part.where}.groups: match = {group.match!r}", paths)
        if group.learning_rate is not None and group.scale != 1.0:
            raise SpecError(
                f"{part.where}.groups: match = {group.match!r} has both scale and learning_rate; "
                f"leave one out"
            )
    matches = [group.match for group in part.groups]
    if len(set(matches)) < len(matches):
        raise SpecError(
            f"{part.where}.groups: match = {max(matches, key=matches.count)!r} is there twice; "
            f"only the first would count"
        )


def _check_decay(part: Part, paths: Sequence[str]) -> None:
    if part.weight_decay_on is None:
        return
    where = f"{part.where}.weight_decay_on = {part.weight_decay_on!r}"
    # Muon has another one for what it leaves to Adam.
    if not (part.optimizer.weight_decay or getattr(part.optimizer, "adam_weight_decay", None)):
        raise SpecError(f"{where}: the optimizer has no weight_decay; give it one")
    if not any(re.search(part.weight_decay_on, path) for path in paths):
        raise _matches_nothing(where, paths)


def _matches_nothing(where: str, paths: Sequence[str]) -> SpecError:
    return SpecError(f"{where} matches no trainable variable; there are {', '.join(paths)}")
