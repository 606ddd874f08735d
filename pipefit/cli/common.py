"""What several commands need."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

import click

from pipefit import settings
from pipefit.errors import NotFound, without_passwords

if TYPE_CHECKING:
    from pipefit.store.base import RunReader, Store

of_collection = click.option(
    "--collection", metavar="C", help="Where the run is, if several have one so named."
)


def open_settings_store() -> Store:
    """The store that the settings name."""
    from pipefit.store import open_store

    return open_store()


def find_run(store: Store, name: str, collection: str | None) -> RunReader:
    """The run of this name; without a collection it must be in exactly one."""
    if collection is not None:
        return store.run(name, collection)
    holders = [c for c in store.collections() if store.statuses(c, [name])]
    if len(holders) > 1:
        choices = ", ".join(holders)
        raise NotFound(
            f"several collections have a run {name!r}: {choices}; say which with --collection"
        )
    if not holders:
        raise NotFound(no_such("run", name, store, [str(n) for n in store.runs()["name"]]))
    return store.run(name, holders[0])


def no_such(kind: str, name: str, store: Store, known: list[str]) -> str:
    """What to say of a name that nothing has, with those it may have been meant to be."""
    nearest = difflib.get_close_matches(name, sorted(set(known)), n=5, cutoff=0.5)
    hint = f"the nearest: {', '.join(nearest)}" if nearest else "`pipefit runs` lists all"
    return f"no {kind} {name!r} in {store.describe()}; {hint}"


def tell(name: str) -> None:
    """Say what is being done; only to whoever sits there."""
    if sys.stderr.isatty():
        click.echo(f"{name} ...", err=True)


def typed_uri(option: str, uri: str) -> str:
    """An address from the command line, with the environment variables that it names."""
    if "${" not in uri and without_passwords(uri) != uri:
        click.echo(
            f"pipefit: warning: everybody on this machine could see the password in {option}; set "
            "a variable to it, and write '${NAME}' in its place",
            err=True,
        )
    return settings.with_environment(option, uri)
