"""CSV and Parquet files, read into memory by pandas. See `csv` and `parquet`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipefit.data.arrays import Arrays, arrays_of
from pipefit.data.conversion import converted
from pipefit.data.fields import Fields, FieldSpec, declared_specs
from pipefit.data.places import absent, located, located_file
from pipefit.data.texts import array_of
from pipefit.errors import DataError
from pipefit.refs import show

if TYPE_CHECKING:
    import pandas as pd

#: By field: a column, or several that make one row of numbers, or a pattern for such.
Columns = Mapping[str, str | Sequence[str]] | Collection[str]
_PATTERN = re.compile(r"[*?]")


def csv(
    path: str | Path | None = None,
    *,
    columns: Columns | None = None,
    types: Mapping[str, str] | None = None,
    separator: str = ",",
    archive: Path | None = None,
) -> Arrays:
    """The columns of a CSV file with a header; they are read into memory.

    Args:
        path: of the file (.gz and the like too); relative to the archive, if there is one.
        columns: by field the name of a column; or a list of names or a pattern ("pixel*"), which
            make one vector of all these columns; or a list of columns, whose names are the fields'.
            Default: every column is a field.
        types: by field what it is converted to, written as in `fields` of a data table:
            "float32[8,8,1]", "int64". A conversion that changes a value is refused, rounding to
            smaller floats apart. A column that is to be "str" is read as it stands: cells like "NA"
            or "" are texts there, and missing values elsewhere.
        separator: between cells.
        archive: the unpacked archive.

    Raises:
        DataError: the file cannot be read, a column is missing, a value is missing or is not what
            `types` says.
    """
    import pandas as pd

    place = located_file("csv", path, archive)
    origin = f"csv: {place}"
    specs = declared_specs(types or {})
    try:
        # Not only the columns needed: rows with more cells than the header would go unnoticed.
        frame = _read_csv(place, separator, _exact(pd.__version__))
        chosen = _chosen(origin, columns, frame.columns.tolist())
        if texts := _verbatim(chosen, specs):
            as_they_are = {"usecols": texts, "dtype": str, "keep_default_na": False}
            frame[texts] = _read_csv(place, separator, as_they_are)[texts]
    except pd.errors.ParserWarning as error:
        raise DataError(
            f"{origin}: its rows have more cells than its header has names; correct the file"
        ) from error
    except (OSError, ValueError) as error:  # pandas' own errors of parsing are ValueErrors
        raise DataError(f"{origin}: cannot be read: {error}") from error
    return arrays_of(origin, _fields(origin, frame, chosen, specs))


def parquet(
    path: str | Path | None = None,
    *,
    columns: Columns | None = None,
    types: Mapping[str, str] | None = None,
    archive: Path | None = None,
) -> Arrays:
    """The columns of a Parquet file, or of a folder of such; they are read into memory.

    Columns may hold lists, if all have one length.

    Args:
        path: of the file or folder; relative to the archive, if there is one.
        columns: see `csv`.
        types: see `csv`.
        archive: the unpacked archive.

    Raises:
        DataError: as `csv`, and if pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.dataset
    except ImportError as error:
        raise DataError(
            "parquet: needs the package pyarrow, which is not installed; "
            "python -m pip install 'pipefit[parquet]'"
        ) from error
    import pandas as pd

    place = located("parquet", path, archive)
    if not place.is_dir():
        place = located_file("parquet", path, archive)
    origin = f"parquet: {place}"
    specs = declared_specs(types or {})
    try:
        schema = pyarrow.dataset.dataset(place, format="parquet", partitioning="hive").schema
        chosen = _chosen(origin, columns, schema.names)
        frame = pd.read_parquet(place, engine="pyarrow", columns=_every(chosen))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{origin}: cannot be read: {error}") from error
    return arrays_of(origin, _fields(origin, frame, chosen, specs))


def _read_csv(place: Path, separator: str, options: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    with warnings.catch_warnings():
        # It warns where it drops cells; without index_col it would shift all columns by one.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame: pd.DataFrame = pd.read_csv(place, sep=separator, index_col=False, **options)
    return frame


def _exact(version: str) -> dict[str, Any]:
    """What makes pandas read floats to the last bit: the default since 3.1, which warns of it."""
    major, minor = map(int, version.split(".")[:2])
    return {} if (major, minor) >= (3, 1) else {"float_precision": "round_trip"}


def _chosen(
    origin: str, columns: Columns | None, there: Collection[str]
) -> dict[str, str | list[str]]:
    """The column of every field, or its columns."""
    if isinstance(columns, str):
        raise DataError(f"{origin}: columns = {show(columns)} must be a list or a table")
    if columns is None:
        columns = there
    given = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    return {field: _names(origin, names, there) for field, names in given.items()}


def _names(origin: str, names: str | Sequence[str], there: Collection[str]) -> str | list[str]:
    if isinstance(names, str) and names not in there and _PATTERN.search(names):
        found = [name for name in there if fnmatchcase(name, names)]
        if found:
            return found
    every = [names] if isinstance(names, str) else list(names)
    for name in every:
        if name not in there:
            raise DataError(f"{origin}: {absent('column', name, there)}")
    return names if isinstance(names, str) else every


def _every(chosen: Mapping[str, str | list[str]]) -> list[str]:
    """The names of all columns that are needed, each once."""
    groups = ([names] if isinstance(names, str) else names for names in chosen.values())
    return list(dict.fromkeys(name for group in groups for name in group))


def _verbatim(chosen: Mapping[str, str | list[str]], specs: Mapping[str, FieldSpec]) -> list[str]:
    texts = {field: names for field, names in chosen.items() if _is_text(specs.get(field))}
    return _every(texts)


def _is_text(spec: FieldSpec | None) -> bool:
    return spec is not None and spec.dtype.kind in "SU"


def _fields(
    origin: str,
    frame: pd.DataFrame,
    chosen: Mapping[str, str | list[str]],
    specs: Mapping[str, FieldSpec],
) -> Fields:
    for field in specs:
        if field not in chosen:
            raise DataError(f"{origin}: types: {absent('field', field, list(chosen))}")
    if not len(frame):
        raise DataError(f"{origin}: has no rows; at least one is needed")
    fields = {}
    for field, names in chosen.items():
        if isinstance(names, str):
            values = _values(frame[names], f"{origin}: column {names!r}")
        else:
            parts = [_values(frame[name], f"{origin}: column {name!r}") for name in names]
            values = _stacked(parts, f"{origin}: field {field!r}")
        if field in specs:
            values = converted(values, specs[field], f"{origin}: field {field!r}")
        fields[field] = values
    return fields


def _values(column: pd.Series[Any], origin: str) -> npt.NDArray[Any]:
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size:
        raise DataError(
            f"{origin}: {missing.size} of {len(column)} values are missing (empty or NaN), first "
            f"in row {missing[0] + 1}; fill them in, leave these rows out, or declare the field as "
            '"str" in types if they are texts'
        )
    values = column.to_numpy()
    return values if values.dtype.kind in "biufc" else array_of(values.tolist(), origin)


def _stacked(parts: Sequence[npt.NDArray[Any]], origin: str) -> npt.NDArray[Any]:
    if len({part.dtype.kind in "SU" for part in parts}) > 1:
        raise DataError(f"{origin}: some of its columns hold texts and others numbers")
    return np.stack(parts, axis=1)
