"""The command `pipefit`: looks at the runs in the database, and minds the embedded database.

Only what a command needs is loaded when it runs, so that `pipefit --help` and `pipefit db status`
answer at once.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipefit import settings
from pipefit.cli import moving, replaying
from pipefit.cli.common import find_run, no_such, of_collection, open_settings_store
from pipefit.errors import NotFound, PipefitError, SettingsError, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipefit.records import Garbage
    from pipefit.store.base import RunReader
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

    store = open_settings_store()
    known = store.collections()
    if collection is not None and collection not in known:
        raise NotFound(no_such("collection", collection, store, known))
    rows: Any = store.runs(collection).to_dict("records")
    if rows:
        click.echo(runs_table(rows, width=_width()))
    else:
        click.echo(f"no runs yet in {store.describe()}")


@main.command()
@click.argument("name")
@of_collection
@click.option("--toml", is_flag=True, help="Print its experiment file instead.")
@click.option("--lines", is_flag=True, help="Print what rewinds took out of it instead.")
@click.option("--load", is_flag=True, help="Print what was loaded before its first step instead.")
@click.option("--report", is_flag=True, help="Bring its report here, and print where instead.")
def show(
    name: str, collection: str | None, *, toml: bool, lines: bool, load: bool, report: bool
) -> None:
    """Show one run: its state, results, checkpoints and attempts."""
    from pipefit.report.text import lines_text, load_text, run_text

    run = find_run(open_settings_store(), name, collection)
    if toml:
        click.echo(_experiment_file(run), nl=False)
    elif load:
        loaded = run.artifact("load.txt")
        click.echo(load_text(loaded) if loaded else "nothing was loaded into it")
    elif lines:
        closed = run.lines()
        click.echo(lines_text(closed, width=_width()) if closed else "no closed lines")
    elif report:
        click.echo(_bring_report(run))
    else:
        click.echo(run_text(run, report=_report(run), width=_width()))


@main.command()
@click.argument("name")
@click.option("--step", type=int, help="The step that becomes the newest one.")
@click.option("--drop", type=int, metavar="LINE", help="A closed line to drop for good instead.")
@of_collection
def rewind(name: str, step: int | None, drop: int | None, collection: str | None) -> None:
    """Take a run back to one of its checkpoints.

    What came after it no longer counts; `pipefit show NAME --lines` lists it as a closed line.
    Training the run again continues after that step. With --drop a closed line is given up, and
    `pipefit gc` removes it an hour later.
    """
    if (step is None) == (drop is None):
        raise click.UsageError("give --step N, or --drop LINE")
    store = open_settings_store()
    run = find_run(store, name, collection)
    shown = f"{run.collection}/{name}"
    if step is not None:
        store.rewind(run.collection, name, step)
        number = run.lines()[-1].number
        click.echo(f"{shown} is at step {step}; what came after it is the closed line {number}")
    elif drop is not None:
        line = store.drop_line(run.collection, name, drop)
        click.echo(
            f"{shown}: the closed line {drop} is dropped; `pipefit gc` removes its "
            f"{len(line.checkpoints)} checkpoints, and all else of it, in an hour"
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

    store = open_settings_store()
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


main.add_command(moving.export)
main.add_command(moving.import_)
main.add_command(moving.import_tfutils)
main.add_command(replaying.replay)


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

    Runs that use it wait for its return for a while. Then they end, and lose nothing.
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


def _width() -> int | None:
    """Columns of the terminal; None if a file or a pipe reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


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
    """Where the report of the run is; nothing is downloaded."""
    stored = run.find_artifact(REPORT)
    if stored is None:
        return None
    with suppress(OSError), _report_path(run).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == stored.sha256:
            return str(_report_path(run))
    return f"`pipefit show {run.name} --report` brings it to this machine"


def _report_path(run: RunReader) -> Path:
    return settings.home() / "reports" / run.collection / run.name / REPORT


def _bring_report(run: RunReader) -> Path:
    """The file of the run's report, brought here from the store."""
    page, path = run.artifact(REPORT), _report_path(run)
    if page is None:
        raise NotFound(f"run {run.name!r} has no report yet: it is made when the run is complete")
    try:
        _publish(path, page)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror}): free some space, or set PIPEFIT_HOME to "
            "another folder"
        ) from error
    return path


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)
