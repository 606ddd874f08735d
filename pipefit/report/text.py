"""A run as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipefit.records import Attempt, ClosedLine, Garbage, RunState
from pipefit.report import story
from pipefit.report.table import text_table, validations_table
from pipefit.report.words import as_number, clean, duration, local_time, number, printable, size

if TYPE_CHECKING:
    from pipefit.store.base import RunReader

_CHECKPOINTS, _VALIDATIONS, _ATTEMPTS, _EVENTS = 5, 12, 10, 10


def run_text(run: RunReader, *, report: str | None = None, width: int | None = None) -> str:
    """What `pipefit show` prints.

    Args:
        run: the run.
        report: where its report lies, if there is one.
        width: columns of the terminal; None for no limit.
    """
    return "\n".join(_parts(run, report, width))


def runs_table(rows: Iterable[Mapping[str, Any]], *, width: int | None = None) -> str:
    """What `pipefit runs` prints; `rows` have the columns of `Store.runs`."""
    headers = ["collection", "name", "state", "steps", "best", "attempts", "updated", "reason"]
    cells = [
        [
            row["collection"],
            row["name"],
            str(row["state"]),
            f"{_count(row['step'])}/{_count(row['steps'])}",
            _known(row["best"]),
            row["attempts"],
            row["updated"],
            _first_line(row["reason"]),
        ]
        for row in rows
    ]
    return text_table(headers, cells, width=width)


def lines_text(lines: Iterable[ClosedLine], *, width: int | None = None) -> str:
    """What `pipefit show --lines` prints: what rewinds took out of a run."""
    cells = [
        [
            line.number,
            line.start + 1,
            line.step,
            line.closed,
            " ".join(str(checkpoint.step) for checkpoint in line.checkpoints),
        ]
        for line in lines
    ]
    return text_table(["line", "from", "to", "closed", "checkpoints"], cells, width=width)


def load_text(report: bytes) -> str:
    """What `pipefit show --load` prints: the stored report."""
    return "\n".join(printable(line) for line in report.decode(errors="replace").splitlines())


def garbage_table(found: Iterable[Garbage], *, width: int | None = None) -> str:
    """What `pipefit gc` prints: what counts for nobody, and why some of it stays."""
    cells = [
        [
            item.collection,
            item.run or "?",
            item.kind,
            item.id,
            size(item.size),
            duration(max(item.age, 0.0)),
            item.held or "",
        ]
        for item in found
    ]
    headers = ["collection", "run", "what", "id", "size", "age", "stays, because"]
    return text_table(headers, cells, width=width)


def _parts(run: RunReader, report: str | None, width: int | None) -> Iterator[str]:
    status, document, attempts = run.status(), run.document(), run.attempts()
    yield f"{run.collection}/{run.name}  {status.state}"
    facts = {
        "reason": clean(_first_line(status.reason)) if status.reason else None,
        "ended": clean(_first_line(ending)) if (ending := story.ending(document)) else None,
        "progress": _progress(document, status.state, status.step),
        "best": _best(document.get("best")),
        "model": clean(told) if (told := story.model(document)) else None,
        "loaded": clean(loaded) if (loaded := story.loaded(document)) else None,
        "owner": _owner(document.get("lease")),
        "report": report,
    }
    yield from (f"  {name:<10}{fact}" for name, fact in facts.items() if fact)

    checkpoints = run.checkpoints().sort_values("step", ascending=False)
    if len(checkpoints):
        yield _title("Checkpoints", len(checkpoints), _CHECKPOINTS)
        yield _checkpoints_table(checkpoints.head(_CHECKPOINTS).to_dict("records"), width)
    validations = run.validations().sort_values("step", ascending=False, kind="stable")
    if len(validations):
        yield _title("Validations", len(validations), _VALIDATIONS)
        rows: Any = validations.head(_VALIDATIONS).to_dict("records")
        yield validations_table(rows, width=width)
    history = story.history(document)
    if history:
        yield _title("History", len(history), _EVENTS)
        yield _history_table(history[: -_EVENTS - 1 : -1], width)
    if attempts:
        yield _title("Attempts", len(attempts), _ATTEMPTS)
        yield _attempts_table(attempts[: -_ATTEMPTS - 1 : -1], width)
        yield from _log(attempts[-1])


def _title(name: str, count: int, shown: int) -> str:
    return f"\n{name}" + (f", the newest {shown} of {count}" if count > shown else "")


def _progress(document: Mapping[str, Any], state: RunState, committed: int | None) -> str:
    steps = document["steps"]
    progress = document.get("progress") or {}
    if state is not RunState.RUNNING or "step" not in progress:
        return f"{_count(committed)}/{steps} steps committed"
    words = [f"{progress['step']}/{steps} steps ({progress['step'] / max(steps, 1):.0%})"]
    if (loss := _known(progress.get("loss"))) is not None:
        words.append(f"loss {number(loss)}")
    if (rate := _known(progress.get("rate"))) is not None:
        words.append(f"{rate:,.0f} examples/s")
    if (left := _known(progress.get("seconds_left"))) is not None:
        words.append(f"{duration(left)} left")
    return ", ".join(words)


def _best(best: Mapping[str, Any] | None) -> str | None:
    if not best:
        return None
    value = number(float(best["value"]))
    return f"{clean(best['metric'])} {value} ({best['mode']}) at step {best['step']}"


def _owner(lease: Mapping[str, Any] | None) -> str | None:
    if not lease:
        return None
    owner = lease["owner"]
    return f"pid {owner['pid']} on {clean(owner['host'])}"


def _checkpoints_table(rows: Iterable[Mapping[Any, Any]], width: int | None) -> str:
    cells = [
        [row["step"], ", ".join(row["kinds"].split()), size(row["size"]), row["created"]]
        for row in rows
    ]
    return text_table(["step", "kept as", "size", "created"], cells, width=width)


def _attempts_table(attempts: Iterable[Attempt], width: int | None) -> str:
    headers = ["#", "state", "from", "to", "started", "time", "process", "reason"]
    cells = [
        [
            attempt.fence,
            str(attempt.state),
            max(attempt.start, 0),
            attempt.step,
            local_time(attempt.started),
            _time(attempt),
            str(attempt.owner),
            _first_line(attempt.reason),
        ]
        for attempt in attempts
    ]
    return text_table(headers, cells, width=width)


def _time(attempt: Attempt) -> str:
    if attempt.ended is not None:
        return duration((attempt.ended - attempt.started).total_seconds())
    return "" if attempt.state is RunState.RUNNING else "unknown"


def _history_table(entries: Iterable[story.Entry], width: int | None) -> str:
    cells = [[local_time(entry.time), entry.fence, _first_line(entry.what)] for entry in entries]
    return text_table(["time", "attempt", "what"], cells, width=width)


def _log(attempt: Attempt) -> Iterator[str]:
    if attempt.state is not RunState.FAILED or not attempt.log_tail.strip():
        return
    yield f"\nThe end of the log of attempt {attempt.fence}"
    for line in attempt.log_tail.rstrip().splitlines():
        yield f"  {printable(line.expandtabs())}".rstrip()


def _first_line(text: object) -> str:
    return text.partition("\n")[0] if isinstance(text, str) else ""


def _count(value: object) -> str:
    known = _known(value)
    return "0" if known is None else f"{known:.0f}"


def _known(value: object) -> float | None:
    """The number in `value`, if there is one that is finite; a data frame has NaN for None."""
    plain = as_number(value)
    return plain if plain is not None and math.isfinite(plain) else None
