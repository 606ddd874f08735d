"""Sources of weights, wherever they are: what `from` of a [[load]] table names, opened.

table = FromRun(name="digits-mlp", step="best")
with open_source(table, Around(collection="digits")) as source:
    weights = source.read(["hidden1/kernel"])
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit import settings
from pipefit.errors import ArchiveError, CheckpointCorrupt, LoadError, NotFound, without_passwords
from pipefit.loading import Source, TensorInfo
from pipefit.loading.names import of_state
from pipefit.spec import From, FromArchive, FromFile, FromRun, FromTfutils
from pipefit.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from pipefit.spec.sections.kinds import MetricRule
    from pipefit.store.base import RunReader, Store


@dataclass(frozen=True)
class Around:
    """What a source may be relative to.

    Attributes:
        uri: of the database in which runs are that name none.
        collection: of runs that name none; None: they must.
        folders: where archives are, by name.
        base: where a relative path is looked for after the current folder.
    """

    uri: str | None = None
    collection: str | None = None
    folders: Mapping[str, str] = field(default_factory=dict)
    base: Path | None = None


@contextmanager
def open_source(source: From, around: Around) -> Iterator[Source]:
    """Open what a table names; it is closed with the context.

    Raises:
        LoadError: it is not there, damaged, or of an unknown kind.
        StoreUnavailable: its database cannot be reached.
    """
    opened = _opened(source, around)
    try:
        yield StateSource(opened) if "run/step" in opened.tensors() else opened
    finally:
        opened.close()


def _opened(source: From, around: Around) -> Source:
    match source:
        case FromRun():
            return _of_run(source, around)
        case FromTfutils():
            from pipefit.execution.tfutils import open_tfutils

            return open_tfutils(_address(source.tfutils), source.exp_id, source.step)
        case FromFile():
            return _of_file(source, around.base)
    return _of_archive(source, around.folders)


def _of_file(source: FromFile, base: Path | None) -> Source:
    from pipefit.loading import open_file

    path = _address(source.path) if "://" in source.path else source.path
    try:
        return open_file(path, sha256=source.sha256, base=base, bundle=_bundle)
    except ArchiveError as error:
        raise LoadError(str(error)) from error


def _bundle(path: Path, label: str) -> Source:
    from pipefit.execution.worker import savers  # loads TensorFlow

    return savers.open_saver(path, label)


def _of_archive(source: FromArchive, folders: Mapping[str, str]) -> Source:
    if source.archive not in folders:
        raise LoadError(
            f"archive {source.archive!r} is not there: name the file itself by its path, or write "
            f"[archives.{source.archive}] and [[load]] into an experiment file"
        )
    from pipefit.loading import open_file

    return open_file(folders[source.archive], member=source.member, bundle=_bundle)


def _address(text: str) -> str:
    """An address as it is used: with environment variables, and never with a hidden password."""
    if "***" in text:
        raise LoadError(
            f"{without_passwords(text)}: has *** where a password was; put the password back, or "
            f"${{NAME}} for that of an environment variable"
        )
    return settings.with_environment("load.from", text)


# ---- runs ----


def _of_run(source: FromRun, around: Around) -> RunSource:
    uri = around.uri if source.database is None else _address(source.database)
    store = open_store(uri)
    collection = source.collection or around.collection
    if collection is None:
        raise LoadError(f"run {source.name!r}: say in which collection it is (collection)")
    try:
        run = store.run(source.name, collection)
    except NotFound as error:
        raise LoadError(f"{error}{_nothing_there(store)}") from error
    return RunSource(run, chosen_step(run, source.step), store.describe())


def _nothing_there(store: Store) -> str:
    known = store.collections()
    nothing = "it has no runs at all: is the address right?"
    there = f"its collections are: {', '.join(known)}" if known else nothing
    return f"; this is the database {store.describe()}, {there}"


def chosen_step(run: RunReader, choice: int | str | MetricRule) -> int:
    """The step of the checkpoint that is meant.

    Args:
        run: whose it is.
        choice: see `pipefit.spec.sections.loading.WhichStep`.

    Raises:
        LoadError: the run keeps no such checkpoint.
    """
    try:
        if choice == "newest":
            return run.checkpoint().step
        if choice == "best":
            best = run.document()["best"]
            if best is None:
                raise LoadError(
                    f"run {run.name!r} knows no best checkpoint (save.best): say which step, or "
                    f"{{ metric = ..., mode = ... }}"
                )
            return run.checkpoint(int(best["step"])).step
        if isinstance(choice, int):
            return run.checkpoint(choice).step
    except NotFound as error:
        raise LoadError(str(error)) from error
    return _best_kept(run, choice)  # type: ignore[arg-type]


def _best_kept(run: RunReader, rule: MetricRule) -> int:
    """Of the checkpoints that are kept and were validated, the one with the best value."""
    table = run.validations()
    metric = rule.metric.removeprefix(f"{rule.validation}/")
    kept = {int(step) for step in run.checkpoints()["step"]}
    found: dict[int, float] = {}
    if metric in table:
        for row in table[table["set"] == rule.validation].to_dict("records"):
            if row["step"] in kept and math.isfinite(row[metric]):
                found[int(row["step"])] = float(row[metric])
    if not found:
        rows = {f"{name}/{key}" for name in set(table["set"]) for key in table.columns[5:]}
        raise LoadError(
            f"run {run.name!r}: no checkpoint that it keeps (steps "
            f"{', '.join(map(str, sorted(kept))) or 'none'}) has {rule.metric!r} validated; there "
            f"are {', '.join(sorted(rows)) or 'no validations'}"
        )
    ordered = sorted(found)  # of equal ones the first, as everywhere
    return (max if rule.mode == "max" else min)(ordered, key=found.__getitem__)


@contextmanager
def _told(label: str) -> Iterator[None]:
    """A checkpoint that is damaged, or was removed meanwhile, is a source that cannot be read."""
    try:
        yield
    except (NotFound, CheckpointCorrupt) as error:
        raise LoadError(f"{label}: {error}") from error


class RunSource:
    """`pipefit.loading.Source` of a run's checkpoint, by the names of its state.

    Args:
        run: whose it is.
        step: of a committed checkpoint.
        database: for people.
    """

    def __init__(self, run: RunReader, step: int, database: str = "") -> None:
        place = f" of {database}" if database else ""
        self.label = f"run {run.collection}/{run.name} at step {step}{place}"
        self.step: int | None = step
        self._run, self._step = run, step
        with _told(self.label):
            self.digest: str | None = run.checkpoint(step).sha256
            stored = run.tensors(step)
        self._facts = {name: TensorInfo(found.dtype, found.shape) for name, found in stored.items()}

    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors of the checkpoint."""
        return dict(self._facts)

    def read(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named tensors; of what is read whole length and sha256 are verified."""
        if not names:
            return {}
        pattern = "|".join(re.escape(name) for name in names)
        whole = set(names) == self._facts.keys()
        with _told(self.label):
            return self._run.weights(self._step, None if whole else rf"\A(?:{pattern})\Z")

    def close(self) -> None:
        """Nothing is open between two reads."""


class StateSource:
    """A source that has the whole state of a training: variables are called by their paths."""

    def __init__(self, state: Source) -> None:
        self.label, self.step, self.digest = state.label, state.step, state.digest
        self._state = state
        facts = state.tensors()
        named = of_state(facts)
        self._own = {name: own for own, (name, _) in named.items()}
        self._facts = {
            name: TensorInfo(facts[own].dtype, facts[own].shape, role)
            for own, (name, role) in named.items()
        }
        if self.step is None:
            self.step = int(state.read(["run/step"])["run/step"])

    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors, with what they are for."""
        return dict(self._facts)

    def read(self, names: Collection[str]) -> dict[str, np.ndarray[Any, Any]]:
        """The named tensors."""
        found = self._state.read([self._own[name] for name in names])
        return {name: found[self._own[name]] for name in names}

    def close(self) -> None:
        """Close what it is of."""
        self._state.close()
