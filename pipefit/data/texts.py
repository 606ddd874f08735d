"""From lists of Python values, as files give them, to arrays of numbers, texts or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.errors import DataError


def array_of(values: Sequence[Any], origin: str) -> npt.NDArray[Any]:
    """One array of values that are all texts, all bytes, all numbers, or arrays of one shape.

    Args:
        values: at least one.
        origin: where they come from, for messages.

    Raises:
        DataError: they are of several kinds, or cannot be an array without loss.
    """
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return np.array(values, dtype=np.str_)
    if kinds == {bytes}:
        return _bytes_of(values, origin)
    if kinds & {str, bytes}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{origin}: holds values of several kinds ({names}); give one kind")
    try:
        array = np.array(list(values))
    except ValueError as error:  # NumPy's word for arrays of several shapes
        raise DataError(
            f"{origin}: holds values of several lengths or shapes; all must have the same"
        ) from error
    if array.dtype.kind not in "biufc":
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{origin}: holds {names}; give numbers, texts or bytes")
    return array


def _bytes_of(values: Sequence[bytes], origin: str) -> npt.NDArray[Any]:
    # NumPy takes zero bytes at the end for filling, and drops them without a word.
    for number, value in enumerate(values):
        if value.endswith(b"\0"):
            raise DataError(
                f"{origin}: the bytes of number {number} end with zero bytes, which arrays of "
                "bytes cannot hold; store numbers (uint8) of one length, or another ending"
            )
    return np.array(values, dtype=np.bytes_)
