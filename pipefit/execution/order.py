"""What crosses the boundary to the worker process: an `Order` in, `Event`s back, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pipefit import errors
from pipefit.errors import EXIT_INTERRUPTED, Interrupted, PipefitError, WorkerFailed


@dataclass(frozen=True)
class Order:
    """Everything a worker needs; plain data.

    Attributes:
        kind: "train" up to the spec's `train.steps`, or "validate" one set at one step.
        spec: the resolved experiment, as `Spec.to_json` writes it.
        uri: of the database, with its password: orders go through a pipe and are never logged.
        folders: where the archives are unpacked, by their name in the spec.
        import_paths: folders in which the user's own modules are looked for.
        allow_change: see `pipefit.records.RunOrder`.
        lease_seconds: how long a silent owner keeps a run.
        validation: the set to validate.
        step: the step to validate.
        program: what started it, for the run's document.
    """

    kind: Literal["train", "validate"]
    spec: str
    uri: str
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
        kind: "log" (level, message), "progress" (step, steps, loss, rate in examples/s,
            seconds_left) or "outcome" (error, message, traceback; error is None for success).
        values: the rest.
    """

    kind: Literal["log", "progress", "outcome"]
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"event": self.kind, **self.values})

    @classmethod
    def from_json(cls, line: str) -> Event:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        return cls(values.pop("event"), values)


def outcome(error: BaseException | None, traceback: str = "") -> Event:
    """The last event of a worker."""
    if error is None:
        return Event("outcome", {"error": None})
    return Event(
        "outcome",
        {"error": type(error).__name__, "message": str(error), "traceback": traceback},
    )


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
    name = event.values["error"]
    if name is None:
        return
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, PipefitError):
        raise known(event.values["message"])
    message = str(event.values["message"]).strip().splitlines() or ["no message"]
    raise WorkerFailed(
        f"the worker failed with {name}: {message[0]}\n{event.values['traceback']}".rstrip()
    )
