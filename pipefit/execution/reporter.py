"""What a worker has to tell while it carries out an order; see `Reporter`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

from pipefit.errors import without_passwords
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
        message = without_passwords(self.format(record))
        run = getattr(record, "run", "")
        step = getattr(record, "step", None) if run else self.step
        where = f" {run}" * bool(run) + ("" if step is None else f" step {step}")
        self._lines.append(f"{record.levelname}{where}: {message}")
        about = {"run": run} if run else {}
        self._emit(
            Event("log", {"level": record.levelno, "message": message, "step": step, **about})
        )

    def progress(self, values: dict[str, object]) -> None:
        """Hand on the state of a training."""
        self._emit(Event("progress", values))

    def text(self, text: str) -> None:
        """Hand on something to print."""
        self._emit(Event("text", {"text": text}))

    def tail(self) -> str:
        """The last lines that were logged, for the attempt's record."""
        return "\n".join(self._lines)


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what is about one of several runs of a process, with its name and step.

    Args:
        logger: receives it.
        run: the name; "" for a run that is alone: then all that is logged is about it.

    Attributes:
        step: where the run is; None before it begins.
    """

    def __init__(self, logger: logging.Logger, run: str) -> None:
        super().__init__(logger)
        self.step: int | None = None
        self._run = run

    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        """Add the name and the step."""
        return msg, {**kwargs, "extra": {"run": self._run, "step": self.step}}
