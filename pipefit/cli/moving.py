"""Commands that carry runs from one place to another."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from pipefit.cli.common import (
    find_run,
    no_such,
    of_collection,
    open_settings_store,
    tell,
    typed_uri,
)
from pipefit.errors import NotFound, PipefitError, without_passwords

_RISK = (
    "--unpickle-fileitems reads pickles from that database. A pickle is a program: only do this if "
    "you trust all who could write there"
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[NAME] FILE.tar")
@of_collection
@click.option("--strict", is_flag=True, help="Stop at a damaged checkpoint.")
def export(words: tuple[str, ...], collection: str | None, strict: bool) -> None:
    """Write one run, or all runs of --collection C, into one file.

    `pipefit import` stores them in another database, where they continue. Runs may be trained
    meanwhile. A checkpoint that is damaged is named and left out.
    """
    from pipefit import transfer
    from pipefit.report.words import size

    *names, file = words
    if len(names) > 1 or not (names or collection):
        raise click.UsageError("name one run and a file, or give --collection and a file")
    store = open_settings_store()
    if names:
        collection = find_run(store, names[0], collection).collection
    elif collection not in (known := store.collections()):
        raise NotFound(no_such("collection", str(collection), store, known))
    done = transfer.export_runs(
        store, Path(file), str(collection), names or None, strict=strict, tell=tell
    )
    runs = "1 run" if len(done.runs) == 1 else f"{len(done.runs)} runs"
    click.echo(f"{file}: {runs}, {size(done.size)}, sha256 {done.sha256}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--uri",
    metavar="URI",
    help="Of the database, if it is another one. '${NAME}' in it stands for an environment "
    "variable: what is typed can be seen by everybody on this machine.",
)
def import_(file: Path, uri: str | None) -> None:
    """Store the runs of a file that `pipefit export` has written.

    A run that is there already is left alone if it is the same, and refused if it is not.
    """
    from pipefit import transfer
    from pipefit.store import open_store

    store = open_store(None if uri is None else typed_uri("--uri", uri))
    for run in transfer.import_runs(store, file, tell=tell):
        there = "imported" if run.new else "was there already"
        click.echo(f"{run.collection}/{run.name} {there}")


@click.command("import-tfutils")
@click.argument("uri")
@click.option("--exp-id", "exp_ids", metavar="ID", multiple=True, help="Only this experiment.")
@click.option("--collection", metavar="C", help="Where the runs are to be; else named as theirs.")
@click.option("--name", metavar="N", help="Of the run, if it is one experiment.")
@click.option("--dry-run", is_flag=True, help="List what there is, and import nothing.")
@click.option(
    "--unpickle-fileitems",
    is_flag=True,
    help="Read their pickled results, too. A pickle is a program: whoever could write to that "
    "database may have written one that harms. It is read by a process of its own that can make "
    "nothing but arrays of it.",
)
def import_tfutils(
    *,
    uri: str,
    exp_ids: tuple[str, ...],
    collection: str | None,
    name: str | None,
    dry_run: bool,
    unpickle_fileitems: bool,
) -> None:
    """Store experiments of a tfutils database as runs.

    URI is mongodb://USER:PASSWORD@HOST:PORT/DATABASE/COLLECTION; '${NAME}' in it stands for an
    environment variable. That database is only read. A run that is there already is left alone if
    it is the same, and refused if it is not; the others are imported all the same.
    """
    from pipefit.execution.tfutils import open_checkpoint
    from pipefit.report.imports import imported_text
    from pipefit.store.tfutils import TfutilsDatabase
    from pipefit.transfer.tfutils import import_tfutils as imported

    if unpickle_fileitems and not dry_run:
        click.echo(f"pipefit: warning: {_RISK}", err=True)
    database = TfutilsDatabase(typed_uri("URI", uri))
    if not database.collection:
        database.experiments()  # which says what collections there are
    # TensorFlow reads the checkpoints, and would say how it was going to compute.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    refused: list[str] = []

    def failed(name: str, error: PipefitError) -> None:
        refused.append(name)
        click.echo(f"pipefit: error: {name}: {without_passwords(str(error))}", err=True)

    for experiment in imported(
        None if dry_run else open_settings_store(),
        database,
        partial(open_checkpoint, database),
        exp_ids=exp_ids,
        collection=collection,
        name=name,
        unpickle=unpickle_fileitems,
        tell=tell,
        failed=failed,
    ):
        click.echo(imported_text(experiment))
    if refused:
        sys.exit(1)
