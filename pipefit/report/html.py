"""The report of a run: one HTML page that needs nothing else, neither files nor a network.

store = pipefit.open_store()
Path("report.html").write_text(render(store.run("digits-mlp", "digits")), encoding="utf-8")
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

from pipefit.errors import without_passwords
from pipefit.records import Attempt, RunState
from pipefit.report import plots, story
from pipefit.report.words import duration, number, size, utc_time

if TYPE_CHECKING:
    import pandas as pd

    from pipefit.store.base import RunReader

#: Rows of a table in the page; the store has all of them.
MOST_ROWS = 20

#: Layers of the model in the page.
MOST_LAYERS = 500


def render(run: RunReader) -> str:
    """The report of a run as it is now.

    Args:
        run: read completely but for its checkpoints' bytes; nothing is written.

    Returns:
        A page below 2 MB however long the run is. Everything in it is escaped.

    Raises:
        StoreError: what the store raises while it is read.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=_number, count=_count, moment=utc_time, duration=duration, size=size, svg=Markup
    )
    source = resources.files("pipefit.report").joinpath("report.html.j2")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    return template.render(_contents(run))


def _contents(run: RunReader) -> dict[str, Any]:
    """What the template shows, as plain values."""
    status, document, attempts = run.status(), run.document(), run.attempts()
    metrics, validations = run.metrics(), run.validations()
    best = document.get("best")
    rows = _validation_rows(validations, best)
    checkpoints = run.checkpoints().sort_values("step", ascending=False)
    return {
        "name": run.name,
        "collection": run.collection,
        "state": str(status.state),
        "reason": status.reason or story.ending(document),
        "complete": bool(status.ended),
        "now": datetime.now(UTC),
        "step": _reached(document, status.step),
        "steps": document.get("steps"),
        "best": best,
        "rate": _rate(document),
        "seconds": sum(_seconds(attempt) for attempt in attempts),
        "finals": _finals(validations),
        "panels": plots.metric_panels(metrics, validations),
        "speed": plots.timing_panels(metrics),
        "metrics": plots.validation_metrics(validations),
        "validations": rows[:MOST_ROWS],
        "all_validations": len(rows),
        "checkpoints": _records(checkpoints.head(MOST_ROWS)),
        "all_checkpoints": len(checkpoints),
        "attempts": [_attempt(attempt) for attempt in reversed(attempts)],
        "history": [_moment(entry) for entry in story.history(document)],
        "model": story.model(document),
        "model_facts": story.model_facts(document),
        "layers": story.model_layers(document)[:MOST_LAYERS],
        "all_layers": len(story.model_layers(document)),
        "program": story.program(document),
        "artifacts": sorted(document.get("artifacts") or []),
        "experiment": without_passwords(_experiment(document.get("spec"))),
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _validation_rows(
    validations: pd.DataFrame, best: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Newest step first; the one that is the best so far has "best" set to its metric."""
    name, _, metric = str(best["metric"]).rpartition("/") if best else ("", "", "")
    rows = _records(validations.sort_values("step", ascending=False, kind="stable"))
    for row in rows:
        is_best = best is not None and (row["set"], row["step"]) == (name, best["step"])
        row["best"] = metric if is_best else None
    return rows


def _finals(validations: pd.DataFrame) -> list[dict[str, Any]]:
    """The newest validation of every set: its name, step and metrics that are there."""
    finals = []
    newest = validations.sort_values("step").drop_duplicates("set", keep="last").sort_values("set")
    for row in _records(newest):
        metrics = {name: row[name] for name in plots.validation_metrics(validations)}
        known = {name: value for name, value in metrics.items() if not _is_missing(value)}
        finals.append({"set": row["set"], "step": row["step"], "metrics": known})
    return finals


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _reached(document: Mapping[str, Any], committed: int | None) -> int:
    progress = document.get("progress") or {}
    return max(int(progress.get("step") or 0), committed or 0)


def _rate(document: Mapping[str, Any]) -> float | None:
    rate = (document.get("progress") or {}).get("rate")
    return float(rate) if rate and math.isfinite(rate) else None


def _seconds(attempt: Attempt) -> float:
    """How long an attempt lasted; 0 if nobody wrote down its end."""
    return (attempt.ended - attempt.started).total_seconds() if attempt.ended else 0.0


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "fence": attempt.fence,
        "state": str(attempt.state),
        "start": max(attempt.start, 0),
        "step": attempt.step,
        "started": attempt.started,
        "seconds": _seconds(attempt),
        "owner": str(attempt.owner),
        "reason": attempt.reason,
        "log_tail": attempt.log_tail if attempt.state is RunState.FAILED else "",
    }


def _moment(entry: story.Entry) -> tuple[str, str]:
    """What, and when by which attempt."""
    return entry.what, f"{utc_time(entry.time)}, attempt {entry.fence}"


def _experiment(spec: object) -> str:
    """The resolved experiment as people write it, in TOML."""
    import tomli_w

    if not isinstance(spec, Mapping):
        return ""
    try:
        return tomli_w.dumps(spec)
    except TypeError:  # a null, which TOML lacks
        return json.dumps(spec, indent=2, ensure_ascii=False, default=str)


def _number(value: object) -> str:
    if _is_missing(value) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return number(value)


def _count(value: float) -> str:
    return f"{value:,.0f}"
