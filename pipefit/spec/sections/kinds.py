"""Kinds of values that several sections have: regular expressions, durations, metrics, ..."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, PlainValidator, Tag

from pipefit.refs import unknown
from pipefit.spec.tables import Builder, Positive, Table

#: Words that pydantic adds to the place of an error where a key may hold several kinds of value.
TAGS = frozenset(("<name>", "<number>", "<table>", "<run>", "<file>", "<archived>", "<tfutils>"))


def kind(value: Any) -> str | None:
    """The tag of a value that may be a name, a number or a table."""
    if isinstance(value, dict | Table):
        return "<table>"
    if isinstance(value, str):
        return "<name>"
    return "<number>" if isinstance(value, int | float) and not isinstance(value, bool) else None


def _checked_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return text


#: Searched (`re.search`) in the names of variables.
Regex = Annotated[str, AfterValidator(_checked_regex)]

#: A number, or the table of a schedule.
LearningRate = Annotated[
    Annotated[Positive, Tag("<number>")] | Annotated[Builder, Tag("<table>")],
    Discriminator(
        kind,
        custom_error_type="wrong_kind",
        custom_error_message="must be a number greater than 0 or a table with a builder",
    ),
]

# ---- durations ----

_DURATION = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?"
)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def _checked_duration(value: Any) -> float:
    seconds = 0.0
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        seconds = sum(float(found[unit] or 0) * size for unit, size in _UNITS.items())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not 0 < seconds < math.inf:
        raise ValueError('must be seconds (greater than 0), or a text such as "8h", "1h30m", "45s"')
    return seconds


#: Seconds; a file may also write "1h30m".
Duration = Annotated[float, PlainValidator(_checked_duration)]

# ---- metrics of validations ----


def _checked_metric(text: str) -> str:
    validation, _, metric = text.partition("/")
    if not validation or not metric:
        raise ValueError("must be written SET/METRIC, such as test/accuracy")
    return text


class MetricRule(Table):
    """A validation metric, and whether smaller or larger values of it are better."""

    metric: Annotated[str, AfterValidator(_checked_metric)]
    mode: Literal["min", "max"]

    @property
    def validation(self) -> str:
        """The validation set of `metric`, which is written "SET/METRIC"."""
        return self.metric.partition("/")[0]


# ---- fields of examples ----

_FIELD = re.compile(r"(?P<dtype>[a-z]+[0-9]*)(?:\[(?P<shape>(?:\d+(?:\s*,\s*\d+)*)?)\])?")
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "str", "bytes",
)  # fmt: skip


def parse_field(text: str) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of one example of a field, as `data.NAME.fields` declares it.

    >>> parse_field("float32[8,8,1]"), parse_field("int64[]"), parse_field("str")
    (('float32', (8, 8, 1)), ('int64', ()), ('str', ()))

    Returns:
        The name of a NumPy dtype, "str" or "bytes"; the shape, without the batch dimension.

    Raises:
        ValueError: if it is not written so.
    """
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError('must be dtype[shape], such as "float32[8,8,1]" or "int64[]", or "str"')
    if found["dtype"] not in _DTYPES:
        raise ValueError(unknown("unknown dtype", found["dtype"], _DTYPES))
    shape = found["shape"]
    return found["dtype"], tuple(map(int, shape.split(","))) if shape else ()


def _checked_field(text: str) -> str:
    parse_field(text)
    return text


FieldText = Annotated[str, AfterValidator(_checked_field)]
