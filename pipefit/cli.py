"""The command `pipefit`: looks at the runs in the database, and minds the embedded database.

Only what a command needs is loaded when it runs, so that `pipefit --help` and `pipefit db status`
answer at once.
"""

from __future__ import annotations

import difflib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipefit import settings
from pipefit.errors import NotFound, PipefitError, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipefit.records import Garbage
    from pipefit.store.base import RunReader, Store
    from pipefit.store.server import ServerStatus

REPORT = "report.html"


class _Commands(click.Group):
    """Shows Pipefit's own errors, which are written for people, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PipefitError as error:
            click.echo(f"pipefit: error: {without_passwords(str(error))}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pipefit", message="pipefit %(version)s")
def main() -> None:
    """Runs of TensorFlow models and their database.

    The database is PIPEFIT_MONGO_URI, else `[mongo] uri` in luigi.cfg, else a MongoDB server that
    Pipefit starts on this machine.
    """


@main.command()
@click.option("--collection", metavar="C", help="Only the runs of this collection.")
def runs(collection: str | None) -> None:
    """List the runs."""
    from pipefit.report.text import runs_table

    store = _store()
    known = store.collections()
    if collection is not None and collection not in known:
        raise NotFound(_no_such("collection", collection, store, known))
    rows: Any = store.runs(collection).to_dict("records")
    if rows:
        click.echo(runs_table(rows, width=_width()))
    else:
        click.echo(f"no runs yet in {store.describe()}")


_of_collection = click.option(
    "--collection", metavar="C", help="Where the run is, if several have one so named."
)


@main.command()
@click.argument("name")
@_of_collection
@click.option("--toml", is_flag=True, help="Print its experiment file instead.")
@click.option("--lines", is_flag=True, help="Print what rewinds took out of it instead.")
def show(name: str, collection: str | None, toml: bool, lines: bool) -> None:
    """Show one run: its state, results, checkpoints and attempts."""
    from pipefit.report.text import lines_text, run_text

    run = _find(_store(), name, collection)
    if toml:
        click.echo(_experiment_file(run), nl=False)
    elif lines:
        closed = run.lines()
        click.echo(lines_text(closed, width=_width()) if closed else "it was never rewound")
    else:
        click.echo(run_text(run, report=_report(run), width=_width()))


@main.command()
@click.argument("name")
@click.option("--step", type=int, required=True, help="The step that becomes the newest one.")
@_of_collection
def rewind(name: str, step: int, collection: str | None) -> None:
    """Take a run back to one of its checkpoints.

    What came after it no longer counts; `pipefit show NAME --lines` lists it. Training the run
    again continues after that step.
    """
    store = _store()
    run = _find(store, name, collection)
    store.rewind(run.collection, name, step)
    number = run.lines()[-1].number
    click.echo(
        f"{run.collection}/{name} is at step {step}; what came after it is the closed line {number}"
    )


@main.command()
@click.option("--collection", metavar="C", help="Look only there.")
@click.option("--dry-run", is_flag=True, help="List it, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove it without asking.")
def gc(collection: str | None, dry_run: bool, yes: bool) -> None:
    """List what counts for nobody, and remove it.

    Killed processes leave files that nothing names, and drafts of steps that were made again.
    What a living process may be writing, or a reader may be reading, stays, whatever else runs.
    """
    from pipefit.report.text import garbage_table

    store = _store()
    found = store.garbage(collection)
    if found:
        click.echo(garbage_table(found, width=_width()))
    idle = [item for item in found if item.held is None]
    click.echo(_amount(idle, "can be removed"))
    if not idle or dry_run or not (yes or _agreed()):
        return
    # Looked for again: what it was named by, or owned by, may have changed since.
    removed = [item for item in store.garbage(collection, remove=True) if item.held is None]
    click.echo(_amount(removed, "removed"))


@main.command()
@click.argument("words", nargs=-1, required=True, metavar="[NAME] FILE.tar")
@_of_collection
def export(words: tuple[str, ...], collection: str | None) -> None:
    """Write one run, or all runs of --collection C, into one file.

    `pipefit import` stores them in another database, where they continue. Runs may be trained
    meanwhile.
    """
    from pipefit import transfer
    from pipefit.report.words import size

    *names, file = words
    if len(names) > 1 or not (names or collection):
        raise click.UsageError("name one run and a file, or give --collection and a file")
    store = _store()
    if names:
        collection = _find(store, names[0], collection).collection
    elif collection not in (known := store.collections()):
        raise NotFound(_no_such("collection", str(collection), store, known))
    done = transfer.export_runs(store, Path(file), str(collection), names or None, tell=_tell)
    runs = "1 run" if len(done.runs) == 1 else f"{len(done.runs)} runs"
    click.echo(f"{file}: {runs}, {size(done.size)}, sha256 {done.sha256}")


@main.command("import")
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

    if uri is not None and "${" not in uri and without_passwords(uri) != uri:
        click.echo(
            "pipefit: warning: everybody on this machine could see the password in --uri; set a "
            "variable to it, and write '${NAME}' in its place",
            err=True,
        )
    store = open_store(None if uri is None else settings.with_environment("--uri", uri))
    for run in transfer.import_runs(store, file, tell=_tell):
        there = "imported" if run.new else "was there already"
        click.echo(f"{run.collection}/{run.name} {there}")


@main.group()
def db() -> None:
    """Mind the MongoDB server on this machine.

    Pipefit starts it by itself when it needs a database and is given no other.
    """


@db.command()
def start() -> None:
    """Start the server, unless it runs."""
    from pipefit.store import server

    server.ensure_running()
    _show_server(server.status())


@db.command()
def stop() -> None:
    """Shut the server down.

    Runs that use it wait for its return for a while, then fail.
    """
    from pipefit.store import server

    click.echo("stopped" if server.stop() else "it was not running")


@db.command()
def status() -> None:
    """Say whether the server runs, and where."""
    from pipefit.store import server

    _show_server(server.status())


@db.command()
def uri() -> None:
    """Print the database's URI WITH ITS PASSWORD.

    It is meant for mongosh and the like. The server on this machine is started if it does not run.
    """
    from pipefit.store import server

    configured = settings.mongo_uri()
    click.echo(server.ensure_running() if configured == settings.EMBEDDED else configured)


def _show_server(status: ServerStatus) -> None:
    if status.running:
        click.echo(f"mongod {status.version} is running, pid {status.pid}")
        click.echo(f"  uri   {status.uri_redacted}")
    else:
        click.echo("mongod is not running")
    click.echo(f"  data  {status.dbpath}")
    click.echo(f"  log   {status.log}")
    if settings.mongo_uri() != settings.EMBEDDED:
        click.echo("Pipefit uses another database: PIPEFIT_MONGO_URI or luigi.cfg names one")


def _store() -> Store:
    from pipefit.store import open_store

    return open_store()


def _width() -> int | None:
    """Columns of the terminal; None if a file or a pipe reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _find(store: Store, name: str, collection: str | None) -> RunReader:
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
        raise NotFound(_no_such("run", name, store, [str(n) for n in store.runs()["name"]]))
    return store.run(name, holders[0])


def _no_such(kind: str, name: str, store: Store, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(set(known)), n=5, cutoff=0.5)
    hint = f"the nearest: {', '.join(nearest)}" if nearest else "`pipefit runs` lists all"
    return f"no {kind} {name!r} in {store.describe()}; {hint}"


def _tell(name: str) -> None:
    """Say what is being done; only to whoever sits there."""
    if sys.stderr.isatty():
        click.echo(f"{name} ...", err=True)


def _amount(items: Sequence[Garbage], what: str) -> str:
    from pipefit.report.words import size

    total = size(sum(item.size for item in items))
    return f"{len(items)} {'thing' if len(items) == 1 else 'things'} {what}, {total}"


def _agreed() -> bool:
    """Whether whoever sits at the terminal wants it to be removed; nobody there: no."""
    if not sys.stdin.isatty():
        click.echo("--yes removes it")
        return False
    return click.confirm("Remove it?")


def _experiment_file(run: RunReader) -> str:
    """The experiment of a run as TOML, with what a reader should know about it."""
    from pipefit.spec import Spec

    document = run.document()
    spec = Spec.of_document(document)
    if spec.identity != document["identity"]:
        click.echo(
            "pipefit: warning: this version of Pipefit takes it for another experiment than the "
            "one that made the run; continuing it needs --allow-change identity",
            err=True,
        )
    told = f"# The run {run.name} of the collection {run.collection}, as it was resolved."
    for place in spec.left_out():
        told += f"\n# {place} had a password, which is not kept: *** is in its place."
    return f"{told}\n\n{spec.to_toml()}"


def _report(run: RunReader) -> str | None:
    """The file of the run's report, brought here from the database if it is not on this machine."""
    page = run.artifact(REPORT)
    if page is None:
        return None
    path = settings.home() / "reports" / run.collection / run.name / REPORT
    try:
        if not path.exists() or path.read_bytes() != page:
            _publish(path, page)
    except OSError as error:
        return f"in the database, as {REPORT} ({path}: {error.strerror})"
    return str(path)


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)
