"""Weights and models from Python, for notebooks and papers: `load_weights`, `load_model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipefit.errors import LoadError, NotFound
from pipefit.execution.api import bring_archives
from pipefit.execution.loading import Around, RunSource, StateSource, open_source
from pipefit.loading import Source
from pipefit.loading.names import Rules, choose
from pipefit.spec import FromFile, Spec, read_source
from pipefit.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from pipefit.store.base import RunReader


def load_weights(
    source: str | os.PathLike[str] | Mapping[str, Any] | RunReader,
    *,
    step: int | None = None,
    strip_prefix: str = "",
    rename: Mapping[str, str] | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
) -> dict[str, np.ndarray[Any, Any]]:
    r"""The weights of a model, from wherever [[load]] could take them, as plain arrays.

        pipefit.load_weights("old/model.ckpt-1000.tar.gz", rename={"/weights$": "/kernel"})
        pipefit.load_weights({"name": "digits-mlp", "collection": "digits", "step": "best"})
        pipefit.load_weights(run, step=1000, include="^hidden")

    Only the bytes of what is included are read. Slots of optimizers and the rest of a training's
    state are left out: `run.weights()` has everything.

    Args:
        source: a file, a folder or an archive of weights; a table as under `from` of [[load]]; or a
            run.
        step: of a run, or of an experiment of tfutils; None: the newest, or what the table says.
        strip_prefix: is taken from the names that begin with it.
        rename: by regular expression what replaces each match, one after the other.
        include: regular expressions; only tensors whose own name in the source one of them matches.
        exclude: not those that one of these matches.

    Raises:
        LoadError: it is not there, damaged, or of an unknown kind; or a rule matches nothing.
        SpecError: the table is wrong.
        StoreUnavailable: the database cannot be reached.
    """
    rules = Rules(strip_prefix, rename or {}, _listed(include), _listed(exclude))
    with _open(source, step) as opened:
        names = [name for name, info in opened.tensors().items() if info.role == "model"]
        chosen = choose(names, rules, opened.label).names
        found = opened.read(list(chosen))
        return {name: found[own] for own, name in chosen.items()}


@contextmanager
def _open(
    source: str | os.PathLike[str] | Mapping[str, Any] | RunReader, step: int | None
) -> Iterator[Source]:
    if isinstance(source, Mapping):
        table = {**source, **({} if step is None else {"step": step})}
        with open_source(read_source(table), Around(base=Path.cwd())) as opened:
            yield opened
    elif isinstance(source, str | os.PathLike):
        if step is not None:
            raise LoadError(f"step = {step}: a file has one step only; leave step out")
        with open_source(FromFile(path=os.fspath(source)), Around()) as opened:
            yield opened
    else:
        state = RunSource(source, source.checkpoint(step).step)
        yield StateSource(state) if "run/step" in state.tensors() else state


def _listed(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def load_model(
    run: RunReader | str,
    step: int | None = None,
    *,
    collection: str | None = None,
    uri: str | None = None,
) -> Any:
    """The model of a run, built as its own experiment says, with the weights of a step.

        model = pipefit.load_model("digits-mlp", step=1000)
        model.predict(images)

    TensorFlow is loaded here for good, and random numbers begin anew from the run's seed. The
    archives of the run's data are fetched, unless they are in the cache: models are built for an
    example. Modules of the user's own are looked for in the current folder.

    Args:
        run: as a store gives it, or its name.
        step: of a checkpoint that it keeps; None: the newest.
        collection: where a run of this name is; None: in the only one that has one so named.
        uri: of the database; None: as the settings say.

    Returns:
        A keras.Model.

    Raises:
        NotFound: there is no such run or checkpoint.
        SpecError: it cannot be built any more, for instance because a module is gone.
        StateMismatch: it is built otherwise than when it was trained.
    """
    reader = _find(run, collection, uri) if isinstance(run, str) else run
    info = reader.checkpoint(step)
    spec = Spec.of_document(reader.document())
    from pipefit.execution.worker.models import restored  # loads TensorFlow

    arrays = reader.weights(info.step, include="^(model|generator)/")
    return restored(spec, bring_archives(spec, loading=False), arrays)


def _find(name: str, collection: str | None, uri: str | None) -> RunReader:
    store = open_store(uri)
    if collection is not None:
        return store.run(name, collection)
    known = store.collections()
    found = [c for c in known if store.statuses(c, [name])]
    if len(found) != 1:
        told = f"several have one: {', '.join(found)}" if found else f"there are {known}"
        raise NotFound(f"run {name!r}: say in which collection it is; {told}")
    return store.run(name, found[0])
