"""Checking the builders of an experiment before anything starts."""

from __future__ import annotations

from pipefit.errors import SpecError
from pipefit.refs import importable, located, nested_calls, parse, problems
from pipefit.spec.experiment import Spec
from pipefit.spec.problems import report
from pipefit.spec.sections import Data
from pipefit.spec.tables import Builder


def check_builders(spec: Spec) -> None:
    """Check that all builders exist and accept their arguments, without importing them.

    What their source does not tell is left to the worker process, see `pipefit.refs.check`.

    Raises:
        SpecError: listing all problems.
    """
    with importable(spec.import_paths()):
        lines = [line for place, table in spec.builder_tables() for line in _problems(place, table)]
    if lines:
        raise SpecError(report(lines, spec.origin))


def _problems(place: str, table: Builder) -> list[str]:
    lines = []
    for where, call in nested_calls(table.call_table(), place):
        given = dict(call.arguments)
        keys: set[str] = set()
        if where == place:
            if isinstance(table, Data) and table.archive is not None:
                given["archive"] = table.archive
            keys = set(table.own_keys()) - set(given)
        found = problems(parse(call.builder), given, sorted(keys))
        lines += located(found, where, call.builder, given)
    return lines
