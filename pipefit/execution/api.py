"""Training from Python and notebooks, without Luigi: see `fit`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit import archives, settings
from pipefit.execution.checks import to_load
from pipefit.execution.executors import InlineExecutor
from pipefit.execution.order import Event, Order
from pipefit.execution.provenance import command_line
from pipefit.execution.words import progress_text
from pipefit.spec import Spec, changed, check_builders, read_spec
from pipefit.store import open_store

if TYPE_CHECKING:
    from pipefit.store.base import RunReader

#: Between lines about how far the training is, seconds.
_LINE_SECONDS = 10.0


def fit(
    spec: Spec | str | Path, changes: Mapping[str, Any] | None = None, *, uri: str | None = None
) -> RunReader | dict[str, RunReader]:
    """Train the run of an experiment in this process, or continue it; the same call again resumes.

    TensorFlow is loaded here for good. Interrupted by Ctrl-C (the stop button of a notebook), the
    run is checkpointed. What `LoadCheckpoint` and `Train` do is done; a last validation and the
    report are not.

    Args:
        spec: the experiment, or the path of its file.
        changes: by dotted key the values to change, as `pipefit.read_spec` takes them.
        uri: of the database; None: as the settings say.

    Returns:
        The run; of an experiment with several models, the run of each by its name.

    Raises:
        Interrupted: it was asked to stop.
        PipefitError: whatever else was refused or failed.
    """
    changes = changes or {}
    spec = changed(spec, changes) if isinstance(spec, Spec) else read_spec(spec, changes)
    check_builders(spec)
    uri = settings.mongo_uri() if uri is None else uri
    loading = to_load(open_store(uri), spec)
    order = Order(
        kind="train",
        spec=spec.to_json(secrets=True),
        uri=uri,
        folders=bring_archives(spec, loading=loading),
        import_paths=tuple(spec.import_paths()),
        program={"command": command_line()},
    )
    if loading:
        InlineExecutor().run(replace(order, kind="load"), _Lines(), lambda: None)
    InlineExecutor().run(order, _Lines(), lambda: None)
    store = open_store(uri)
    runs = {name: store.run(run.name, run.collection) for name, run in spec.runs().items()}
    return runs if spec.models else runs[""]


def bring_archives(spec: Spec, *, loading: bool = True) -> dict[str, str]:
    """Fetch and unpack the archives of an experiment, unless they are in the cache.

    Args:
        spec: the experiment.
        loading: also those of which only [[load]] reads.

    Returns:
        By name the folder of the unpacked files, or the file.

    Raises:
        ArchiveError: one cannot be fetched, or is refused.
    """
    base = Path(spec.import_paths()[0])
    places = {}
    for name, archive in spec.archives_needed(loading=loading).items():
        place = archives.unpacked(archive.sha256) if archive.unpack else None
        if place is None:
            place = archives.fetch(archive.url, archive.sha256, base)
            if archive.unpack:
                limits = archives.Limits.of(
                    total_bytes=archive.max_bytes, members=archive.max_members
                )
                place = archives.unpack(archive.sha256, limits)
        places[name] = str(place)
    return places


class _Lines:
    """Prints what a worker tells, unless somebody has set up logging and sees it there."""

    def __init__(self) -> None:
        self._log_is_shown = bool(logging.getLogger().handlers)
        self._last = time.monotonic()

    def __call__(self, event: Event) -> None:
        values = event.values
        if event.kind == "log" and not self._log_is_shown:
            where = "" if values["step"] is None else f"step {values['step']}: "
            self._print(f"{where}{values['message']}", values)
        elif event.kind == "progress" and not values.get("over"):
            last = values["step"] >= values["steps"]
            if last or time.monotonic() - self._last >= _LINE_SECONDS:
                self._last = time.monotonic()
                self._print(progress_text(values), values)

    def _print(self, text: str, values: Mapping[str, Any]) -> None:
        run = f"{values['run']}: " if values.get("run") else ""
        print(f"{run}{text}", file=sys.stderr, flush=True)
