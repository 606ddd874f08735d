"""What a person sees of a running worker: one bar or plain lines, and Luigi's web page."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import luigi
from tqdm import tqdm

from pipefit.execution import Event

#: The web page gets news this often, a screen without a terminal this often; seconds.
_PAGE_SECONDS = 1.0
_LINE_SECONDS = 10.0


class Display:
    """Shows the events of one worker.

    Args:
        task: the Luigi task that runs it.
        label: the run, in front of every line.
        steps: the last step; 0 shows no progress.
    """

    def __init__(self, task: luigi.Task, label: str, steps: int):
        self._task, self._label, self._steps = task, label, steps
        self._logger = logging.getLogger("pipefit.run")
        self._step = 0
        self._paged = self._lined = 0.0
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if event.kind == "log":
            where = f"{self._label} step {self._step}" if self._steps else self._label
            self._logger.log(event.values["level"], "%s: %s", where, event.values["message"])
        elif event.kind == "progress" and self._steps:
            self._progress(event.values)

    def _progress(self, values: Mapping[str, Any]) -> None:
        self._step = values["step"]
        text = describe(values)
        now = time.monotonic()
        last = self._step >= self._steps
        if sys.stderr.isatty():
            self._show_bar(values)
        elif now - self._lined >= _LINE_SECONDS or last:
            self._lined = now
            self._logger.info("%s: %s", self._label, text)
        if now - self._paged >= _PAGE_SECONDS or last:
            self._paged = now
            self._task.set_progress_percentage(100 * self._step / self._steps)
            self._task.set_status_message(f"{self._label}: {text}")

    def _show_bar(self, values: Mapping[str, Any]) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=self._steps, initial=self._step, desc=self._label, unit="step", leave=True
            )
        rate = f", {values['rate']:,.0f} examples/s" if values["rate"] else ""
        self._bar.set_postfix_str(f"loss {values['loss']:.4g}{rate}")
        self._bar.update(self._step - self._bar.n)


def describe(values: Mapping[str, Any]) -> str:
    """One line: step, percent, loss, and as soon as they are known speed and time left."""
    step, steps = values["step"], values["steps"]
    parts = [f"step {step}/{steps} ({100 * step / steps:.0f} %)", f"loss {values['loss']:.4g}"]
    if values["rate"]:
        parts.append(f"{values['rate']:,.0f} examples/s")
        parts.append(f"{_duration(values['seconds_left'])} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
