"""What an attempt could not write to the database, in a folder on this machine.

    PIPEFIT_HOME/spool/<collection>/<run>/<fence>-<token>/
        spool.json               whose it is, and what there is, in the order of writing
        0001.values              values of steps, or of a validation, packed as in the store
        0002.safetensors         a checkpoint

The folder is published by one rename once all of it is durable; who sees it sees all of it. Only
its user may read it. `pipefit.execution.replay` writes it to the database, and removes it then.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit import settings
from pipefit.errors import StoreError
from pipefit.records import Best, Ended, MetricBlock, Owner, RunState, Validation
from pipefit.store import AttemptKey, RunWriter, jsontext
from pipefit.store.local import disk
from pipefit.store.local.places import label

if TYPE_CHECKING:
    import numpy as np

    from pipefit.store.columns import Packed

logger = logging.getLogger("pipefit.run")

#: Of the layout of these folders.
VERSION = 1

_MANIFEST = "spool.json"
#: A draft that nobody has written to for so long is nobody's, seconds.
_OLD_SECONDS = 3600.0
_DRAFT, _GONE = ".draft-", ".gone-"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Checkpoint:
    """What `RunWriter.commit` is given."""

    step: int
    tensors: Mapping[str, np.ndarray]
    kinds: frozenset[str]
    best: Best | None


@dataclass(frozen=True)
class End:
    """What `RunWriter.end` is given."""

    state: RunState
    reason: str | None
    step: int | None
    log_tail: str
    ended: Ended | None = None


#: One thing that an attempt writes.
Entry = MetricBlock | Validation | Checkpoint | End


def write_entry(writer: RunWriter, entry: Entry) -> None:
    """Write it to the database."""
    match entry:
        case MetricBlock():
            writer.write_metrics(entry)
        case Validation():
            writer.write_validation(entry)
        case Checkpoint():
            writer.commit(entry.step, entry.tensors, entry.kinds, entry.best)
        case End():
            writer.end(entry.state, entry.reason, entry.step, entry.log_tail, entry.ended)


@dataclass(frozen=True)
class Spool:
    """A folder that was published.

    Attributes:
        folder: where it is.
        store: the address of the database.
        key: the attempt.
        ttl: of its lease, in seconds.
        written: when (UTC).
        entries: what the manifest says of each entry.
    """

    folder: Path
    store: str
    key: AttemptKey
    ttl: float
    written: datetime
    entries: Sequence[Mapping[str, Any]]

    def read(self) -> Iterator[Entry]:
        """The entries in their order, one in memory at a time.

        Raises:
            StoreError: the folder is damaged.
        """
        for told in self.entries:
            try:
                yield _READ[told["kind"]](told, self._bytes(told))
            except (KeyError, ValueError, TypeError, OSError) as error:
                raise _damaged(self.folder, error) from error

    def _bytes(self, told: Mapping[str, Any]) -> bytes:
        if told.get("file") is None:
            return b""
        data = (self.folder / Path(told["file"]).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise ValueError(f"{told['file']} has another sha256 than {_MANIFEST} says")
        return data

    def told(self) -> str:
        """Whose it is and what it holds, for people."""
        kinds = [entry["kind"] for entry in self.entries]
        steps = [entry["step"] for entry in self.entries if entry["kind"] == "checkpoint"]
        newest = f", checkpoints of the steps {', '.join(map(str, steps))}" if steps else ""
        return (
            f"{self.folder}: run {self.key.collection}/{self.key.name}, attempt {self.key.fence}, "
            f"left {self.written:%Y-%m-%d %H:%M:%S} UTC{newest}; "
            f"{len(kinds)} {'piece' if len(kinds) == 1 else 'pieces'}"
        )


def root() -> Path:
    """Where all spools are."""
    return settings.home() / "spool"


def find(collection: str | None = None, name: str | None = None) -> list[Spool]:
    """The spools there are, of a run or of all, by run and fence.

    Raises:
        StoreError: one is damaged.
    """
    found = []
    for folder in root().glob(f"{collection or '*'}/{label(name) if name else '*'}/*-*"):
        # Without its manifest it is gone by now: another process has written it.
        if not folder.name.startswith(".") and (folder / _MANIFEST).exists():
            found.append(read(folder))
    return sorted(found, key=lambda s: (s.key.collection, s.key.name, s.key.fence))


def read(folder: Path) -> Spool:
    """What is in a folder.

    Raises:
        StoreError: it is no spool, or damaged, or a newer Pipefit wrote it.
    """
    try:
        told = jsontext.decode((folder / _MANIFEST).read_bytes())
        if told["version"] > VERSION:
            raise StoreError(
                f"{folder} has the layout {told['version']}, this Pipefit knows those up to "
                f"{VERSION}: install a newer Pipefit (pip install --upgrade pipefit)"
            )
        key = AttemptKey(**{**told["attempt"], "owner": Owner(**told["attempt"]["owner"])})
        return Spool(folder, told["store"], key, told["ttl"], told["written"], told["entries"])
    except FileNotFoundError:
        raise StoreError(
            f"{folder} holds nothing that was left for a database: `pipefit replay` lists those "
            "that do"
        ) from None
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise _damaged(folder, error) from error


def remove(folder: Path) -> None:
    """Remove a spool, even a damaged one, and the folders above it that are empty then.

    Raises:
        StoreError: it is none.
    """
    if not (folder / _MANIFEST).is_file():
        raise StoreError(f"{folder} holds nothing that was left for a database: it stays")
    clear(folder)


def clear(folder: Path) -> None:
    """The same, whether it is still there or not."""
    # Out of sight first: what is half removed is no spool.
    with suppress(FileNotFoundError):
        folder.replace(folder.with_name(f"{_GONE}{folder.name}"))
    with suppress(OSError):
        _tidy(folder.parent)
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def _tidy(runs: Path) -> None:
    """Remove what processes that were killed have left half written or half removed."""
    for path in runs.glob(".*"):
        old = time.time() - path.stat().st_mtime > _OLD_SECONDS
        if path.name.startswith(_GONE) or (path.name.startswith(_DRAFT) and old):
            shutil.rmtree(path, ignore_errors=True)


def write(store: str, key: AttemptKey, ttl: float, entries: Iterable[Entry]) -> Path:
    """Keep entries in a folder, which is there whole or not at all.

    Args:
        store: address of the database, without user and password.
        key: the attempt that was to write them.
        ttl: of its lease, in seconds.
        entries: in the order in which they are to be written.

    Returns:
        The folder.

    Raises:
        StoreError: it cannot be written; the message names the folder and says why.
    """
    runs = root() / key.collection / label(key.name)
    folder = runs / f"{key.fence}-{secrets.token_hex(4)}"
    draft = runs / f"{_DRAFT}{folder.name}"
    try:
        disk.make_folders(root().parent)
        for above in (root(), runs.parent, runs, draft):
            above.mkdir(mode=0o700, exist_ok=True)
        told = {
            "version": VERSION,
            "store": store,
            "attempt": asdict(key),
            "ttl": ttl,
            "written": datetime.now(UTC),
            "entries": list(_write_entries(draft, entries)),
        }
        _write_file(draft / _MANIFEST, jsontext.encode(told).encode("ascii"))
        disk.sync_folder(draft)
        # This is the commit.
        draft.rename(folder)
        disk.sync_folder(runs)
    except OSError as error:
        raise StoreError(_unwritten(folder, error)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _unwritten(folder: Path, error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return f"{folder} cannot be written, the disk of {settings.home()} is full ({why})"
    return f"{folder} cannot be written ({why})"


def _damaged(folder: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{folder} is damaged ({error}): pipefit replay --discard {folder} removes it, and the run "
        "continues from its newest checkpoint in the database"
    )


def _write_file(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_entries(folder: Path, entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    for number, entry in enumerate(entries, start=1):
        try:
            told, data, ending = _told(entry)
        except StoreError as error:
            # No database would have taken it either.
            logger.error("not kept in %s: %s", folder, error)
            continue
        if ending is None:
            yield told
            continue
        name = f"{number:04d}.{ending}"
        _write_file(folder / name, data)
        yield {**told, "file": name, "sha256": hashlib.sha256(data).hexdigest()}


def _told(entry: Entry) -> tuple[dict[str, Any], bytes, str | None]:
    """What the manifest says of an entry, its bytes, and how the name of their file ends."""
    from pipefit.store import columns
    from pipefit.store.codec import encode_tensors

    match entry:
        case MetricBlock():
            steps = len(entry)
            kept = [columns.kept_column(n, v, steps) for n, v in entry.columns.items()]
            told, data = _joined([column.packed(0, steps) for column in kept])
            return {"kind": "metrics", "first": entry.first, "steps": steps, **told}, data, "values"
        case Validation():
            told, data = _joined([columns.single(n, v) for n, v in entry.values.items()])
            numbers = {k: float(v) for k, v in entry.metrics.items()}
            plain = {k: v for k, v in vars(entry).items() if k not in ("values", "metrics")}
            return {"kind": "validation", **plain, "metrics": numbers, **told}, data, "values"
        case Checkpoint():
            best = None if entry.best is None else asdict(entry.best)
            told = {"kind": "checkpoint", "step": entry.step, "best": best}
            kinds = {"kinds": sorted(entry.kinds)}
            return {**told, **kinds}, encode_tensors(entry.tensors), "safetensors"
        case End():
            return {"kind": "end", **asdict(entry), "state": str(entry.state)}, b"", None


def _joined(packed: Sequence[Packed]) -> tuple[dict[str, Any], bytes]:
    entries = [{**each.entry, "size": len(each.data)} for each in packed]
    return {"columns": entries}, b"".join(each.data for each in packed)


def _columns(told: Mapping[str, Any], data: bytes, steps: int) -> dict[str, np.ndarray]:
    from pipefit.store.columns import unpacked

    values, at = {}, 0
    for entry in told["columns"]:
        values[entry["name"]] = unpacked(entry, data[at : at + entry["size"]], steps)
        at += entry["size"]
    return values


def _read_metrics(told: Mapping[str, Any], data: bytes) -> MetricBlock:
    return MetricBlock(told["first"], _columns(told, data, told["steps"]))


def _read_validation(told: Mapping[str, Any], data: bytes) -> Validation:
    values = {name: array[0] for name, array in _columns(told, data, 1).items()}
    plain = {key: told[key] for key in ("name", "step", "examples", "checkpoint", "seconds")}
    return Validation(**plain, metrics=told["metrics"], values=values)


def _read_checkpoint(told: Mapping[str, Any], data: bytes) -> Checkpoint:
    from pipefit.store.codec import decode_tensors

    best = None if told["best"] is None else Best(**told["best"])
    tensors = decode_tensors(memoryview(data))
    return Checkpoint(told["step"], tensors, frozenset(told["kinds"]), best)


def _read_end(told: Mapping[str, Any], data: bytes) -> End:
    ended = None if told["ended"] is None else Ended(**told["ended"])
    fields = {key: told[key] for key in ("reason", "step", "log_tail")}
    return End(RunState(told["state"]), ended=ended, **fields)


_READ: Mapping[str, Callable[[Mapping[str, Any], bytes], Entry]] = {
    "metrics": _read_metrics,
    "validation": _read_validation,
    "checkpoint": _read_checkpoint,
    "end": _read_end,
}
