"""The command that writes what runs could not write while the database was away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipefit.cli.common import open_settings_store
from pipefit.errors import ReplayRefused, RunOwned

if TYPE_CHECKING:
    from pipefit.execution.spool import Spool
    from pipefit.store.base import Store


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER ...]", type=click.Path(path_type=Path))
@click.option("--discard", is_flag=True, help="Remove it instead.")
def replay(folders: tuple[Path, ...], discard: bool) -> None:
    """Write what runs could not write while the database was away.

    Their errors name the folders. Without one, all that there is is listed, and what was left for
    this database is written. Training a run again does it by itself. --discard needs the folders.
    """
    from pipefit.execution import spool
    from pipefit.execution.replay import belongs_to
    from pipefit.execution.replay import replay as write

    if discard and not folders:
        raise click.UsageError("--discard removes for good: name the folders")
    if discard:
        for folder in folders:
            spool.remove(folder.absolute())
            click.echo(f"{folder} is removed")
        return
    found = [spool.read(path.absolute()) for path in folders] if folders else spool.find()
    if not found:
        click.echo("nothing waits to be written")
        return
    store, done = open_settings_store(), True
    for left in found:
        click.echo(left.told())
        if not folders and not belongs_to(store, left):
            click.echo(f"  waits for {left.store}")
        else:
            done &= _written(store, left, write)
    if not done:
        sys.exit(1)


def _written(store: Store, left: Spool, write: Callable[[Store, Spool], None]) -> bool:
    """Write it; whether that was possible, and otherwise say why not, and go on with others."""
    try:
        write(store, left)
    except (ReplayRefused, RunOwned) as error:
        click.echo(f"pipefit: error: {error}", err=True)
        return False
    click.echo("  written")
    return True
