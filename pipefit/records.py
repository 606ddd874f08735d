"""Plain data that flows between the parts: owners, attempts, checkpoints, validations, the line.

Nothing here talks to a database or to TensorFlow. A *step* is one optimizer update; a *run* is one
name in one collection; an *attempt* is one process's ownership of a run, numbered by its *fence*.

The *line* of a run says which attempt's records count at which step. It is a tuple of
``LineEntry(fence, start)``: the attempt `fence` continued after step `start` (-1: from nothing).
A record of attempt f at step s counts if and only if f is in the line, ``s > start(f)`` and no
later attempt started before s. So steps repeated after a crash replace their first draft, and
what a stale owner still manages to write never counts, without deleting anything.

    >>> line = extend_line((), fence=1, start=-1)
    >>> line = extend_line(line, fence=2, start=150)     # attempt 1 died; 150 was its last commit
    >>> counts(line, fence=1, step=150), counts(line, fence=1, step=160)
    (True, False)
    >>> counts(line, fence=2, step=160)
    True
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

#: The step before the first: where an attempt starts that found no checkpoint.
NOTHING = -1

#: Columns of metrics that are measured, so that they differ between two equal runs.
TIMING = frozenset(("step_seconds", "data_seconds", "examples_per_second", "memory_bytes"))

_RUN_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_COLLECTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_run_name(name: str) -> str:
    """The name itself, if a run may be called so.

    Raises:
        ValueError: if it may not; the message says what is allowed.
    """
    text = isinstance(name, str)
    dots = text and any(part in (".", "..") for part in name.split("/"))
    if not text or dots or len(name) > 200 or not _RUN_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a run: use 1 to 200 of the characters A-Z a-z 0-9 . _ - and /, "
            "with no empty, '.' or '..' part between slashes"
        )
    return name


def check_collection_name(name: str) -> str:
    """The name itself, if a collection may be called so.

    Raises:
        ValueError: if it may not; the message says what is allowed.
    """
    if not isinstance(name, str) or not _COLLECTION_NAME.fullmatch(name) or name == "system":
        raise ValueError(
            f"{name!r} cannot name a collection: use 1 to 64 of the characters A-Z a-z 0-9 _ and "
            "-, and not MongoDB's own word system"
        )
    return name


class RunState(StrEnum):
    """What a run is doing, as far as the database knows."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class Owner:
    """A process, named so that another process on the same host can tell whether it lives.

    Attributes:
        host: host name, for people.
        scope: identifies the boot and the process namespace; pids compare only within one scope.
        pid: process id.
        started: start time of the process in seconds; since the boot where the system knows it
            (Linux: no change of the clock moves it), else since the epoch.
    """

    host: str
    scope: str
    pid: int
    started: float

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True)
class Lease:
    """Who owns a run until when (UTC, the database server's clock)."""

    fence: int
    owner: Owner
    expires: datetime


class LineEntry(NamedTuple):
    """The attempt `fence` continued after step `start`."""

    fence: int
    start: int


Line = tuple[LineEntry, ...]


def extend_line(line: Sequence[tuple[int, int]], fence: int, start: int) -> Line:
    """The line after attempt `fence` continues from the checkpoint of step `start`.

    Entries that no longer cover any step are dropped, so the line stays short however often a run
    is killed before its next checkpoint.

    Raises:
        ValueError: if `fence` is not larger than every fence in the line.
    """
    if line and fence <= line[-1][0]:
        raise ValueError(f"fence {fence} must be larger than {line[-1][0]}")
    kept = [LineEntry(*entry) for entry in line if entry[1] < start]
    return (*kept, LineEntry(fence, start))


def counts(line: Sequence[tuple[int, int]], fence: int, step: int) -> bool:
    """Whether a record that attempt `fence` wrote at `step` is part of the run."""
    return fence_at(line, step) == fence


def fence_at(line: Sequence[tuple[int, int]], step: int) -> int | None:
    """The attempt whose records count at `step`; None if no attempt covers it."""
    for fence, lower, upper in intervals(line):
        if lower < step <= upper:
            return fence
    return None


def intervals(line: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """For every attempt in the line ``(fence, lower, upper)``: its steps are (lower, upper]."""
    uppers = [start for _, start in line[1:]] + [2**62]
    # Not strict: a run that nobody has begun has an empty line.
    return [(fence, start, upper) for (fence, start), upper in zip(line, uppers, strict=False)]


@dataclass(frozen=True)
class Best:
    """The best validation so far, as `[save] best` defines it; part of the state of a run."""

    metric: str
    mode: str
    value: float
    step: int

    def improved_by(self, value: float) -> bool:
        """Whether `value` beats this one; equal values and NaN do not."""
        return value > self.value if self.mode == "max" else value < self.value


@dataclass(frozen=True)
class TensorFacts:
    """What a checkpoint says of one of its tensors: its dtype as numpy calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        id: of its file in the store.
        step: the step after which the state was copied.
        fence: the attempt whose steps led to it.
        size: bytes.
        sha256: of those bytes, hexadecimal.
        created: UTC.
        kinds: why it is kept: any of "permanent", "recent", "best", "final", or "stopped": of a run
            that was asked to stop, kept until there is a later one.
    """

    id: str
    step: int
    fence: int
    size: int
    sha256: str
    created: datetime
    kinds: frozenset[str]


@dataclass(frozen=True)
class ClosedLine:
    """What a rewind took out of a run: the steps after `start`, as they had been trained.

    Attributes:
        number: 1 for the first rewind of the run.
        start: the step to which the run was rewound.
        step: the newest step that was committed then.
        closed: when (UTC).
        checkpoints: of the steps after `start`, by step.
    """

    number: int
    start: int
    step: int
    closed: datetime
    checkpoints: tuple[CheckpointInfo, ...] = ()


@dataclass(frozen=True)
class Garbage:
    """Something in a store that counts for nobody: `Store.garbage` finds and removes it.

    Attributes:
        collection: where it is.
        run: of which run it was to be part; "" if nobody knows.
        kind: "checkpoint", "outputs", "values" or "artifact": a file that nothing names, or outputs
            that no validation names; "draft": a record, with its files, of steps that were made
            again; "bytes": of a file that is not there; "import": half a run.
        id: of the file, the outputs, the record or the run.
        size: bytes of its files.
        age: seconds since it was written, or since it stopped to count.
        held: why it must stay for now; None: it may be removed.
    """

    collection: str
    run: str
    kind: str
    id: str
    size: int
    age: float
    held: str | None


@dataclass(frozen=True)
class MetricBlock:
    """Metrics, and other values, of consecutive steps.

    Attributes:
        first: step of the first row.
        columns: by name an array of shape [steps, ...]; all of one length. Numbers, bool and text
            of any shape (text also as objects, all str or all bytes).
    """

    first: int
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def last(self) -> int:
        """Step of the last row."""
        return self.first + len(self) - 1


@dataclass(frozen=True)
class Validation:
    """One validation set's numbers at one step.

    Attributes:
        name: the validation set.
        step: step of the state that was validated.
        metrics: means weighted by examples.
        examples: how many examples were read.
        checkpoint: id of the committed checkpoint that was read; None if it was done in training.
        seconds: wall time.
        values: by name anything else that was computed, arrays as in `MetricBlock` but for the
            axis of steps. Of what the store gives back only the small ones: `RunReader.values`
            reads the others.
    """

    name: str
    step: int
    metrics: Mapping[str, float]
    examples: int
    checkpoint: str | None = None
    seconds: float = 0.0
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How a run ended before `train.steps`, on purpose.

    Attributes:
        kind: the kind of rule, for instance "early_stop".
        rule: the rule itself, as `RunOrder.stop_rules` has it: a run that is asked for by another
            rule has not ended.
        step: the last step, whose checkpoint is committed.
        reason: for people.
    """

    kind: str
    rule: str
    step: int
    reason: str


@dataclass(frozen=True)
class Attempt:
    """One process's ownership of a run; `start` is the step it continued after (-1: nothing).

    `program` is what trained it: versions, command, git state, devices.
    """

    fence: int
    start: int
    owner: Owner
    started: datetime
    ended: datetime | None
    state: RunState
    reason: str | None = None
    step: int | None = None
    log_tail: str = ""
    program: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunStatus:
    """What a scheduler asks: which experiment a run is and how far it is committed.

    Attributes:
        name: unique in its collection.
        collection: the collection.
        identity: hash of what decides the numbers.
        state: INTERRUPTED as well when the stored state is RUNNING but the lease has run out.
        step: the newest committed checkpoint's step, None before the first.
        reason: why it failed or was interrupted.
        ended: how it ended before its last step, if it did.
    """

    name: str
    collection: str
    identity: str
    state: RunState
    step: int | None
    reason: str | None = None
    ended: Ended | None = None


@dataclass(frozen=True)
class RunOrder:
    """What a process brings to become the owner of a run.

    Attributes:
        collection: the collection.
        name: the run.
        identity: hash of `parts`.
        parts: what decides the numbers, flat: dotted key -> plain value (shown on a mismatch).
        spec: the whole resolved experiment as JSON text.
        steps: the step to reach.
        allow_change: dotted keys (or their prefixes) whose difference is accepted and written to
            the run's history.
        program: versions, command, git state: plain values.
        stop_rules: by kind the rules, as text, that may end the run before `steps`.
        data_digest: of the content of the training data; None while nobody has read it.
    """

    collection: str
    name: str
    identity: str
    parts: Mapping[str, Any]
    spec: str
    steps: int
    allow_change: Sequence[str] = ()
    program: Mapping[str, Any] = field(default_factory=dict)
    stop_rules: Mapping[str, str] = field(default_factory=dict)
    data_digest: str | None = None


def final_step(status: RunStatus | None, order: RunOrder) -> int:
    """The step whose checkpoint completes the order.

    Args:
        status: of the run of this name; None if there is none.
        order: what is asked for.

    Returns:
        `order.steps`, or the step at which the run ended early by a rule that the order has too.
    """
    ended = status.ended if status else None
    if ended and ended.step <= order.steps and order.stop_rules.get(ended.kind) == ended.rule:
        return ended.step
    return order.steps
