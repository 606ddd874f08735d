"""Converting what a file holds to the dtype and shape that were asked for, without silent loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.fields import FieldSpec
from pipefit.errors import DataError

_Array = npt.NDArray[Any]


def converted(values: _Array, spec: FieldSpec, origin: str) -> _Array:
    """Values of this dtype and shape.

    Floats may be rounded to smaller floats; everything else keeps its value or is refused.

    Args:
        values: [examples, ...].
        spec: what they shall be; one example keeps its number of values.
        origin: field and file, for messages.

    Raises:
        DataError: a value has no equal in the dtype, or the shape another number of values.
    """
    shape = values.shape[1:]
    if math.prod(shape) != math.prod(spec.shape):
        raise DataError(
            f"{origin}: cannot be {spec}: one example has {math.prod(shape)} values, not "
            f"{math.prod(spec.shape)}"
        )
    return _cast(values, spec, origin).reshape(len(values), *spec.shape)


def _cast(values: _Array, spec: FieldSpec, origin: str) -> _Array:
    have, want = values.dtype.kind, spec.dtype.kind
    if want == "S" and have == "U":
        return np.char.encode(values, "utf-8")
    if want in "SU" or have in "SU":
        if want != have:
            word = {"U": "texts", "S": "bytes"}.get(have, "numbers")
            example = values.ravel()[0].item()
            raise DataError(f"{origin}: cannot be {spec}: it holds {word}, such as {example!r}")
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(spec.dtype)
        # Rounding to floats is what was asked for, infinity is not.
        kept = np.isfinite(cast) | ~np.isfinite(values) if want in "fc" else cast == values
    if not kept.all():
        row = int(np.argwhere(~kept)[0][0])
        value = values[~kept].ravel()[0].item()
        raise DataError(
            f"{origin}: cannot be {spec}: {value!r} in row {row + 1} has no equal there"
        )
    return cast
