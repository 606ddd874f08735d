"""Carrying out orders in worker processes; `pipefit.execution.worker` is what they run."""

from pipefit.execution.checks import completed, last_steps, reached, run_order, to_load
from pipefit.execution.executors import (
    Executor,
    InlineExecutor,
    LocalExecutor,
    Signalled,
    executor,
    log_path,
)
from pipefit.execution.order import Event, Order
from pipefit.execution.provenance import command_line
from pipefit.execution.words import progress_text

__all__ = [
    "Event",
    "Executor",
    "InlineExecutor",
    "LocalExecutor",
    "Order",
    "Signalled",
    "command_line",
    "completed",
    "executor",
    "last_steps",
    "log_path",
    "progress_text",
    "reached",
    "run_order",
    "to_load",
]
