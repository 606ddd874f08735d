"""Bringing experiments of tfutils into a store."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipefit.errors import (
    LoadError,
    NotFound,
    PipefitError,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from pipefit.records import check_collection_name, check_run_name
from pipefit.store import Store
from pipefit.store.tfutils import TfutilsDatabase, TfutilsItem, TfutilsRecord
from pipefit.transfer.tfutils.content import Experiment, OpenCheckpoint, TfutilsContent
from pipefit.transfer.tfutils.items import unpickled, with_items


@dataclass(frozen=True)
class ImportedExperiment:
    """What was, or would be, brought in of an experiment.

    Attributes:
        exp_id: the experiment.
        collection: where the run is.
        name: of the run.
        new: whether it was stored, as opposed to being there already; None: nothing was.
        step: the last step of which there is something.
        trained: how many steps have values of training.
        checkpoints: the steps of the checkpoints.
        validations: how many there are, over all sets.
        items: the names of the pickled files.
        read: those of them that were unpickled and are part of the run.
        refused: why others were not, by name, if they were to be.
        skipped: values that are neither numbers nor text, by name how often.
    """

    exp_id: str
    collection: str
    name: str
    new: bool | None
    step: int
    trained: int
    checkpoints: tuple[int, ...]
    validations: int
    items: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)


def import_tfutils(
    store: Store | None,
    database: TfutilsDatabase,
    open_checkpoint: OpenCheckpoint,
    *,
    exp_ids: Sequence[str] = (),
    collection: str | None = None,
    name: str | None = None,
    unpickle: bool = False,
    tell: Callable[[str], None] = lambda name: None,
    failed: Callable[[str, PipefitError], None] | None = None,
) -> Iterator[ImportedExperiment]:
    """Store experiments as runs, one after the other; each becomes visible when all of it is there.

    Args:
        store: where to; None: nothing is stored, and no checkpoint is opened.
        database: where from; it is only read.
        open_checkpoint: opens a checkpoint.
        exp_ids: of the experiments; none: all.
        collection: where the runs are to be; None: a collection named as theirs.
        name: of the run, if there is one experiment; None: named as the experiment, with "-" for
            what no name may have.
        unpickle: whether pickled results are read, in a process of its own that can make nothing
            but arrays of it.
        tell: is called with the name of every run before it is stored.
        failed: is called with the name of a run that is refused or damaged, and why; then the next
            one is imported. None: that is raised.

    Raises:
        NotFound: there is no such database, collection or experiment; names those that there are.
        StoreError: the store has another run of one of the names.
        LoadError, CheckpointCorrupt: a checkpoint is damaged; nothing of its run is kept.
    """
    place = _checked(check_collection_name, collection or _collection_name(database.collection))
    names = _names(database.experiments(), exp_ids, name)
    items = database.items()
    for exp_id, run in names.items():
        tell(f"{place}/{run}")
        try:
            found, read = find(database, exp_id, items), _Read()
            if unpickle and store is not None:
                found = _with_pickled(database, found, read)
            content = TfutilsContent(found, place, run, open_checkpoint)
            new = None if store is None else store.import_run(content)
        except (StoreUnavailable, StoreAccessDenied):
            raise
        except PipefitError as error:
            if failed is None:
                raise
            failed(f"{place}/{run}", error)
            continue
        yield _told(content, found, new, read)


def _names(there: Sequence[str], exp_ids: Sequence[str], name: str | None) -> dict[str, str]:
    """By experiment what its run is called."""
    wanted = list(dict.fromkeys(exp_ids)) or there
    if name is not None and len(wanted) > 1:
        raise StoreError(
            f"name {name!r} is for one experiment, and there are {len(wanted)}: say which one by "
            "its exp_id"
        )
    names = {exp_id: _checked(check_run_name, name or _run_name(exp_id)) for exp_id in wanted}
    taken: dict[str, str] = {}
    for exp_id, run in names.items():
        if taken.setdefault(run, exp_id) != exp_id:
            raise StoreError(
                f"experiments {taken[run]!r} and {exp_id!r} would both be called {run!r}: import "
                "one of them alone, with a name of its own"
            )
    return names


def find(
    database: TfutilsDatabase, exp_id: str, items: Sequence[TfutilsItem] | None = None
) -> Experiment:
    """All that a database has of an experiment; the bytes of its files are not read.

    Args:
        database: where.
        exp_id: the experiment.
        items: all of `TfutilsDatabase.items`, if they are known already.

    Raises:
        NotFound: there is no such experiment.
    """
    records = [_with_step(database, record) for record in database.records(exp_id)]
    kept = [record for record in records if record.step is not None]
    checkpoints = database.checkpoints(exp_id)
    ids = {record.id for record in records}
    if not kept:
        raise NotFound(
            f"experiment {exp_id!r} of {database.shown} has {len(records)} records, and none says "
            "of which step it is: there is nothing to import"
        )
    known = database.items() if items is None else items
    return Experiment(
        database=database.name,
        collection=database.collection,
        exp_id=exp_id,
        records=kept,
        checkpoints=checkpoints,
        items=[item for item in known if item.item_for in ids],
    )


def _with_step(database: TfutilsDatabase, record: TfutilsRecord) -> TfutilsRecord:
    """The record with the step that it validated, if it says of none itself."""
    if record.step is not None or record.validates is None:
        return record
    load = record.params.get("load_params")
    other = load.get("exp_id") if isinstance(load, dict) else None
    within = [name for name in (other, record.exp_id) if isinstance(name, str)]
    validated = database.validated(record.validates, within)
    return record if validated is None else replace(record, step=validated[1])


@dataclass
class _Read:
    """What came of the pickled files, by name; `refused` says why not."""

    names: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def _with_pickled(database: TfutilsDatabase, found: Experiment, read: _Read) -> Experiment:
    """The experiment with what could be unpickled."""
    records = {record.id: record for record in found.records}
    with tempfile.TemporaryDirectory(prefix="pipefit-tfutils-") as folder:
        path = Path(folder) / "pickled"
        for item in found.items:
            try:
                record = records[item.item_for]
                database.copy(item.file, path)
                records[item.item_for] = with_items(record, unpickled(path))
                read.names.append(item.name)
            except KeyError:
                read.refused[item.name] = "its record does not say of which step it is"
            except StoreUnavailable:
                raise
            except StoreError as error:
                read.refused[item.name] = str(error)
            except OSError as error:
                raise LoadError(
                    f"{item.name} cannot be kept in {folder}: {error.strerror or error}"
                ) from error
    return replace(found, records=list(records.values()))


def _told(
    content: TfutilsContent, found: Experiment, new: bool | None, read: _Read
) -> ImportedExperiment:
    return ImportedExperiment(
        exp_id=found.exp_id,
        collection=content.collection,
        name=content.name,
        new=new,
        step=found.last,
        trained=sum(map(len, content.blocks)),
        checkpoints=tuple(checkpoint.step for checkpoint in found.checkpoints),
        validations=len(content.validations),
        items=tuple(item.name for item in found.items),
        read=tuple(read.names),
        refused=read.refused,
        skipped=found.skipped.values,
    )


def _run_name(exp_id: str) -> str:
    """The experiment's name with "-" for what the name of a run may not have."""
    parts = re.sub(r"[^A-Za-z0-9._/-]+", "-", exp_id).split("/")
    return "/".join(part for part in parts if part.strip("."))[:200] or "tfutils"


def _collection_name(collection: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", collection)[:64]


def _checked(check: Callable[[str], str], name: str) -> str:
    try:
        return check(name)
    except ValueError as error:
        raise StoreError(str(error)) from None
