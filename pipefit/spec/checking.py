"""Checking the builders of an experiment before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from pipefit.errors import SpecError
from pipefit.refs import (
    Ref,
    class_problem,
    importable,
    located,
    nested_calls,
    parse,
    problems,
    show,
)
from pipefit.spec.experiment import Spec
from pipefit.spec.problems import report
from pipefit.spec.sections import Data
from pipefit.spec.tables import Builder

_EXPERIMENT = Ref("pipefit.training", "Experiment")


def check_builders(spec: Spec) -> None:
    """Check that all builders exist and accept their arguments, without importing them.

    The class that `experiment` names must be derived from `pipefit.training.Experiment`.

    What their source does not tell is left to the worker process, see `pipefit.refs.check`.

    Raises:
        SpecError: listing all problems.
    """
    with importable(spec.import_paths()):
        lines = list(_problems_of_class(spec))
        for place, table in spec.builder_tables():
            lines += _problems(place, table)
    if lines:
        raise SpecError(report(lines, spec.origin))


def _problems_of_class(spec: Spec) -> Iterator[str]:
    if spec.experiment is None:
        return
    if problem := class_problem(parse(spec.experiment), _EXPERIMENT):
        yield f"experiment = {show(spec.experiment)}: {problem}"


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
