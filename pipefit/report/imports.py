"""What came of an import, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pipefit.report.words import printable

_SHOWN = 5


class Imported(Protocol):
    """An experiment that was imported: `pipefit.transfer.tfutils.ImportedExperiment`."""

    @property
    def exp_id(self) -> str:
        """The experiment."""

    @property
    def collection(self) -> str:
        """Where the run is."""

    @property
    def name(self) -> str:
        """Of the run."""

    @property
    def new(self) -> bool | None:
        """Whether it was stored; None: nothing was."""

    @property
    def trained(self) -> int:
        """How many steps have values."""

    @property
    def checkpoints(self) -> Sequence[int]:
        """Their steps."""

    @property
    def validations(self) -> int:
        """How many there are."""

    @property
    def items(self) -> Sequence[str]:
        """Pickled files."""

    @property
    def read(self) -> Sequence[str]:
        """Those that are part of the run."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Why others are not, if they were to be."""

    @property
    def skipped(self) -> Mapping[str, int]:
        """Values that were left out, by name how often."""


def imported_text(done: Imported) -> str:
    """What `pipefit import-tfutils` prints about an experiment."""
    return "\n".join(map(printable, _lines(done)))


def _lines(done: Imported) -> Iterator[str]:
    words = {True: "imported", False: "was there already, the same", None: "would be imported"}
    steps = _some(list(map(str, done.checkpoints)))
    yield f"{done.collection}/{done.name} {words[done.new]}, of experiment {done.exp_id}"
    yield f"  training     {_count(done.trained, 'step')}"
    yield f"  checkpoints  {len(done.checkpoints)}{f', of steps {steps}' if steps else ''}"
    yield f"  validations  {done.validations}"
    for name, count in done.skipped.items():
        yield f"  left out     {name}, {_count(count, 'time')}: it cannot be stored in a run"
    alone = [name for name in done.items if name not in {*done.read, *done.refused}]
    if done.read:
        yield f"  unpickled    {_count(len(done.read), 'file')}: {_some(done.read)}"
    for name, why in done.refused.items():
        yield f"  refused      {name}: {why}"
    if alone:
        yield (
            f"  left alone   {_count(len(alone), 'pickled file')}: {_some(alone)}; "
            "--unpickle-fileitems reads them, and --help says what that risks"
        )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    """The names, of many only the first and the last ones."""
    if len(names) <= 2 * _SHOWN + 1:
        return " ".join(names)
    return " ".join([*names[:_SHOWN], "...", *names[-_SHOWN:]])
