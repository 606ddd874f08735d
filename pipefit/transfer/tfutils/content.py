"""An experiment of tfutils as a run that every store takes: `pipefit.store.content.RunContent`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pipefit.records import RunState
from pipefit.store.codec import encode_tensors, is_storable
from pipefit.store.columns import Packed, single, split_block
from pipefit.store.content import Part
from pipefit.store.documents import ATTEMPT, CHECKPOINT, METRICS, VALIDATION
from pipefit.store.identity import IMPORTED
from pipefit.store.tfutils import TfutilsCheckpoint, TfutilsItem, TfutilsRecord
from pipefit.transfer.tfutils.provenance import (
    ARTIFACT,
    history,
    milliseconds,
    provenance,
    told_of,
)
from pipefit.transfer.tfutils.series import Skipped, flat_values, training_blocks

if TYPE_CHECKING:
    import numpy as np


#: Of the only attempt; tfutils did not say how often a training was continued.
_FENCE = 1
_UNKNOWN = {"host": "unknown (tfutils)", "scope": "", "pid": 0, "started": 0.0}
#: Names that validations have already, for columns of their own.
_RESERVED = frozenset({"step", "set", "examples", "checkpoint", "seconds"})


class Variables(Protocol):
    """An open checkpoint: what is needed of `pipefit.loading.Source`."""

    def tensors(self) -> Mapping[str, Any]:
        """By name what is known of the variables: `dtype`, and `role`, what they are for."""

    def read(self, names: Any) -> dict[str, np.ndarray[Any, Any]]:
        """The named variables."""


OpenCheckpoint = Callable[[TfutilsCheckpoint], AbstractContextManager[Variables]]


@dataclass
class Experiment:
    """All of an experiment that was found.

    Attributes:
        database: the name of the database.
        collection: the collection there.
        exp_id: the experiment.
        records: in the order in which they were written; all have a step.
        checkpoints: by step.
        items: pickled results.
        skipped: is told of values that could not be taken over.
    """

    database: str
    collection: str
    exp_id: str
    records: Sequence[TfutilsRecord]
    checkpoints: Sequence[TfutilsCheckpoint]
    items: Sequence[TfutilsItem] = ()
    skipped: Skipped = field(default_factory=Skipped)

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters, as they were last."""
        return self.records[-1].params

    @property
    def last(self) -> int:
        """The last step of which there is something."""
        return max(record.step or 0 for record in self.records)


class TfutilsContent:
    """`pipefit.store.content.RunContent` of an experiment.

    Args:
        found: the experiment.
        collection: the collection that the run is to be in.
        name: what it is to be called.
        open_checkpoint: opens one of its checkpoints.
    """

    def __init__(
        self,
        found: Experiment,
        collection: str,
        name: str,
        open_checkpoint: OpenCheckpoint,
    ) -> None:
        self.collection = collection
        self.name = name
        self._found = found
        self._open = open_checkpoint
        self.blocks = training_blocks(found.records, found.skipped)
        self.validations = _validations(found)

    @property
    def start(self) -> int:
        """The step it continued after, -1 for none."""
        steps = [block.first for block in self.blocks]
        steps += [record.step or 0 for record in self._found.records]
        steps += [checkpoint.step for checkpoint in self._found.checkpoints]
        return min(steps) - 1

    def document(self) -> tuple[dict[str, Any], list[Part]]:
        """The document of the run, and what tfutils said about it."""
        found, told = self._found, told_of(self._found)
        text = provenance(found)
        part = _part(text)
        artifact = {"name": ARTIFACT, "size": part.size, "sha256": part.sha256}
        newest = found.checkpoints[-1] if found.checkpoints else None
        attempt = self._attempt()
        document = {
            "identity": f"{IMPORTED}tfutils:{_sha256(json.dumps(told['parts']).encode())}",
            "steps": told["steps"],
            "state": attempt["state"],
            "reason": attempt["reason"],
            "fence": _FENCE,
            "created": attempt["started"],
            "updated": attempt["ended"],
            "parts": json.dumps(told["parts"]),
            "spec": json.dumps(told["spec"]),
            "program": json.dumps(told["program"]),
            "line": [[_FENCE, self.start]],
            "committed": newest and {"step": newest.step, "id": self._id(newest)},
            "best": None,
            "attempt": attempt,
            "ended": None,
            "described": {"model": json.dumps(told["model"]), "artifacts": [artifact]},
            "history": history(found, self.start, _FENCE),
        }
        return document, [part]

    def records(self) -> Iterator[tuple[dict[str, Any], list[Part]]]:
        """The records by kind, step and name, checkpoints last."""
        attempt = self._attempt()
        yield (
            {
                **_common(ATTEMPT, "", _FENCE, attempt["started"]),
                **{key: value for key, value in attempt.items() if key != "fence"},
                "program": json.dumps(told_of(self._found)["program"]),
                "log_tail": "",
            },
            [],
        )
        yield from self._metrics()
        for _, validation in sorted(self.validations.items()):
            yield validation
        for checkpoint in self._found.checkpoints:
            yield self._checkpoint(checkpoint)

    def _attempt(self) -> dict[str, Any]:
        found, steps = self._found, told_of(self._found)["steps"]
        ended = found.last >= steps
        missing = f"the tfutils database has {found.last} of {steps} steps"
        written = [record.written for record in found.records]
        return {
            "fence": _FENCE,
            "owner": dict(_UNKNOWN),
            "started": milliseconds(min(written)),
            "start": self.start,
            "ended": milliseconds(max(written)),
            "state": str(RunState.FINISHED if ended else RunState.INTERRUPTED),
            "reason": None if ended else missing,
            "reached": found.last,
        }

    def _metrics(self) -> Iterator[tuple[dict[str, Any], list[Part]]]:
        written = milliseconds(max(record.written for record in self._found.records))
        pieces = [piece for block in self.blocks for piece in split_block(block)]
        for number, piece in enumerate(pieces):
            entries, parts = _entries(piece.columns)
            record = {
                **_common(METRICS, "", piece.first, written),
                "steps": piece.steps,
                "written": number,
                "columns": entries,
            }
            yield record, parts

    def _checkpoint(self, checkpoint: TfutilsCheckpoint) -> tuple[dict[str, Any], list[Part]]:
        with self._open(checkpoint) as source:
            known = source.tensors()
            kept = [name for name in known if is_storable(known[name].dtype)]
            tensors = source.read(kept)
        for name in known.keys() - kept:
            self._found.skipped.values[f"the variable {name}"] = len(self._found.checkpoints)
        part = _part(encode_tensors({_name(n, known[n].role): a for n, a in tensors.items()}))
        record = {
            **_common(CHECKPOINT, self._id(checkpoint), checkpoint.step, checkpoint.written),
            "size": part.size,
            "sha256": part.sha256,
            "kinds": ["recent" if checkpoint.recent else "permanent"],
            "best": None,
        }
        return record, [part]

    def _id(self, checkpoint: TfutilsCheckpoint) -> str:
        # One experiment may become several runs of one collection.
        return _sha256(f"{self.name}\0{checkpoint.key}".encode())[:24]


def _name(variable: str, role: str) -> str:
    """What a variable is called in the checkpoints of runs: see `pipefit.training.state`."""
    if role == "other":
        return "run/step" if variable == "global_step" else f"run/{variable}"
    return f"{role}/{variable}"


def _validations(found: Experiment) -> dict[tuple[str, int], tuple[dict[str, Any], list[Part]]]:
    """By set and step what was written last."""
    records = {}
    for record in found.records:
        for name, told in record.validation_results.items():
            values = flat_values(told, found.skipped)
            key = name, record.step or 0
            records[key] = _validation(found, record, name, values)
    return records


def _validation(
    found: Experiment, record: TfutilsRecord, name: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Part]]:
    named = {f"{key}_" if key in _RESERVED else key: value for key, value in values.items()}
    scalars = {n: float(v) for n, v in named.items() if not v.ndim and v.dtype.kind in "biuf"}
    entries, parts = _entries([single(n, v) for n, v in named.items() if n not in scalars])
    told = {
        **_common(VALIDATION, name, record.step or 0, record.written),
        "metrics": scalars,
        "examples": _examples(record.params, name),
        "checkpoint": None,
        "seconds": 0.0,
        "values": entries,
    }
    return told, parts


def _examples(params: Mapping[str, Any], name: str) -> int:
    """How many examples a validation drew, if the parameters say it."""
    try:
        told = params["validation_params"][name]
        return max(0, int(told["num_steps"]) * int(told["data_params"]["batch_size"]))
    except (KeyError, TypeError, ValueError):
        return 0


def _entries(columns: Sequence[Packed]) -> tuple[list[dict[str, Any]], list[Part]]:
    """What a record says about its columns, and the parts with the large ones."""
    entries, parts = [], []
    for column in columns:
        entry = {key: column.entry[key] for key in ("name", "dtype", "shape")}
        if column.large:
            part = _part(column.data)
            parts.append(part)
            entry |= {"size": part.size, "sha256": part.sha256}
        else:
            entry["data"] = column.data
        entries.append(entry)
    return entries, parts


def _common(kind: str, name: str, step: int, created: datetime) -> dict[str, Any]:
    created = milliseconds(created)
    return {"kind": kind, "name": name, "step": step, "fence": _FENCE, "created": created}


def _part(data: bytes) -> Part:
    return Part(len(data), _sha256(data), lambda: data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
