"""Curves as inline SVG, for pages that are read on light and dark screens.

    panels = metric_panels(run.metrics(), run.validations())
    panels[0].title, panels[0].svg          # "loss", "<svg ..."

Text of users never enters an SVG: titles and legends are the page's matter.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Series = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

#: Points of a thinned curve: two per pixel of a panel, its smallest and its largest value.
POINTS = 1200

#: Readable on white and on near black; the first four differ for colour-blind people as well.
COLOURS = ("#3b82c4", "#d9822b", "#2f9e63", "#c2508f", "#8f6bd1", "#d1495b", "#2a9d9d", "#8a7f39")

LEARNING_RATE = "learning_rate"

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
    """A panel per metric: the loss first, the learning rate last, validations with their metric.

    Args:
        metrics: as `RunReader.metrics()` gives it.
        validations: as `RunReader.validations()` gives it.
    """
    sources: dict[str, list[tuple[str, Series, bool]]] = {}
    for column in metrics.columns:
        prefix, title = _split(str(column))
        series = (metrics.index.to_numpy(), metrics[column].to_numpy(dtype=float))
        sources.setdefault(title, []).append((prefix or "training", series, False))
    for name, rows in validations.groupby("set", sort=False):
        ordered_rows = rows.sort_values("step")
        steps = ordered_rows["step"].to_numpy()
        for column in validation_metrics(validations):
            series = (steps, ordered_rows[column].to_numpy(dtype=float))
            sources.setdefault(str(column), []).append((str(name), series, True))
    ordered = sorted(sources, key=lambda title: (title != "loss", title == LEARNING_RATE, title))
    # A set has one colour in all panels.
    labels = dict.fromkeys(label for title in ordered for label, _, _ in sources[title])
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    panels = [_panel(title, sources[title], colours) for title in ordered[:MOST_PANELS]]
    return [panel for panel in panels if panel]


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
    """Prefix and title: "head/loss" is of the panel "loss"; learning rates share one panel."""
    parts = column.split("/")
    if LEARNING_RATE in parts:
        return "/".join(part for part in parts if part != LEARNING_RATE), LEARNING_RATE
    return "/".join(parts[:-1]), parts[-1]


def _panel(
    title: str, sources: Sequence[tuple[str, Series, bool]], colours: Mapping[str, str]
) -> Panel | None:
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
