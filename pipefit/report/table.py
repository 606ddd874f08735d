"""Plain text tables for terminals.

    >>> print(text_table(["name", "step", "loss"], [["mlp", 500, 0.16231], ["cnn", 20, 2.3]]))
    name  step    loss
    ----  ----  ------
    mlp    500  0.1623
    cnn     20  2.3000

Numbers are aligned to the right, and the numbers of a column have equally many decimals. A table
too wide for the terminal has its text shortened; if that is not enough, its rows become blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from pipefit.report.words import LARGEST, as_number, clean, cut, local_time, number

_GAP = "  "
_SHORTEST = 10  # a text column is not cut below this

#: What validations and their like have besides metrics, in the order of the table.
_FIRST, _LAST = ("step", "set"), ("examples", "seconds", "checkpoint")


def text_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None
) -> str:
    """The rows under their headers.

    Args:
        headers: one per column.
        rows: one value per column: numbers, text, dates (shown in local time) or None (blank).
        width: columns of the terminal; None for no limit (a file or a pipe).
    """
    columns = list(zip_longest(*rows)) or [()] * len(headers)
    numeric = [_is_numeric(column) for column in columns]
    cells = [
        [clean(header), *map(_formatter(c), c)] for header, c in zip(headers, columns, strict=True)
    ]
    widths = _fit([max(map(len, column)) for column in cells], numeric, width)
    if widths is None:
        return _blocks(cells)
    lines = [_line(row, widths, numeric) for row in zip(*cells, strict=True)]
    return "\n".join([lines[0], _GAP.join("-" * w for w in widths), *lines[1:]])


def validations_table(rows: Iterable[Mapping[str, Any]], *, width: int | None = None) -> str:
    """A table of validations: step, set, the metrics, then the number of examples.

    Args:
        rows: one mapping per validation with the columns of `RunReader.validations()`
            (`to_dict("records")` of that gives them); any other key is a metric.
        width: as in `text_table`.
    """
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row)
    metrics = [key for key in keys if key not in (*_FIRST, *_LAST)]
    headers = [*_FIRST, *metrics, "examples"]
    values = [
        [_known(row.get(key)) if key in metrics else row.get(key) for key in headers]
        for row in rows
    ]
    return text_table(headers, values, width=width)


def _is_numeric(column: Sequence[object]) -> bool:
    values = [v for v in column if v is not None]
    return bool(values) and all(as_number(v) is not None for v in values)


def _formatter(column: Sequence[object]) -> Callable[[object], str]:
    decimals = _decimals([n for n in map(as_number, column) if n is not None])

    def formatted(value: object) -> str:
        if value is None:
            return ""
        if (plain := as_number(value)) is not None:
            return number(plain, decimals)
        if isinstance(value, datetime):
            return local_time(value)
        return clean(value)

    return formatted


def _decimals(values: Sequence[float]) -> int:
    """Four decimals for numbers below ten; one less for every further digit."""
    finite = [abs(v) for v in values if math.isfinite(v) and abs(v) < LARGEST]
    digits = len(str(int(max(finite, default=0.0))))
    return max(0, 5 - digits)


def _fit(widths: list[int], numeric: Sequence[bool], limit: int | None) -> list[int] | None:
    """Widths that fit the limit, text columns cut, the widest first; None if that is impossible."""
    gaps = len(_GAP) * (len(widths) - 1)
    while limit is not None and sum(widths) + gaps > limit:
        cuttable = [i for i, w in enumerate(widths) if not numeric[i] and w > _SHORTEST]
        if not cuttable:
            return None
        widest = max(cuttable, key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = [
        cut(cell, width).rjust(width) if right else cut(cell, width).ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ]
    return _GAP.join(parts).rstrip()


def _blocks(cells: Sequence[Sequence[str]]) -> str:
    """One "header  value" line per cell, a blank line between rows; blank cells are left out."""
    headers, *rows = zip(*cells, strict=True)
    pad = max(map(len, headers))
    blocks = [
        "\n".join(
            f"{h.ljust(pad)}{_GAP}{cell}" for h, cell in zip(headers, row, strict=True) if cell
        )
        for row in rows
    ]
    return "\n\n".join(blocks)


def _known(value: object) -> object:
    """None in place of NaN: in a row of a data frame it stands for a metric the set lacks."""
    return None if isinstance(value, float) and math.isnan(value) else value
