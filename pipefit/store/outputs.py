"""Per-example outputs of a validation: written and read shard by shard, never all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipefit.errors import NotFound, StoreError
from pipefit.store.backend import Backend, Document, Files, StoredFile
from pipefit.store.codec import encode_tensors, named_dtype
from pipefit.store.documents import OUTPUTS, writing_process

#: Bytes of a shard, roughly: what a writer and a reader hold in memory at a time.
SHARD_BYTES = 16 * 1024 * 1024


class StoredOutputsWriter:
    """`pipefit.store.results.OutputsWriter`: shards are files of the artifacts.

    `close` writes a record of kind "outputs" that lists the shards. Readers find it through the
    validation that names it; if none ever does, record and shards are garbage.
    """

    def __init__(self, backend: Backend, name: str, set_name: str) -> None:
        self._backend = backend
        self._files = backend.artifacts_of(name)
        self._run = name
        self._set = set_name
        self._id = backend.new_id()
        self._columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._pending: list[dict[str, np.ndarray]] = []
        self._waiting = 0  # examples in `_pending`
        self._shards: list[Document] = []

    def add(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Append the outputs of one batch, arrays of shape [examples, ...].

        Raises:
            StoreError: names, dtypes or shapes differ from those of the first batch, or the arrays
                are not of one length.
        """
        arrays = {name: np.asarray(values) for name, values in outputs.items()}
        examples = self._checked(arrays)
        begin = 0
        while begin < examples:
            end = begin + self._per_shard() - self._waiting
            # Copies: the caller may use its arrays again.
            self._pending.append({name: a[begin:end].copy() for name, a in arrays.items()})
            self._waiting += min(end, examples) - begin
            begin = end
            if self._waiting == self._per_shard():
                self._write()

    def close(self) -> str:
        """Write what is left and return the id to give to `commit_validation`."""
        if self._waiting:
            self._write()
        self._backend.put(
            {
                "run": self._run,
                "kind": OUTPUTS,
                "name": self._id,
                "step": 0,
                "fence": 0,
                "set": self._set,
                "examples": self._examples,
                "columns": [
                    {"name": name, "dtype": dtype.name, "shape": list(shape)}
                    for name, (dtype, shape) in self._columns.items()
                ],
                "shards": self._shards,
            }
        )
        return self._id

    def abort(self) -> None:
        """Delete what was written."""
        self._backend.drop(self._backend.find_records(self._run, OUTPUTS, {"name": self._id}))
        self._files.remove([shard["id"] for shard in self._shards])
        self._shards, self._pending, self._waiting = [], [], 0

    @property
    def _examples(self) -> int:
        return sum(shard["examples"] for shard in self._shards)

    def _checked(self, arrays: Mapping[str, np.ndarray]) -> int:
        """The number of examples of a batch that fits to those before."""
        columns = {name: (a.dtype, a.shape[1:]) for name, a in arrays.items()}
        lengths = {a.shape[0] if a.ndim else None for a in arrays.values()}
        if not self._columns:
            encode_tensors({name: a[:0] if a.ndim else a for name, a in arrays.items()})
            self._columns = columns
        if columns != self._columns or len(lengths) != 1 or None in lengths:
            shown = ", ".join(f"{name} {a.dtype} {list(a.shape)}" for name, a in arrays.items())
            wanted = ", ".join(
                f"{name} {dtype} {['examples', *shape]}"
                for name, (dtype, shape) in self._columns.items()
            )
            raise StoreError(
                f"outputs of set {self._set!r}: a batch has {shown or 'nothing'}, wanted is "
                f"{wanted or 'at least one array'}, the same for all batches"
            )
        return int(next(iter(arrays.values())).shape[0])

    def _per_shard(self) -> int:
        """Examples of a shard."""
        size = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self._columns.values())
        return max(1, SHARD_BYTES // max(1, size))

    def _write(self) -> None:
        """Write what is pending as a shard."""
        shard = {
            name: np.concatenate([batch[name] for batch in self._pending]) for name in self._columns
        }
        file = self._files.put_tensors(
            shard,
            f"{self._run}/{self._set}/{len(self._shards)}.safetensors",
            {"run": self._run, "outputs": self._id, **writing_process()},
        )
        self._shards.append(
            {"id": file.id, "examples": self._waiting, "size": file.size, "sha256": file.sha256}
        )
        self._pending, self._waiting = [], 0


class StoredOutputs:
    """`pipefit.store.results.Outputs`."""

    def __init__(self, files: Files, record: Mapping[str, Any]) -> None:
        self.names: tuple[str, ...] = tuple(column["name"] for column in record["columns"])
        self._files = files
        self._record = record

    def __repr__(self) -> str:
        return f"<outputs {', '.join(self.names)} of {len(self)} examples>"

    def __len__(self) -> int:
        return int(self._record["examples"])

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for number, shard in enumerate(self._record["shards"]):
            label = f"shard {number} of the outputs of set {self._record['set']!r}"
            file = StoredFile(shard["id"], shard["size"], shard["sha256"], label)
            yield self._files.read_tensors(file)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise NotFound(
                f"no output {name!r} is stored of set {self._record['set']!r}: there are "
                f"{', '.join(self.names) or 'none'}"
            )
        column = next(c for c in self._record["columns"] if c["name"] == name)
        whole = np.empty((len(self), *column["shape"]), named_dtype(column["dtype"]))
        at = 0
        for shard in self:
            part = shard[name]
            whole[at : at + len(part)] = part
            at += len(part)
        return whole
