"""Reads one run."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipefit.errors import CheckpointCorrupt, NotFound, StoreError
from pipefit.records import Attempt, CheckpointInfo, ClosedLine, RunStatus, TensorFacts
from pipefit.store import documents, states
from pipefit.store.backend import Backend, Document, StoredFile
from pipefit.store.descriptions import described_files
from pipefit.store.documents import (
    ARTIFACT,
    ATTEMPT,
    CHECKPOINT,
    OUTPUTS,
    VALIDATED,
    VALIDATION,
)
from pipefit.store.newest import newest_whole
from pipefit.store.plain import of_python

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from pipefit.store.outputs import StoredOutputs
    from pipefit.store.values import StoredValues

# To read what belongs together while it is replaced.
_TRIES = 10


class _Removed(Exception):
    """A checkpoint was removed while it was read."""


class StoredRun:
    """`pipefit.store.base.RunReader`; every call asks the store anew."""

    def __init__(self, backend: Backend, name: str, line: int | None = None) -> None:
        self.name = name
        self.collection = backend.collection
        self._backend = backend
        self._line = line

    def __repr__(self) -> str:
        line = "" if self._line is None else f"closed line {self._line} of "
        return f"<{line}run {self.name!r} of collection {self.collection!r}>"

    def status(self) -> RunStatus:
        """State and newest committed step."""
        return states.status_of(self._run(), self.collection)

    def document(self) -> dict[str, Any]:
        """The run's document as plain values: spec, program, progress, best, history, lease."""
        document = states.described(self._run(light=False), self.collection)
        told: dict[str, Any] = of_python(document)
        return told

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        run = self._run(light=False)
        lease = documents.lease_of(run)
        stored = {r["step"]: r for r in self._backend.find_records(self.name, ATTEMPT)}
        # An owner that died at once has no record.
        newest = stored.setdefault(run["attempt"]["fence"], run["attempt"])
        newest.setdefault("program", run["program"])  # where the run says it alone
        return [states.attempt_of(stored[fence], lease) for fence in sorted(stored)]

    def lines(self) -> list[ClosedLine]:
        """What rewinds took out of the run, oldest first; `line` reads it."""
        run = self._run()
        stored = self._backend.find_records(self.name, CHECKPOINT)
        numbers = documents.kept_lines(run)
        return [documents.closed_line_of(run, number, stored) for number in numbers]

    def line(self, number: int) -> StoredRun:
        """Reads the run as if it had not been rewound for the `number`-th time.

        Raises:
            NotFound: it was not rewound so often, or the line was dropped.
        """
        documents.check_line(self._run(), number)
        return StoredRun(self._backend, self.name, number)

    def metrics(self) -> pd.DataFrame:
        """One row per step (index "step"), one column per metric; missing values are NaN.

        Small arrays are in columns of objects; columns with large ones are left out (`values`).
        """
        stored = self._backend.find_metrics(self.name, values=True)
        from pipefit.store import frames

        return frames.metrics_frame(self._run()["line"], stored)

    def validations(self) -> pd.DataFrame:
        """Columns step, set, examples, checkpoint, seconds and one per metric; by set and step.

        Of what else was computed (`Validation.values`), it has what is one number or one text.
        """
        from pipefit.store import frames

        return frames.validations_frame(map(documents.validation_of, self._validations()))

    def values(self, name: str) -> StoredValues:
        """One recorded value of all steps, read piece by piece.

        Args:
            name: a column of the metrics, else "SET/NAME" of a validation.

        Raises:
            NotFound: nothing of this name is recorded.
        """
        from pipefit.store import values

        stored = self._backend.find_metrics(self.name, values=False)
        found = values.of_metrics(self._backend, self._run()["line"], stored, name)
        if not len(found):
            validations = self._validations()
            found = values.of_validations(self._backend, validations, name)
        if not len(found):
            there = values.names(stored, validations)
            raise NotFound(
                f"run {self.name!r} has recorded no value {name!r}; there are: "
                f"{', '.join(there) or 'none yet'}"
            )
        return found

    def checkpoints(self) -> pd.DataFrame:
        """Columns step, id, kinds, size, sha256, created, fence; by step."""
        from pipefit.store import frames

        return frames.checkpoints_frame(self._checkpoints().values())

    def checkpoint(self, step: int | None = None) -> CheckpointInfo:
        """The committed checkpoint of a step (None: the newest). Raises `NotFound`."""
        return self._chosen(self._checkpoints(), step)

    def _chosen(self, found: Mapping[int, CheckpointInfo], step: int | None) -> CheckpointInfo:
        wanted = max(found, default=None) if step is None else step
        if wanted is None or wanted not in found:
            steps = ", ".join(map(str, sorted(found))) or "none yet"
            what = "checkpoint" if step is None else f"checkpoint of step {step}"
            raise NotFound(f"run {self.name!r} has no committed {what}; its steps are: {steps}")
        return found[wanted]

    def weights(
        self, step: int | None = None, include: str | None = None, *, strict: bool = False
    ) -> dict[str, np.ndarray]:
        """Tensors whose name matches the regex `include` (re.search), by name.

        With `include` only the chunks that hold them are read; without, length and sha256 of the
        whole file are verified.

        Args:
            step: of a committed checkpoint; None: the newest one that is whole. A newer one that is
                damaged is named in a warning.
            include: see above.
            strict: raise instead if the newest one is damaged.

        Raises:
            CheckpointCorrupt: the file is damaged.
            NotFound: there is no such committed checkpoint.
        """
        for _ in range(_TRIES):
            found = self._checkpoints()
            chosen = [self._chosen(found, step)]
            if step is None and not strict:
                chosen = [found[other] for other in sorted(found, reverse=True)]
            with suppress(_Removed):
                read = functools.partial(self._read, include=include)
                return newest_whole(self.name, chosen, read, strict=len(chosen) == 1)[1]
        raise StoreError(
            f"run {self.name!r}: checkpoints were removed or replaced {_TRIES} times while they "
            "were read: name a step that is kept"
        )

    def tensors(self, step: int | None = None) -> dict[str, TensorFacts]:
        """Dtype and shape of the tensors of a checkpoint, by name; none of them is read.

        Raises:
            CheckpointCorrupt: its file is damaged.
            NotFound: there is no such committed checkpoint.
        """
        info = self.checkpoint(step)
        try:
            return self._facts(info)
        except CheckpointCorrupt:
            # It may have been removed, or replaced, while it was read.
            again = self.checkpoint(step)
            if again.id == info.id:
                raise
            return self._facts(again)

    def outputs(self, name: str, step: int | None = None) -> StoredOutputs:
        """Stored per-example outputs of a validation set (None: the newest step that has them).

        Raises:
            NotFound: none are stored.
        """
        stored = [r for r in self._records(VALIDATED) if r["name"] == name and r["outputs"]]
        by_step = {record["step"]: record["outputs"] for record in stored}
        wanted = max(by_step, default=None) if step is None else step
        if wanted not in by_step:
            steps = ", ".join(map(str, by_step)) or "none"
            raise NotFound(
                f"run {self.name!r} has no stored outputs of set {name!r}"
                f"{'' if step is None else f' at step {step}'}; steps that have them: {steps}"
            )
        listed = self._backend.find_records(self.name, OUTPUTS, {"name": by_step[wanted]})
        if not listed:
            raise NotFound(f"the outputs of set {name!r} were replaced just now: ask again")
        from pipefit.store.outputs import StoredOutputs

        return StoredOutputs(self._backend.artifacts_of(self.name), listed[0])

    def artifact(self, name: str) -> bytes | None:
        """The newest stored artifact of this name, verified; None if there is none.

        Raises:
            CheckpointCorrupt: its file is damaged.
        """
        file = self.find_artifact(name)
        if file is None:
            return None
        try:
            return bytes(self._backend.artifacts_of(self.name).read(file))
        except CheckpointCorrupt:
            # It may have been replaced while it was read.
            again = self.find_artifact(name)
            if again is None or again == file:
                raise
            return bytes(self._backend.artifacts_of(self.name).read(again))

    def find_artifact(self, name: str) -> StoredFile | None:
        """Id, length and sha256 of the newest stored artifact of this name, which is not read."""
        stored = self._backend.find_records(self.name, ARTIFACT, {"name": name})
        run = self._run(light=False)
        stored = [record for record in stored if documents.counts(run, record)]
        if not stored:
            return described_files(run).get(name)
        newest = max(stored, key=lambda record: record["created"])
        label = f"artifact {name!r} of run {self.name!r}"
        return StoredFile(newest["file"], newest["size"], newest["sha256"], label)

    def _validations(self) -> list[Document]:
        """Records of validations that count, one per set and step."""
        # Those of committed checkpoints last: they replace those made in training.
        stored = self._records(VALIDATION) + self._records(VALIDATED)
        return list({(record["name"], record["step"]): record for record in stored}.values())

    def _facts(self, info: CheckpointInfo) -> dict[str, TensorFacts]:
        file = documents.checkpoint_file(info, self.name)
        return self._backend.checkpoints_of(self.name).read_index(file).facts()

    def _read(self, info: CheckpointInfo, include: str | None) -> dict[str, np.ndarray]:
        file = documents.checkpoint_file(info, self.name)
        try:
            return self._backend.checkpoints_of(self.name).read_tensors(file, include)
        except CheckpointCorrupt as error:
            if all(info.id != other.id for other in self._checkpoints().values()):
                raise _Removed from error  # or replaced, while it was read
            raise

    def _run(self, *, light: bool = True) -> Document:
        run = self._backend.find_run(self.name, light=light)
        if run is None:
            raise NotFound(f"run {self.name!r} of collection {self.collection!r} was deleted")
        return run if self._line is None else documents.closed_line(run, self._line)

    def _records(self, kind: str) -> list[Document]:
        """Records that count."""
        # The line is read last: of what an attempt that begins now replaces, the old is cut off.
        stored = self._backend.find_records(self.name, kind)
        run = self._run()
        return [record for record in stored if documents.counts(run, record)]

    def _checkpoints(self) -> dict[int, CheckpointInfo]:
        for _ in range(_TRIES):
            # The line is read first: the checkpoint it names as the newest is then among the
            # records, unless there have been so many more since that it was removed.
            run = self._run()
            stored = self._backend.find_records(self.name, CHECKPOINT)
            newest = run["committed"] and run["committed"]["id"]
            if newest is None or any(record["name"] == newest for record in stored):
                break
        return documents.checkpoints_of(run, stored)
