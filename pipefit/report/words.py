"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from numbers import Integral, Real

_SMALLEST, LARGEST = 1e-3, 1e6  # outside of these, numbers are written like 1.2e-05


def as_number(value: object) -> int | float | None:
    """The plain number in `value`, numpy's included; None if it is something else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else None


def number(value: float, decimals: int = 4) -> str:
    """A number: 0.9766, 12346, 3.2e-05, nan."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    if value != 0 and not _SMALLEST <= abs(value) < LARGEST:
        return f"{value:.4g}"
    return f"{value:.{decimals}f}"


def duration(seconds: float) -> str:
    """A time span: 0.8 s, 42 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    for large, small, names in ((86400, 3600, "d h"), (3600, 60, "h min"), (60, 1, "min s")):
        if total >= large:
            first, second = names.split()
            rest = total % large // small
            return f"{total // large} {first}" + (f" {rest} {second}" if rest else "")
    return f"{total} s"


def size(value: float) -> str:
    """A number of bytes: 104 B, 1.2 MB."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"


def local_time(moment: datetime) -> str:
    """A moment (UTC if it has no time zone) in local time, to the minute."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Not astimezone(): pandas' timestamps, which are datetimes, want it to have an argument.
    return datetime.fromtimestamp(aware.timestamp()).strftime("%Y-%m-%d %H:%M")


def utc_time(moment: datetime) -> str:
    """A moment (UTC if it has no time zone) in UTC, to the second."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def clean(text: object) -> str:
    """One line without control characters: what the database holds cannot steer the terminal."""
    return printable(" ".join(str(text).split()))


def printable(text: str) -> str:
    """`text` with question marks for control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` characters, with an ellipsis where something is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"
