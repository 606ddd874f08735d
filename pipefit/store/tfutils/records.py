"""What is found in a database of tfutils, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import DBRef, ObjectId

#: What tfutils wrote in the place of a dot in a key.
_DOT = "___"
#: Bytes of a piece where the record of a file does not say it.
_CHUNK_SIZE = 255 * 1024


@dataclass(frozen=True)
class TfutilsFile:
    """A file of GridFS.

    Attributes:
        database: the database it is in.
        bucket: its bucket there.
        id: the file's.
        size: bytes, as its record says.
        chunk_size: bytes of each of its pieces but the last.
        md5: of its bytes, hexadecimal; None where drivers no longer wrote it.
        label: what to call it in messages.
    """

    database: str
    bucket: str
    id: ObjectId
    size: int
    chunk_size: int
    md5: str | None
    label: str


@dataclass(frozen=True)
class TfutilsCheckpoint:
    """A saved checkpoint.

    Attributes:
        exp_id: the experiment.
        step: its step.
        file: where it is.
        written: when (UTC).
        recent: whether it was kept for a while only.
        shards: of how many data files it is made, if that is known; None of Saver version 1.
    """

    exp_id: str
    step: int
    file: TfutilsFile
    written: datetime
    recent: bool
    shards: int | None

    @property
    def key(self) -> str:
        """An id of 24 hexadecimal characters."""
        return str(self.file.id)


@dataclass(frozen=True)
class TfutilsRecord:
    """What tfutils stored at one save.

    Attributes:
        id: the record's.
        exp_id: the experiment.
        step: of the save; None for a validation of a stored checkpoint.
        written: when (UTC).
        params: all parameters, keys as they stand there.
        train_results: one mapping of values per step, the last one of `step`.
        validation_results: by set a mapping of values.
        validates: id of the record whose checkpoint was validated.
    """

    id: str
    exp_id: str
    step: int | None
    written: datetime
    params: Mapping[str, Any] = field(default_factory=dict)
    train_results: Sequence[Mapping[str, Any]] = ()
    validation_results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    validates: ObjectId | None = None


@dataclass(frozen=True)
class TfutilsItem:
    """Results that tfutils pickled into a file: `item_for` is the id of the record they are of."""

    name: str
    item_for: str
    file: TfutilsFile


def records_of(stored: Iterable[Mapping[str, Any]]) -> Iterator[TfutilsRecord]:
    """Records as they are stored, in plain types; what tfutils never wrote is left out."""
    # Every record has all parameters, and thousands of them have the same ones.
    params, same = None, _mapping(None)
    for one in stored:
        if one.get("params") != params:
            params, same = one.get("params"), _mapping(plain(one.get("params")))
        yield _record(one, same)


def _record(stored: Mapping[str, Any], params: Mapping[str, Any]) -> TfutilsRecord:
    told = plain({key: value for key, value in stored.items() if key != "params"})
    results = told.get("train_results") or ()
    if isinstance(results, Mapping):  # the first versions kept the last step's only
        results = [results]
    sets = _undone(_mapping(told.get("validation_results")))
    validates = stored.get("validates")
    return TfutilsRecord(
        id=told["_id"],
        exp_id=str(told["exp_id"]),
        step=whole(told.get("step")),
        written=_time(stored),
        params=params,
        train_results=[_undone(entry) for entry in results if isinstance(entry, Mapping)],
        validation_results={n: found for n, found in sets.items() if isinstance(found, Mapping)},
        validates=validates if isinstance(validates, ObjectId) else None,
    )


def checkpoint_of(
    stored: Mapping[str, Any], database: str, bucket: str, *, recent: bool
) -> TfutilsCheckpoint:
    """The record of a checkpoint."""
    step, exp_id = stored["step"], str(stored["exp_id"])
    shards = stored.get("_saver_num_data_files")
    label = f"the checkpoint of step {step} of experiment {exp_id!r}"
    return TfutilsCheckpoint(
        exp_id=exp_id,
        step=int(step),
        file=file_of(stored, database, bucket, label),
        written=_time(stored),
        recent=recent,
        shards=int(shards) if isinstance(shards, int) else None,
    )


def file_of(stored: Mapping[str, Any], database: str, bucket: str, label: str) -> TfutilsFile:
    """The file of a record that has one."""
    md5 = stored.get("md5")
    return TfutilsFile(
        database=database,
        bucket=bucket,
        id=stored["_id"],
        size=int(stored["length"]),
        chunk_size=whole(stored.get("chunkSize")) or _CHUNK_SIZE,
        md5=md5 if isinstance(md5, str) else None,
        label=label,
    )


def whole(value: Any) -> int | None:
    """The value if it is a whole number of 0 or more."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
    return value if fits else None


def plain(value: Any) -> Any:
    """The value with types of Python alone; what has no such type becomes text."""
    if isinstance(value, DBRef):  # the driver makes one of any mapping with $ref and $id
        value = value.as_doc()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)  # BSON has its own class of them
    if value is None or isinstance(value, bool | float | str | datetime):
        return value
    return str(value)


def _undone(told: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with dots in its keys where they were, at all depths."""
    return {
        key.replace(_DOT, "."): _undone(value) if isinstance(value, Mapping) else value
        for key, value in told.items()
    }


def _time(stored: Mapping[str, Any]) -> datetime:
    """When it was written: what has no file says it in its id alone, to the second."""
    told = stored.get("uploadDate")
    return told if isinstance(told, datetime) else stored["_id"].generation_time


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
