"""The names of tensors: of a run's state, by the user's rules, and the usual ones of TensorFlow 1.

>>> chosen = choose(["net/conv1/weights", "net/fc/weights"], Rules("net/", include=("conv",)))
>>> chosen.names, chosen.left_out
({'net/conv1/weights': 'conv1/weights'}, ['net/fc/weights'])
>>> usual("conv1/weights:0") == usual("conv1/kernel")
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipefit.errors import LoadError

Role = Literal["model", "optimizer", "other"]

_MODEL = "model/"
#: Parts of a training's state that belong to its optimizers.
_OF_UPDATES = ("optimizer/", "average/", "loss_scale/")

#: What the last part of a name is called in Keras 3.
_LAST = {
    "weights": "kernel", "W": "kernel", "w": "kernel",
    "biases": "bias", "b": "bias",
}  # fmt: skip
_POWERS = ("beta1_power", "beta2_power")
_NORMALISATION = re.compile(r"(?:BatchNorm|batch_?norm(?:alization)?|bn)(?P<number>_\d+)?")


@dataclass(frozen=True)
class Rules:
    """What a user says about the names of a source, in the order in which it is done.

    Attributes:
        strip_prefix: is taken from the names that begin with it; the others stay as they are.
        rename: by regular expression (re.search) what replaces each match, one after the other.
        include: only names that one of these matches; none: all. Like `exclude`, it sees the
            source's own name, before anything is stripped or renamed.
        exclude: not names that one of these matches.
    """

    strip_prefix: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def renamed(self, name: str) -> str:
        """The name after stripping and all renaming."""
        name = name.removeprefix(self.strip_prefix)
        for pattern, replacement in self.rename.items():
            name = re.sub(pattern, replacement, name)
        return name

    def takes(self, name: str) -> bool:
        """Whether include and exclude let the source's own name through."""
        wanted = not self.include or any(re.search(pattern, name) for pattern in self.include)
        return wanted and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Whether exclude names it."""
        return any(re.search(pattern, name) for pattern in self.exclude)


@dataclass(frozen=True)
class Chosen:
    """What rules make of the names of a source.

    Attributes:
        names: by the source's own name the one it is loaded as.
        left_out: own names that include and exclude leave out.
    """

    names: dict[str, str]
    left_out: list[str]


def choose(
    names: Sequence[str], rules: Rules, where: str = "", *, others: Sequence[str] = ()
) -> Chosen:
    """Apply rules to the names of a source.

    Args:
        names: of its variables, as the source calls them.
        rules: of the user.
        where: place of the rules, for messages.
        others: further names that `exclude` may be about.

    Raises:
        LoadError: a rule matches nothing, or two tensors would have one name.
    """
    kept = [name for name in names if rules.takes(name)]
    useless = [
        *_useless("include", rules.include, names),
        *_useless("exclude", rules.exclude, [*names, *others]),
        *_useless_renaming(rules, kept),
    ]
    if useless:
        raise LoadError(
            f"{_at(where, useless[0])} matches none of the names; a rule that does nothing is "
            f"refused: correct it, or leave it out\n"
            + "".join(f"  matches nothing: {rule}\n" for rule in useless)
            + listed("the names are", names)
        )
    chosen = {name: rules.renamed(name) for name in kept}
    _refuse_doubles(chosen, where)
    return Chosen(chosen, [name for name in names if name not in chosen])


def _useless(key: str, patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    names = list(names)
    return [
        f"{key} {pattern!r}"
        for pattern in patterns
        if not any(re.search(pattern, name) for name in names)
    ]


def _useless_renaming(rules: Rules, names: Sequence[str]) -> list[str]:
    found = []
    if rules.strip_prefix and not any(name.startswith(rules.strip_prefix) for name in names):
        found.append(f"strip_prefix {rules.strip_prefix!r}")
    now = [name.removeprefix(rules.strip_prefix) for name in names]
    for pattern, replacement in rules.rename.items():
        if not any(re.search(pattern, name) for name in now):
            found.append(f"rename {pattern!r}")
        now = [re.sub(pattern, replacement, name) for name in now]
    return found


def _refuse_doubles(chosen: Mapping[str, str], where: str) -> None:
    by_name: dict[str, list[str]] = {}
    for own, name in chosen.items():
        by_name.setdefault(name, []).append(own)
    for name, owns in by_name.items():
        if len(owns) > 1:
            raise LoadError(
                f"{_at(where, 'rename')}: {' and '.join(owns)} would both be loaded as {name!r}; "
                f"change rename or strip_prefix, or exclude one of them"
            )


def _at(where: str, what: str) -> str:
    return f"{where}: {what}" if where else what


def listed(title: str, names: Sequence[str], most: int = 20) -> str:
    """The names in one line, if they are many only the first."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"  {title}: {', '.join(names[:most]) or 'none'}{more}"


def usual(name: str) -> str:
    """One text for the names that TensorFlow 1 and Keras 3 usually give the same variable.

    weights, W and w are kernel, biases and b are bias; BatchNorm, batch_normalization, bn and the
    like are one; a ":0" at the end says nothing.
    """
    *scopes, last = name.removesuffix(":0").split("/")
    parts = []
    for scope in scopes:
        before, _, end = scope.rpartition("_")
        if before and _NORMALISATION.fullmatch(end):  # conv1_bn
            parts += [before, "batchnorm"]
        elif found := _NORMALISATION.fullmatch(scope):
            parts.append(f"batchnorm{found['number'] or ''}")
        else:
            parts.append(scope)
    return "/".join([*parts, _LAST.get(last, last)])


# ---- the state of a training, as checkpoints of Pipefit have it ----


def of_state(names: Iterable[str]) -> dict[str, tuple[str, Role]]:
    """What the tensors of a training's state are called here, and what they are for.

    A variable of the model is called by its path; all others as in the state.

        >>> of_state(["model/out/kernel", "run/step"])
        {'model/out/kernel': ('out/kernel', 'model'), 'run/step': ('run/step', 'other')}
    """
    names = dict.fromkeys(names)
    found: dict[str, tuple[str, Role]] = {}
    for name in names:
        path = name.removeprefix(_MODEL)
        if path == name:
            found[name] = name, "optimizer" if name.startswith(_OF_UPDATES) else "other"
        else:
            role: Role = "other" if is_seed(path) else "model"
            found[name] = (name if path in names else path), role
    return found


def is_seed(name: str) -> bool:
    """Whether a variable of a model is the state of one of its random generators."""
    return name.rpartition("/")[2] == "seed_generator_state"


def is_counter(name: str) -> bool:
    """Whether a part of an optimizer's state tells how many updates it has done.

    Schedules go by Keras' iteration; the powers of TensorFlow 1's Adam are the same in other words.
    """
    last = name.rpartition("/")[2]
    return last in _POWERS or (name.startswith("optimizer/") and last == "iteration")
