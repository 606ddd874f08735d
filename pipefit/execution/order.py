"""What crosses the boundary to the worker process: an `Order` in, `Event`s back, as JSON lines."""

from __future__ import annotations

import importlib
import json
import os
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipefit import errors
from pipefit.errors import (
    EXIT_INTERRUPTED,
    Interrupted,
    PipefitError,
    SpecError,
    WorkerFailed,
    without_passwords,
)

_PACKAGE = f"{Path(errors.__file__).parent}{os.sep}"
_KNOWN = {
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PipefitError)
}


@dataclass(frozen=True)
class Order:
    """Everything a worker needs; plain data.

    Attributes:
        kind: "load" what [[load]] names into runs that have not begun, "train" every run of the
            spec to its end, "validate" one set at one step of a spec with one model, or, storing
            nothing, "fast_dev_run" one step of everything, or "describe" the models and, if there
            is a uri, what would be loaded.
        spec: the resolved experiment, as `Spec.to_json` writes it, secrets included.
        uri: of the database, with its password: orders go through a pipe and are never logged.
        folders: where the archives are (a folder of the unpacked files, or the file), by their name
            in the spec.
        import_paths: folders in which the user's own modules are looked for.
        allow_change: see `pipefit.records.RunOrder`.
        lease_seconds: how long a silent owner keeps a run.
        validation: the set to validate.
        step: the step to validate.
        program: what started it, for the run's document.
    """

    kind: Literal["load", "train", "validate", "fast_dev_run", "describe"]
    spec: str = field(repr=False)
    uri: str = field(repr=False)
    folders: Mapping[str, str] = field(default_factory=dict)
    import_paths: tuple[str, ...] = ()
    allow_change: tuple[str, ...] = ()
    lease_seconds: float = 60.0
    validation: str = ""
    step: int = 0
    program: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Order:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        for name in ("import_paths", "allow_change"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True)
class Event:
    """One message of a worker.

    Attributes:
        kind: "log" (level, message, step or None), "progress" (step, steps, loss, rate in
            examples/s, seconds_left), "text" (text: something to print) or "outcome" (error: None
            for success, the name of a class of pipefit.errors for what was raised on purpose, else
            ""; message; traceback). Of a process that trains several runs, "log" and "progress" say
            with `run` which one they are about; the last progress of a run has `over`.
        values: the rest.
    """

    kind: Literal["log", "progress", "text", "outcome"]
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"event": self.kind, **self.values})

    @classmethod
    def from_json(cls, line: str) -> Event:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        return cls(values.pop("event"), values)


def outcome(error: BaseException | None) -> Event:
    """The last event of a worker: how the order ended."""
    if error is None:
        return Event("outcome", {"error": None})
    # Of a more special class elsewhere the nearest one that the other side knows.
    known = next((kind.__name__ for kind in type(error).__mro__ if kind in _KNOWN), "")
    message = without_passwords(str(error) if known else f"{type(error).__name__}: {error}")
    if isinstance(error, SpecError) and error.__cause__ is not None:
        message += _of_other_code(error.__cause__)
    details = without_passwords("".join(traceback.format_exception(error)))
    return Event("outcome", {"error": known, "message": message, "traceback": details})


def _of_other_code(error: BaseException) -> str:
    """The traceback, from below our own frames, of what a builder raised; empty if none did."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None:
        return ""
    return "\n" + "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _is_ours(file: str) -> bool:
    return file.startswith((_PACKAGE, "<frozen importlib")) or file == importlib.__file__


def exit_code(error: BaseException | None) -> int:
    """The worker's exit code: 0, 75 after a requested stop, else 1."""
    if error is None:
        return 0
    return EXIT_INTERRUPTED if isinstance(error, Interrupted) else 1


def raise_outcome(event: Event) -> None:
    """Raise in the parent what the worker raised; nothing for success.

    Raises:
        PipefitError: of the same class for errors raised on purpose; `WorkerFailed` with the
            worker's traceback for all others.
    """
    name, message = event.values["error"], event.values.get("message", "")
    if name is None:
        return
    if name:
        raise vars(errors)[name](message)
    first = (message.splitlines() or [""])[0]
    raise WorkerFailed(f"the worker failed with {first}\n{event.values['traceback']}".rstrip())
