"""What a source raises while TensorFlow reads it, brought to whoever waits for the batch."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Iterator

import tensorflow as tf

from pipefit.errors import DataError, PipefitError, TrainingError

#: The reason in a message of TensorFlow stands before the traceback of a Python function,
_IN_PYTHON = re.compile(r"^(.+)\nTraceback \(most recent call last\):", re.MULTILINE)
#: else before the first node that is named,
_REASON = re.compile(
    r"^(?: *\(\d+\) [A-Z_]+: *)?(?:assertion failed: )?(.+)\n[ \t]*\[\[\{\{node", re.MULTILINE
)
#: and behind names of nodes and datasets.
_PLACES = re.compile(
    r"^(?:\{\{.*?\}\} )*(?:Error in user-defined function passed to .*? with iterator: "
    r"[\w:\[\]]+: )?"
)
#: The operation that failed if the data did, and not the model.
_NEXT = re.compile(r"IteratorGetNext(?:_\d+)?\]")

#: Our own frames say nothing to whoever wrote the source.
_OURS = "pipefit.training."


class Failures:
    """What a source raised while TensorFlow was reading it.

    TensorFlow hands on an exception's text only, inside of its own: so the exception is kept here
    under a mark, and found again by the mark in TensorFlow's message.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Exception] = {}

    def keep(self, error: Exception) -> RuntimeError:
        """Keep an exception; what to raise in its place, inside of TensorFlow."""
        mark = f"<source failure {id(self):x}/{len(self._kept)}>"
        self._kept[mark] = error
        return RuntimeError(mark)

    def has(self, error: BaseException) -> bool:
        """Whether it is one of the kept exceptions."""
        return any(error is kept for kept in self._kept.values())

    def surfacing(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what TensorFlow raises for kept exceptions is raised as these exceptions.

        Its other errors become `DataError` (of what is read) or `TrainingError`, with the reason,
        which it tells last, first.
        """
        return self.surfacing_of([self])

    @staticmethod
    @contextlib.contextmanager
    def surfacing_of(several: Iterable[Failures]) -> Iterator[None]:
        """As `surfacing`, for what several sources raised."""
        several = list(several)
        try:
            yield
        except tf.errors.OpError as error:
            kept = [e for f in several for mark, e in f._kept.items() if mark in error.message]
            if kept:
                raise kept[0] from kept[0].__cause__
            raise _told(error) from error


def _told(error: tf.errors.OpError) -> PipefitError:
    """An error of TensorFlow with its reason first."""
    message = error.message
    reason = reason_of(error)
    if not _IN_PYTHON.search(message):
        reason = f"{type(error).__name__}: {reason}"
    if _NEXT.search(message):
        return DataError(f"the data: {reason}\n{message}")
    return TrainingError(f"{reason}\n{message}")


def reason_of(error: tf.errors.OpError) -> str:
    """The line of an error of TensorFlow's that says what is wrong, without where."""
    found = _IN_PYTHON.search(error.message) or _REASON.search(error.message)
    line = found[1] if found else error.message.split("\n")[0]
    return _PLACES.sub("", line).partition(" [Op:")[0]


def explained(error: BaseException, what: str) -> Exception:
    """The error to show: ours as they are, the source's own with what was tried and where.

    Args:
        error: as it was caught.
        what: was tried, such as "Photos: take() of 8 examples (3, 7, 9, ...)".
    """
    if isinstance(error, PipefitError):
        return error
    frames = error.__traceback__
    while frames and frames.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        frames = frames.tb_next
    details = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    shown = DataError(f"{what} failed with {type(error).__name__}: {error}\n{details}")
    shown.__cause__ = error
    return shown
