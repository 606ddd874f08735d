"""What the documents of the database mean: from BSON to the plain data of `pipefit.records`.

A run's document (`<c>.runs`) has the run's name as its `_id` and stays small however long the run:

    version, name, identity, steps, state, reason, fence, created, updated
    parts, spec, program            JSON text, because their keys may hold dots
    line                            [[fence, start], ...]
    committed                       {step, id} of the newest checkpoint, or null
    best, progress                  documents or null
    lease                           {fence, token, owner, since, expires} or null
    attempt                         {fence, owner, started, start, ended, state, reason, reached}
    ended                           {kind, rule, step, reason} if it ended before its last step
    described                       {model: JSON text,
                                    artifacts: [{name, file, size, sha256, fence}]}
    history                         [{time, fence, changes: [{key, old, new}]}], and what `note`
                                    says: [{time, fence, number, ...}], counted per attempt
    closed                          [{time, fence, start, line, committed, best, ended}], what
                                    rewinds took out of the run; absent before the first
    dropped                         [{time, line}], the numbers of those of `closed` that count no
                                    more; absent before the first

A record (`<c>.records`) has run, kind, name, step and fence, is unique by the first four and by
branch, and is replaced, never changed. `name` is the set of a validation, the id of a checkpoint
or of outputs, the name of an artifact, else "". `step` of an attempt is its fence. `branch` says
how many rewinds there were before the attempt that made it, or, of an artifact, before it; it is
absent for none.

    kind            written by              counts if
    metrics         write_metrics           the line says so (`records.counts`)
    validation      write_validation        the line says so
    checkpoint      commit                  ... and its step is committed
    validated       commit_validation       ... and its step is committed
    summary         write_summary           ... and its step is committed
    artifact            put_artifact        no rewind since has gone to a step before its own
    attempt, outputs                        always; outputs are seen when a `validated` names them

A rewind to step n is a fence that no attempt has, which continued after n and did nothing. What it
took out counts in a *closed line*, in which `line`, `committed` and `best` are those of `closed`.

Files of `<c>.checkpoints` are named by the records "checkpoint". Files of `<c>.artifacts` are named
by `described` of the run's document, and by the records "artifact" (`file`), "outputs"
(`shards.id`), "metrics" (`columns.file`), "validation" and "validated" (`values.file`); their
metadata have the run. A file that none of these names is garbage once it is older than the lease
of whoever may still be writing its record. So is a record that will never count, neither in the
run nor in a closed line, with the files it names: a draft that a crash has cut off.

In a run's document read from the server, `now` is the server's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pipefit import records
from pipefit.errors import NotFound, StoreError
from pipefit.records import (
    NOTHING,
    Best,
    CheckpointInfo,
    ClosedLine,
    Ended,
    Lease,
    Owner,
    Validation,
)
from pipefit.store.backend import Document, StoredFile
from pipefit.store.owner import is_dead, this_process
from pipefit.store.plain import checked_key

#: Of the layout; `pipefit.store.schema` tells what the older ones were.
VERSION = 2

#: What a record is unique by. `branch` is absent until the run is first rewound.
KEY = ("run", "kind", "name", "step", "branch")

METRICS = "metrics"
VALIDATION = "validation"
VALIDATED = "validated"
CHECKPOINT = "checkpoint"
SUMMARY = "summary"
ATTEMPT = "attempt"
ARTIFACT = "artifact"
OUTPUTS = "outputs"


def owner_document(owner: Owner) -> Document:
    """An owner as it is stored."""
    return {
        "host": owner.host,
        "scope": owner.scope,
        "pid": owner.pid,
        "started": owner.started,
    }


def writing_process() -> Document:
    """The field `owner` in the metadata of a file that is written without a lease.

    If its process is dead, nobody will name it any more.
    """
    return {"owner": owner_document(this_process())}


def lease_of(run: Mapping[str, Any]) -> Lease | None:
    """The lease of a run if it has not run out and its owner is not known to be dead."""
    stored = run["lease"]
    if stored is None or stored["expires"] <= run["now"]:
        return None
    owner = Owner(**stored["owner"])
    return None if is_dead(owner) else Lease(stored["fence"], owner, stored["expires"])


def ended_of(stored: Mapping[str, Any] | None) -> Ended | None:
    """How a run ended early as it is stored, or None."""
    return Ended(**stored) if stored else None


def ended_document(ended: Ended | None) -> Document | None:
    """How a run ended early as it is to be stored."""
    if ended is None:
        return None
    return {
        "kind": str(ended.kind),
        "rule": str(ended.rule),
        "step": int(ended.step),
        "reason": str(ended.reason),
    }


def best_of(stored: Mapping[str, Any] | None) -> Best | None:
    """The best validation as it is stored, or None."""
    return Best(**stored) if stored else None


def best_document(best: Best | None) -> Document | None:
    """The best validation as it is to be stored."""
    if best is None:
        return None
    return {
        "metric": best.metric,
        "mode": best.mode,
        "value": float(best.value),
        "step": int(best.step),
    }


def checkpoint_of(record: Mapping[str, Any]) -> CheckpointInfo:
    """A checkpoint's record."""
    return CheckpointInfo(
        id=record["name"],
        step=record["step"],
        fence=record["fence"],
        size=record["size"],
        sha256=record["sha256"],
        created=record["created"],
        kinds=frozenset(record["kinds"]),
    )


def checkpoint_file(info: CheckpointInfo, name: str) -> StoredFile:
    """The file of a checkpoint of the run `name`."""
    return StoredFile(
        info.id, info.size, info.sha256, f"the checkpoint of step {info.step} of run {name!r}"
    )


def validation_of(record: Mapping[str, Any]) -> Validation:
    """The record of a validation, made in training or of a committed checkpoint."""
    values = {}
    small = [entry for entry in record.get("values", ()) if "data" in entry]
    if small:
        from pipefit.store.columns import unpacked  # loads numpy

        values = {entry["name"]: unpacked(entry, entry["data"], 1)[0, ...] for entry in small}
    return Validation(
        name=record["name"],
        step=record["step"],
        metrics=record["metrics"],
        examples=record["examples"],
        checkpoint=record["checkpoint"],
        seconds=record["seconds"],
        values=values,
    )


def validation_content(validation: Validation) -> Document:
    """What a record of a validation says, but for its values.

    Raises:
        StoreError: a metric or a value is named like a column of `RunReader.validations` or like
            another one, or a metric is no number.
    """
    _check_text(validation.name, "a validation")
    fixed = {"step", "set", "examples", "checkpoint", "seconds"}
    reserved = sorted((fixed | set(validation.values)) & set(validation.metrics))
    reserved += sorted(fixed & set(validation.values))
    if reserved:
        raise StoreError(
            f"validation {validation.name!r} has a metric or a value named {reserved[0]!r}, which "
            "is the name of another column: rename it"
        )
    about = f"the metrics of validation {validation.name!r}"
    return {
        "metrics": {
            checked_key(name, about): _metric(name, value, about)
            for name, value in validation.metrics.items()
        },
        "examples": int(validation.examples),
        "checkpoint": validation.checkpoint,
        "seconds": float(validation.seconds),
    }


def _metric(name: str, value: Any, about: str) -> float:
    """A metric as it is stored; it is the same number."""
    try:
        number = float(value)
        whole = getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")
        same = math.isnan(number) or (int(value) == number if whole else bool(number == value))
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise StoreError(
            f"{name!r} of {about} is {value!r}: a metric is a number that a float of 64 bits "
            "holds; give anything else as one of its values"
        )
    return number


def _check_text(name: str, what: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StoreError(
            f"{name!r} cannot name {what}: it has half of a character (a lone surrogate)"
        ) from None


def file_ids(record: Mapping[str, Any]) -> list[str]:
    """The files that a record of metrics or of a validation names for its large values."""
    entries = [*record.get("columns", ()), *record.get("values", ())]
    return [entry["file"] for entry in entries if "file" in entry]


def counts(run: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether a record is part of the run, and committed if it is about a checkpoint."""
    if record["kind"] == ARTIFACT:
        return _artifact_counts(run.get("closed", ()), record)
    if not records.counts(run["line"], record["fence"], record["step"]):
        return False
    if record["kind"] in (METRICS, VALIDATION):
        return True
    return bool(record["step"] <= committed_step(run))


def _artifact_counts(closed: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> bool:
    branch = record.get("branch", 0)
    later = closed[branch:]
    return branch <= len(closed) and all(record["step"] <= entry["start"] for entry in later)


def committed_step(run: Mapping[str, Any]) -> int:
    """The newest committed step, -1 before the first."""
    committed = run["committed"]
    return int(committed["step"]) if committed else NOTHING


def checkpoints_of(
    run: Mapping[str, Any], stored: Iterable[Mapping[str, Any]]
) -> dict[int, CheckpointInfo]:
    """The committed checkpoints of a run among these records, by step.

    A commit that was cut off between its record and its publication, and the one that replaces it,
    leave two records of one step: the published one counts, else the newer one.
    """
    chosen: dict[int, CheckpointInfo] = {}

    def rank(info: CheckpointInfo) -> tuple[bool, datetime]:
        return info.id == run["committed"]["id"], info.created

    for info in (checkpoint_of(record) for record in stored if counts(run, record)):
        if info.step not in chosen or rank(info) > rank(chosen[info.step]):
            chosen[info.step] = info
    return chosen


def closed_line(run: Mapping[str, Any], number: int) -> Document:
    """The document of a run as it would be had it not been rewound for the `number`-th time."""
    entry = run["closed"][number - 1]
    seen = {key: entry[key] for key in ("line", "committed", "best", "ended")}
    return {**run, **seen, "closed": run["closed"][: number - 1]}


def closed_line_of(
    run: Mapping[str, Any], number: int, stored: Iterable[Mapping[str, Any]]
) -> ClosedLine:
    """What the `number`-th rewind took out of the run; `stored` are its checkpoints' records."""
    entry, line = run["closed"][number - 1], closed_line(run, number)
    checkpoints = checkpoints_of(line, stored) if line["committed"] else {}
    return ClosedLine(
        number=number,
        start=entry["start"],
        step=committed_step(line),
        closed=entry["time"],
        checkpoints=tuple(checkpoints[s] for s in sorted(checkpoints) if s > entry["start"]),
    )


def kept_lines(run: Mapping[str, Any]) -> list[int]:
    """The numbers of the closed lines that still count."""
    dropped = {entry["line"] for entry in run.get("dropped", ())}
    return [n for n in range(1, len(run.get("closed", ())) + 1) if n not in dropped]


def check_line(run: Mapping[str, Any], number: int) -> None:
    """Raise `NotFound` unless the run has this closed line."""
    if number not in (kept := kept_lines(run)):
        times = len(run.get("closed", ()))
        told = f"it was rewound {times} times"
        if 1 <= number <= times:
            told = f"it was dropped; there are: {', '.join(map(str, kept)) or 'none'}"
        raise NotFound(f"run {run['_id']!r} has no closed line {number}: {told}")


def in_closed_line(run: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether a record counts in a closed line; of checkpoints, whether only a rewind took it out.

    A line grew out of steps that may belong to another one by now, which may have been dropped.
    """
    return any(
        counts(closed_line(run, number), record)
        for number in kept_lines(run)
        if record["kind"] != CHECKPOINT or record["step"] > run["closed"][number - 1]["start"]
    )


def branch_of(run: Mapping[str, Any], fence: int | None = None) -> Document:
    """The field `branch` of a record; none for a run that was not rewound before.

    Args:
        run: the document of the run.
        fence: the attempt that the record is of; None: it is of no attempt.
    """
    closed = run.get("closed", ())
    rewinds = sum(fence is None or entry["fence"] < fence for entry in closed)
    return {"branch": rewinds} if rewinds else {}
