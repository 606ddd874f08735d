"""Run as a program of its own: `python -I unpickler.py < pickled > arrays.npz`.

A pickle is a program, and whoever could write to the database may have written it. This is the only
file of Pipefit that reads one, and `pipefit import-tfutils` starts it only if it is told to. It
imports nothing of Pipefit and knows no secrets; of what a pickle may ask for it has only what makes
numpy's arrays, and it may write no files and use only so much memory and time. What remains is that
damaged arrays might upset numpy itself: that ends this process, and no other.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy._core import multiarray, numeric

#: Bytes of memory beyond those that the pickled file has four times, and seconds of computing.
_MEMORY, _SECONDS = 2 * 2**30, 120


def _encoded(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into pickles of old protocols."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text is encoded as {encoding[:20]!r}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encoded,
    **{
        (f"numpy.{core}.{module}", name): getattr(place, name)
        for core in ("core", "_core")
        for module, place, name in (
            ("multiarray", multiarray, "_reconstruct"),
            ("multiarray", multiarray, "scalar"),
            ("numeric", numeric, "_frombuffer"),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What the pickle asks for, if it is one of the few that make arrays."""
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module[:100]}.{name[:100]}, which is no part of arrays"
            ) from None


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Read a pickle, and write its arrays as npz, with what is where in it as JSON."""
    data = source.read()
    _limit(resource.RLIMIT_AS, 4 * len(data) + _MEMORY)
    _limit(resource.RLIMIT_CPU, _SECONDS)
    _limit(resource.RLIMIT_FSIZE, 0)
    arrays: list[np.ndarray[Any, Any]] = []
    tree = _tree(_Unpickler(io.BytesIO(data), encoding="latin1").load(), arrays)
    text = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, tree=text, **{f"a{i}": a for i, a in enumerate(arrays)})
    target.write(packed.getvalue())


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard < 0 else min(most, hard), hard))


def _tree(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """The value as JSON can hold it; an array is {"array": its number}, a mapping {"keys": ...}."""
    if isinstance(value, Mapping):
        return {"keys": {str(key): _tree(item, arrays) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_tree(item, arrays) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays.append(np.asarray(value))
        return {"array": len(arrays) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return None


if __name__ == "__main__":
    try:
        main(sys.stdin.buffer, sys.stdout.buffer)
    except Exception as error:  # whatever a pickle can raise
        sys.exit(f"{type(error).__name__}: {error}")
