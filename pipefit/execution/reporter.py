"""What a worker has to tell while it carries out an order; see `Reporter`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from pipefit.execution.order import Event

Emit = Callable[[Event], None]

_TAIL_LINES = 200


class Reporter(logging.Handler):
    """Hands on progress, and all that is logged with the step at which it was.

    As a context it takes what is logged anywhere in the process, except by Luigi.

    Args:
        emit: receives the events; called by any thread.

    Attributes:
        step: where the training is; None before it begins.
    """

    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self.step: int | None = None
        self._emit = emit
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self.addFilter(lambda record: not record.name.startswith("luigi"))

    def __enter__(self) -> Reporter:
        root, ours = logging.getLogger(), logging.getLogger("pipefit")
        # Inside of Luigi's process ours has a handler for the screen, where the events end up.
        self._before = ours.handlers, ours.propagate, ours.level
        ours.handlers, ours.propagate = [], True
        ours.setLevel(logging.INFO)
        root.addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger().removeHandler(self)
        ours = logging.getLogger("pipefit")
        ours.handlers, ours.propagate, level = self._before
        ours.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on a record."""
        message, where = self.format(record), "" if self.step is None else f" step {self.step}"
        self._lines.append(f"{record.levelname}{where}: {message}")
        self._emit(Event("log", {"level": record.levelno, "message": message, "step": self.step}))

    def progress(self, values: dict[str, object]) -> None:
        """Hand on the state of a training."""
        self._emit(Event("progress", values))

    def tail(self) -> str:
        """The last lines that were logged, for the attempt's record."""
        return "\n".join(self._lines)
