"""Files, each decoded to one example when it is asked for. See `files`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.fields import Fields, described, spec_of
from pipefit.data.filesets import FileSet, open_files
from pipefit.data.places import located, shortened
from pipefit.data.texts import array_of
from pipefit.errors import DataError, PipefitError
from pipefit.refs import show

#: From a file's name and bytes to the fields of one example.
Decoder = Callable[[str, bytes], Mapping[str, Any]]


def files(
    path: str | Path | None = None,
    *,
    decode: Decoder,
    match: str = "*",
    archive: Path | None = None,
) -> Files:
    """A source of files: of a folder, or of a plain tar or zip archive read in place.

    Args:
        path: of the folder or archive file; relative to the archive of the experiment, if any.
        decode: called with a file's name and bytes, from several threads at once; returns the
            fields of one example, each a number, text, bytes or array. The same file always gives
            the same example, and all files the same fields, shapes and dtypes.
        match: which files: a pattern for the whole name, in which "*" is any text, "/" too.
        archive: the unpacked archive, or with `unpack = false` the archive file.

    Raises:
        DataError: there is no such place or no file that matches, or the first cannot be decoded.
    """
    if not callable(decode):
        raise DataError(
            f"files: decode = {show(decode)} must be a function of a file's name and bytes; in an "
            "experiment file a table with a builder that returns one"
        )
    fileset = open_files(located("files", path, archive))
    names = [name for name in fileset.names if fnmatchcase(name, match)]
    if not names:
        raise DataError(
            f"files: {fileset}: no file matches {show(match)}; there is {shortened(fileset.names)}"
        )
    return Files(fileset, names, decode)


class Files:
    """A source of files, each decoded to one example; several threads read and decode at once.

    Args:
        fileset: where they are.
        names: of the files; their order is that of the examples.
        decode: see `files`.

    Attributes:
        names: of the files, by index.
    """

    def __init__(self, fileset: FileSet, names: Sequence[str], decode: Decoder):
        self.fileset = fileset
        self.names = tuple(names)
        self._decode = decode
        first = self._decoded(self.names[0])
        self._specs = {key: self._spec(self.names[0], key, value) for key, value in first.items()}

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices, arrays of shape [len(indices), ...]."""
        decoded = [self._checked(self.names[index]) for index in indices]
        return {
            name: array_of([example[name] for example in decoded], f"{self.fileset}: {name}")
            if spec.dtype.kind in "SU" and not spec.shape
            else np.stack([example[name] for example in decoded])
            for name, spec in self._specs.items()
        }

    def digest(self) -> str:
        """The sha256 of the files or of their archive; read once and kept until they change."""
        return self.fileset.digest(self.names)

    def close(self) -> None:
        """Close the archive."""
        self.fileset.close()

    def _checked(self, name: str) -> Mapping[str, Any]:
        example = self._decoded(name)
        specs = {key: self._spec(name, key, value) for key, value in example.items()}
        if specs != self._specs:
            raise DataError(self._differs(name, described(specs), described(self._specs)))
        return example

    def _differs(self, name: str, got: str, first: str) -> str:
        return (
            f"{self.fileset}: {name!r} gives {got}; the first file, {self.names[0]!r}, gives "
            f"{first}, and all must give the same"
        )

    def _decoded(self, name: str) -> Mapping[str, Any]:
        data = self.fileset.read(name)
        try:
            example = self._decode(name, data)
        except PipefitError as error:
            raise DataError(f"{self.fileset}: {name!r}: {error}") from error
        except Exception as error:
            details = "".join(traceback.format_exception(error)).rstrip()
            raise DataError(
                f"{self.fileset}: {name!r} cannot be decoded: {type(error).__name__}: {error}\n"
                f"{details}"
            ) from error
        if not isinstance(example, Mapping) or not example:
            raise DataError(
                f"{self.fileset}: {name!r}: decode must return a dict of fields, not "
                f"{type(example).__name__}"
            )
        return example

    def _spec(self, name: str, key: str, value: Any) -> Any:
        return spec_of(key, np.asarray(value)[None], f"{self.fileset}: {name!r}")
