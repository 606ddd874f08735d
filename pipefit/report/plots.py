"""Curves as inline SVG, for pages that are read on light and dark screens.

    panels = metric_panels(run.metrics(), run.validations())
    panels[0].title, panels[0].svg          # "loss", "<svg ..."

What is not a number per step (texts, arrays) is left out.

Text of users never enters an SVG: titles and legends are the page's matter.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipefit.records import TIMING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Series = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    Source = tuple[str, Series, bool]  # legend, points, whether they are marked

#: Points of a thinned curve: two per pixel of a panel, its smallest and its largest value.
POINTS = 1200

#: Readable on white and on near black; the first four differ for colour-blind people as well.
COLOURS = ("#3b82c4", "#d9822b", "#2f9e63", "#c2508f", "#8f6bd1", "#d1495b", "#2a9d9d", "#8a7f39")

LEARNING_RATE = "learning_rate"

#: Columns NORM/VARIABLE: a panel per norm, the largest ones and all of them together.
NORMS = ("gradient_norm", "update_norm")

#: Panels about speed: by title the measured columns, each with its legend and its unit.
_TIMING: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "examples per second": {"examples_per_second": ("training", 1.0)},
    "milliseconds per step": {
        "step_seconds": ("in all", 1e-3),
        "data_seconds": ("waiting for data", 1e-3),
    },
    "memory in GB": {"memory_bytes": ("training", 1e9)},
}

#: More panels or curves than these would make a page nobody reads.
MOST_PANELS, MOST_CURVES = 24, 8

_INK, _FAINT = "#010203", "#040506"  # replaced by the colours of the page
_SMOOTH_FROM = 200  # rows; shorter curves are drawn as they are
_LOG_FROM = 100.0  # ratio of largest to smallest; larger ones get a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """One legend entry and its points.

    Attributes:
        label: for the legend.
        colour: of the line.
        x: steps, shape [points].
        y: values, shape [points]; finite.
        markers: whether the points themselves are shown (validations are few).
        smooth: x and y of a running mean, for curves that are long and noisy.
    """

    label: str
    colour: str
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    markers: bool = False
    smooth: Series | None = None


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Attributes:
        title: the metric.
        svg: an <svg> element.
        curves: what the legend names.
        notes: what the drawing leaves out.
    """

    title: str
    svg: str
    curves: Sequence[Curve]
    notes: Sequence[str]


def metric_panels(metrics: pd.DataFrame, validations: pd.DataFrame) -> list[Panel]:
    """A panel per metric: the loss first, learning rates and norms last, validations with theirs.

    Columns of `records.TIMING` are the matter of `timing_panels`.

    Args:
        metrics: as `RunReader.metrics()` gives it.
        validations: as `RunReader.validations()` gives it.
    """
    sources = _sources(metrics, validations)
    last = (LEARNING_RATE, *NORMS)
    ordered = sorted(sources, key=lambda title: (title != "loss", _place(title, last), title))
    # A set has one colour in all panels.
    labels = dict.fromkeys(
        label for title in ordered if title not in NORMS for label, _, _ in sources[title]
    )
    colours = _colours(labels)
    panels = []
    for title in ordered[:MOST_PANELS]:
        if title in NORMS:
            norms = _with_all(sources[title])
            panels.append(_panel(title, norms, _colours(label for label, _, _ in norms)))
        else:
            panels.append(_panel(title, sources[title], colours))
    return [panel for panel in panels if panel]


def timing_panels(metrics: pd.DataFrame) -> list[Panel]:
    """Panels about the speed of the training, as far as it was measured.

    Args:
        metrics: as `RunReader.metrics()` gives it.
    """
    steps = metrics.index.to_numpy()
    panels = []
    for title, columns in _TIMING.items():
        sources = [
            (label, (steps, metrics[column].to_numpy(dtype=float) / unit), False)
            for column, (label, unit) in columns.items()
            if column in metrics.columns and _is_number(metrics[column])
        ]
        panels.append(_panel(title, sources, _colours(label for label, _, _ in sources)))
    return [panel for panel in panels if panel]


def _sources(metrics: pd.DataFrame, validations: pd.DataFrame) -> dict[str, list[Source]]:
    """By panel its curves."""
    sources: dict[str, list[Source]] = {}
    names = [name for name in validation_metrics(validations) if _is_number(validations[name])]
    for column in metrics.columns:
        if column in TIMING or not _is_number(metrics[column]):
            continue
        # What validations have too, under the same whole name, is drawn with theirs.
        prefix, title = ("", column) if column in names else _split(str(column))
        series = (metrics.index.to_numpy(), metrics[column].to_numpy(dtype=float))
        sources.setdefault(title, []).append((prefix or "training", series, False))
    for name, rows in validations.groupby("set", sort=False):
        ordered_rows = rows.sort_values("step")
        steps = ordered_rows["step"].to_numpy()
        for column in names:
            series = (steps, ordered_rows[column].to_numpy(dtype=float))
            sources.setdefault(str(column), []).append((str(name), series, True))
    return sources


def _place(title: str, last: Sequence[str]) -> int:
    return 1 + last.index(title) if title in last else 0


def _colours(labels: Iterable[str]) -> dict[str, str]:
    return {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}


def _is_number(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_numeric_dtype

    return is_numeric_dtype(column.dtype)


def _with_all(sources: Sequence[Source]) -> list[Source]:
    """The norm of all variables together, then those of single ones, the largest first."""
    import numpy as np

    if len(sources) == 1:
        return list(sources)
    steps = sources[0][1][0]
    squares = np.zeros(len(steps))
    sizes = []
    for _, (_, norms), _ in sources:
        squares += norms**2
        sizes.append(norms[np.isfinite(norms)].sum())
    together: Source = ("all variables", (steps, np.sqrt(squares)), False)
    return [together, *(sources[i] for i in np.argsort(sizes, kind="stable")[::-1])]


def validation_metrics(validations: pd.DataFrame) -> list[str]:
    """The columns of `RunReader.validations()` that are metrics."""
    fixed = {"step", "set", "examples", "checkpoint", "seconds"}
    return [str(column) for column in validations.columns if column not in fixed]


def thin(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], points: int = POINTS) -> Series:
    """At most `points` of the finite points, with the extremes of every stretch and both ends."""
    import numpy as np

    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= points:
        return x, y
    bounds = np.linspace(1, len(x) - 1, (points - 2) // 2 + 1).astype(int)
    kept = {0, len(x) - 1}
    for start, stop in itertools.pairwise(bounds):
        kept |= {start + int(np.argmin(y[start:stop])), start + int(np.argmax(y[start:stop]))}
    chosen = np.array(sorted(kept))
    return x[chosen], y[chosen]


def running_mean(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], points: int = 200) -> Series:
    """Means in windows of about a hundredth of the curve, NaN left out, at `points` steps."""
    import numpy as np

    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    half = max(1, len(x) // 200)
    centres = np.unique(np.linspace(0, len(x) - 1, points).astype(int))
    low, high = np.maximum(centres - half, 0), np.minimum(centres + half + 1, len(x))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    return x[centres], (sums[high] - sums[low]) / (high - low)


def _split(column: str) -> tuple[str, str]:
    """Prefix and title: "head/loss" is of the panel "loss"; rates and norms share panels."""
    parts = column.split("/")
    if parts[0] in NORMS and len(parts) > 1:
        return "/".join(parts[1:]), parts[0]
    if LEARNING_RATE in parts:
        return "/".join(part for part in parts if part != LEARNING_RATE), LEARNING_RATE
    return "/".join(parts[:-1]), parts[-1]


def _panel(title: str, sources: Sequence[Source], colours: Mapping[str, str]) -> Panel | None:
    import numpy as np

    curves, notes = [], []
    for label, (x, y), markers in sources[:MOST_CURVES]:
        missing = ~np.isfinite(y)
        if missing.any() and not (markers or missing.all()):
            notes.append(
                f"{label}: {missing.sum():,} of {len(y):,} values are missing or not finite, "
                f"the first at step {x[missing][0]:,}"
            )
        thinned = thin(x, y)
        if len(thinned[0]) == 0:
            continue
        noisy = len(x) >= _SMOOTH_FROM and not markers and title != LEARNING_RATE
        smooth = running_mean(x, y) if noisy else None
        curves.append(Curve(label, colours[label], *thinned, markers, smooth))
    if not curves:
        return None
    if len(sources) > MOST_CURVES:
        notes.append(f"{len(sources) - MOST_CURVES} more curves are left out")
    svg, logarithmic = _draw(curves)
    if logarithmic:
        notes.insert(0, "logarithmic scale")
    return Panel(title, svg, curves, notes)


def _draw(curves: Sequence[Curve]) -> tuple[str, bool]:
    """The drawing, and whether its y axis is logarithmic."""
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text, and the same curves give the same bytes; a user's style is not ours.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "pipefit", "text.usetex": False}
    ):
        figure = Figure(figsize=(4.6, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for curve in curves:
            _add(axes, curve)
        logarithmic = _spans_decades(curves)
        _style(axes, logarithmic)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue()), logarithmic


def _add(axes: Any, curve: Curve) -> None:
    if curve.markers:
        axes.plot(
            curve.x, curve.y, "o-", color=curve.colour, linewidth=1.2, markersize=3.5, zorder=4
        )
        return
    width, alpha = (1.0, 0.35) if curve.smooth else (1.6, 1.0)
    axes.plot(curve.x, curve.y, "-", color=curve.colour, linewidth=width, alpha=alpha, zorder=2)
    if curve.smooth:
        axes.plot(*curve.smooth, "-", color=curve.colour, linewidth=1.8, zorder=3)


def _spans_decades(curves: Iterable[Curve]) -> bool:
    low = min(float(curve.y.min()) for curve in curves)
    high = max(float(curve.y.max()) for curve in curves)
    return low > 0 and high / low > _LOG_FROM


def _style(axes: Any, logarithmic: bool) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("step")
    axes.figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.tick_params(which="both", color=_FAINT, labelcolor=_INK, labelsize=10, left=False)
    axes.xaxis.label.set(color=_INK, fontsize=10)
    axes.margins(x=0.02)


_REPLACED: Mapping[str, str] = {
    r"^.*?(?=<svg)": "",  # the XML header
    r"<metadata>.*?</metadata>|<style.*?</style>": "",
    r' xmlns(?::xlink)?="[^"]*"': "",  # HTML needs none
    r' id="(?!p[0-9a-f]{10}|m[0-9a-f]{10})[^"]*"': "",  # unique in one drawing, not in a page
    r' (?:width|height)="[\d.]+pt"': "",
    r' font-family: [^;"]*;': "",
    re.escape(_INK): "currentColor",
    re.escape(_FAINT): "var(--line)",
}


def _inline(svg: str) -> str:
    """The <svg> element alone, as wide as its place, in the colours of the page."""
    for pattern, replacement in _REPLACED.items():
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    # A hundredth of a pixel is enough for lines; labels, which are numbers too, stay as they are.
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
