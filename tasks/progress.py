"""What a person sees of a running worker: one bar or plain lines, and Luigi's web page."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import luigi
from luigi.rpc import RPCError

from pipefit.execution import Event, progress_text
from tasks.base import LOGGERS

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger(__name__)

#: The web page gets news this often, a screen without a terminal this often; seconds.
_PAGE_SECONDS = 1.0
_LINE_SECONDS = 10.0
#: Fits into 80 columns; the speed is told in examples, as everywhere.
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
#: Pause after the page could not be reached, seconds.
_PAGE_PAUSE = 300.0


class Display:
    """Shows the events of one worker: one bar and one percentage, however many runs it trains.

    Args:
        task: the Luigi task that runs it.
        label: what it does, in front of every line.
        steps: the last step; 0 shows no progress.
        runs: labels of the runs that it trains, by their names, for lines about one of them.
    """

    def __init__(self, task: luigi.Task, label: str, steps: int, runs: Mapping[str, str]):
        self._task: Any = task
        self._label, self._steps, self._runs = label, steps, runs
        self._newest: dict[str, Mapping[str, Any]] = {}
        self._paged = self._lined = -math.inf
        self._at_end = False
        self._bar: tqdm[Any] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if event.kind == "log":
            label = self._runs.get(event.values.get("run", ""), self._label)
            step = event.values["step"]
            where = label if step is None else f"{label} step {step}"
            logger.log(event.values["level"], "%s: %s", where, event.values["message"])
        elif event.kind == "text":
            print(event.values["text"], flush=True)
        elif event.kind == "progress" and self._steps:
            self._newest[event.values.get("run", "")] = event.values
            self._progress(slowest(self._newest))

    def _progress(self, values: Mapping[str, Any]) -> None:
        text = progress_text(values)
        if len(self._newest) > 1:
            text += f" (slowest of {len(self._newest)}: {values['run']})"
        now = time.monotonic()
        last = values["step"] >= self._steps and not self._at_end
        self._at_end = values["step"] >= self._steps
        if sys.stderr.isatty():
            self._show_bar(values)
        elif now - self._lined >= _LINE_SECONDS or last:
            self._lined = now
            logger.info("%s %s", self._label, text)
        if now - self._paged >= _PAGE_SECONDS or last:
            self._paged = now
            self._tell_page(100 * values["step"] / self._steps, text)

    def _tell_page(self, percentage: float, text: str) -> None:
        try:
            self._task.set_progress_percentage(percentage)
            self._task.set_status_message(f"{self._label} {text}")
        except RPCError as error:
            # Luigi has tried for a minute. The training needs no page, so it goes on without.
            logger.warning("%s: %s; the training goes on", self._label, error)
            self._paged = time.monotonic() + _PAGE_PAUSE

    def _show_bar(self, values: Mapping[str, Any]) -> None:
        if self._bar is None:
            self._bar = self._open_bar(values["step"])
        rate = f", {values['rate']:,.0f} examples/s" if values["rate"] else ""
        self._bar.set_postfix_str(f"loss {values['loss']:.4g}{rate}", refresh=False)
        self._bar.update(values["step"] - self._bar.n)

    def _open_bar(self, step: int) -> tqdm[Any]:
        from tqdm import tqdm
        from tqdm.contrib.logging import logging_redirect_tqdm

        # Lines go above the bar; a logger that somebody has sent elsewhere stays as it is.
        self._stack.enter_context(
            logging_redirect_tqdm([known for known in LOGGERS if known.handlers])
        )
        # Some terminals, of containers say, do not tell their size: no bar would be seen there.
        columns, rows = shutil.get_terminal_size()
        bar = tqdm(
            total=self._steps,
            initial=step,
            desc=self._label,
            bar_format=_BAR,
            ncols=columns,
            nrows=rows,
        )
        return self._stack.enter_context(bar)


def slowest(newest: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The progress of the run that is waited for; once all are over, of the one that came furthest.

    Args:
        newest: of every run its newest progress.
    """
    going_on = [values for values in newest.values() if not values.get("over")]
    if going_on:
        return min(going_on, key=_step)
    return max(newest.values(), key=_step)


def _step(values: Mapping[str, Any]) -> int:
    return int(values["step"])
