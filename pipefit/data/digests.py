"""Digests of what a source holds: the same content, the same text.

>>> from pipefit.data import Arrays
>>> content_digest(Arrays(x=[1, 2]))[:14]
'sha256:8182e4f'
>>> content_digest(Arrays(x=[1, 2])) == content_digest(Arrays(x=[1, 3]))
False
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.archives import remembered
from pipefit.data.fields import check_fields
from pipefit.data.sources import Source, field_specs, indexable
from pipefit.errors import DataError

#: Examples that a sampled digest looks at.
SAMPLES = 64
_AT_ONCE = 8


def content_digest(source: Any) -> str:
    """A text that is another one when the content of a source is.

    Returns:
        What `source.digest()` says, if there is one; Pipefit's own sources say "sha256:..." of all
        they hold. Else "sampled:..." of the number of examples, their fields, and 64 examples
        spread evenly over them: changes elsewhere are not seen. "none:" for what cannot be indexed.

    Raises:
        DataError: it cannot be read, or its digest is no text.
    """
    own = getattr(source, "digest", None)
    if own is not None:
        digest = own()
        if not isinstance(digest, str) or not digest:
            raise DataError(f"{type(source).__name__}: digest() must return a text, not {digest!r}")
        return digest
    return _sampled(source) if indexable(source) else "none:"


def arrays_digest(fields: Mapping[str, npt.NDArray[Any]]) -> str:
    """Of arrays: the sha256 of their names, dtypes, shapes and bytes (0.6 to 1.9 GB a second)."""
    digest = hashlib.sha256()
    for name in sorted(fields):
        _add(digest, name, fields[name])
    return f"sha256:{digest.hexdigest()}"


def file_digest(path: Path) -> str:
    """Of one file: its sha256, kept in PIPEFIT_HOME until its path, size or time changes.

    Raises:
        DataError: it cannot be read.
    """
    return files_digest({"": path})


def files_digest(files: Mapping[str, Path]) -> str:
    """Of several files: the sha256 of their names and sha256s; of one: its sha256.

    They are read once: the result is kept in PIPEFIT_HOME while no path, size or time changes.

    Raises:
        DataError: one cannot be read.
    """
    try:
        return "sha256:" + remembered("digests", files, lambda: _hashed(files))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def combined_digest(parts: Mapping[str, str]) -> str:
    """Of several digests, by name; as certain as the least certain of them."""
    kinds = {text.partition(":")[0] for text in parts.values()}
    kind = next((kind for kind in ("none", "sampled") if kind in kinds), "sha256")
    lines = "".join(f"{name}\n{text}\n" for name, text in parts.items())
    return f"{kind}:{hashlib.sha256(lines.encode()).hexdigest()}"


def _hashed(files: Mapping[str, Path]) -> str:
    digests = {}
    for name, path in files.items():
        with path.open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _sampled(source: Source) -> str:
    origin = type(source).__name__
    specs = field_specs(source)
    digest = hashlib.sha256(f"{len(source)}\n".encode())
    chosen = np.unique(np.linspace(0, len(source) - 1, SAMPLES).round().astype(np.int64))
    for start in range(0, len(chosen), _AT_ONCE):
        indices = chosen[start : start + _AT_ONCE]
        fields = source.take(indices)
        check_fields(fields, len(indices), specs, origin)
        for name in sorted(specs):
            _add(digest, name, np.asarray(fields[name]))
    return f"sampled:{digest.hexdigest()}"


def _add(digest: Any, name: str, array: npt.NDArray[Any]) -> None:
    kind = array.dtype.kind
    # How wide an array of texts is depends on its longest text.
    dtype = kind if kind in "SU" else array.dtype.str
    digest.update(f"{name}\n{dtype} {array.shape}\n".encode())
    if kind not in "SU":
        digest.update(np.ascontiguousarray(array))
        return
    for value in array.ravel().tolist():
        data = value.encode() if kind == "U" else value
        digest.update(f"{len(data)}\n".encode() + data)
