"""The log lines of a run, whole, in a file on this machine; a store keeps the last of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pipefit.execution.order import Event

logger = logging.getLogger("pipefit.run")


@contextmanager
def kept_lines(path: Path, on_event: Callable[[Event], None]) -> Iterator[Callable[[Event], None]]:
    """Append log lines to a file before they are handed on.

    That it cannot be written, such as on a full disk, is a warning and stops nothing.

    Args:
        path: the file; its folder is there.
        on_event: receives the events.
    """
    file: IO[str] | None = None

    def keep(event: Event) -> None:
        nonlocal file
        if event.kind == "log" and file is not None:
            try:
                file.write(_line(event.values))
            except OSError as error:
                logger.warning("%s: no more log lines are kept here: %s", path, error.strerror)
                file = None
        on_event(event)

    try:
        file = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        logger.warning("%s: no log lines are kept here: %s", path, error.strerror)
    opened = file
    try:
        yield keep
    finally:
        if opened is not None:
            _close(opened)


def _line(values: Mapping[str, Any]) -> str:
    level, step, run = logging.getLevelName(values["level"]), values["step"], values.get("run")
    where = (f" {run}" if run else "") + ("" if step is None else f" step {step}")
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{now} {level}{where}: {values['message']}\n"


def _close(file: IO[str]) -> None:
    try:
        file.close()
    except OSError:
        logger.debug("%s was not written to its end", file.name)
