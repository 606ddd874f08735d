"""What the tasks share: the experiment they belong to, their defaults for Luigi, short errors."""

from __future__ import annotations

import argparse
import functools
import logging
import re
import shlex
import sys
from typing import Any

import luigi
import luigi.configuration

from pipefit import settings
from pipefit.errors import PipefitError, SpecError
from pipefit.execution import last_steps, run_order
from pipefit.records import RunOrder
from pipefit.spec import Spec, check_builders, parse_set, read_spec
from pipefit.store import Store, open_store
from tasks.signals import end_on_signals, is_luigi_command

#: Used where luigi.cfg says nothing, so that the tasks behave the same in any folder.
DEFAULTS = {
    "core": {
        # The run's lease says who owns it, and it works across hosts.
        "no_lock": "true",
        "log_level": "INFO",
    },
    "retcode": {
        "already_running": "10",
        "missing_data": "20",
        "not_run": "25",
        "task_failed": "30",
        "scheduling_error": "35",
        "unhandled_exception": "40",
    },
    # A task that returns without its target has failed.
    "worker": {"check_complete_on_run": "true"},
}

#: Luigi's logger, the library's and the one of what workers tell; all write to stderr.
LOGGERS = [logging.getLogger(name) for name in ("luigi-interface", "pipefit", "tasks")]

_SCHEDULER_ADDRESS = ("scheduler-host", "scheduler-port", "scheduler-url")


class _Join(argparse.Action):
    """An option given several times has all its words."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before} {values}" if before else values)


class WordsParameter(luigi.Parameter):
    """Shell-like words; Luigi would silently take the last of several."""

    @classmethod
    def _parser_kwargs(cls, *names: Any, **more: Any) -> dict[str, Any]:
        return {**super()._parser_kwargs(*names, **more), "action": _Join}


class ExperimentTask(luigi.Task):
    """A task of one experiment."""

    config = luigi.Parameter(default="configs/digits.toml", description="the experiment file")
    set = WordsParameter(
        default="", description="changes to it: words dotted.key=value, values as in TOML"
    )
    allow_change = WordsParameter(
        default="",
        significant=False,
        description="dotted keys in which the run may differ from the stored one of its name",
    )

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        _ = self.spec  # a wrong file is told before anything is scheduled

    @property
    def spec(self) -> Spec:
        """The experiment; read once per process and then kept, whatever happens to the file."""
        return load_spec(self.config, self.set)

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return f"{self.spec.collection}/{self.spec.name}"

    def deps(self) -> list[luigi.Task]:
        """What must be complete first; asked only if this task is not.

        Raises:
            SpecError: if a builder of the experiment is not there or does not take its arguments.
        """
        checked(self.spec)
        deps: list[luigi.Task] = super().deps()
        return deps

    @property
    def same(self) -> dict[str, str]:
        """The parameters for another task of the same experiment."""
        return {"config": self.config, "set": self.set, "allow_change": self.allow_change}

    def run_orders(self) -> dict[str, RunOrder]:
        """What identifies the runs in the store, by the name of their model."""
        allowed = tuple(shlex.split(self.allow_change))
        return {model: _run_order(spec, allowed) for model, spec in self.spec.runs().items()}


class ModelTask(ExperimentTask):
    """A task about the run of one of the models of an experiment."""

    model = luigi.Parameter(default="", description="which of several models, [models.NAME]")

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        known = self.spec.runs()
        if self.model not in known:
            names = ", ".join(filter(None, known)) or "only one, which needs no name"
            raise SpecError(
                f"{self.config}: model = {self.model!r}: there is no such model; there are: {names}"
            )

    @property
    def run_spec(self) -> Spec:
        """The experiment of this model alone."""
        return self.spec.runs()[self.model]

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return f"{self.run_spec.collection}/{self.run_spec.name}"

    def last_step(self) -> int:
        """The step at which the run ends: `train.steps`, unless a rule has ended it before."""
        order = self.run_orders()[self.model]
        return last_steps(store(), [order])[order.name]


@functools.cache
def _run_order(spec: Spec, allow_change: tuple[str, ...]) -> RunOrder:
    """Once per process: it hashes the whole experiment."""
    return run_order(spec, allow_change)


@functools.cache
def load_spec(config: str, changes: str) -> Spec:
    """The experiment of a file and `--set` words."""
    return read_spec(config, parse_set(changes))


@functools.cache
def checked(spec: Spec) -> None:
    """Check the experiment's builders, once per process."""
    check_builders(spec)


def store() -> Store:
    """The store that the settings name; opening connects to nothing yet."""
    return open_store(settings.mongo_uri())


class _ShortErrors(logging.Filter):
    """Errors raised on purpose are shown without their tracebacks."""

    _IN_TEXT = re.compile(r":?\s*\n?Traceback .*?^pipefit(\.\w+)+: ", re.DOTALL | re.MULTILINE)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PipefitError):
            record.msg, record.args = f"{error}", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.ERROR, "ERROR"
            return True
        text = record.getMessage()
        found = list(self._IN_TEXT.finditer(text))
        if found:
            record.msg, record.args = text[found[-1].end() :].rstrip(), ()
            record.levelno, record.levelname = logging.ERROR, "ERROR"
        return True


def set_up() -> None:
    """Give Luigi our defaults, show our log beside Luigi's, end on signals. Safe to call again."""
    config = luigi.configuration.get_config()
    for section, values in DEFAULTS.items():
        for key, value in values.items():
            if config.get(section, key, None) is None:
                config.set(section, key, value)
    if config.get("core", "local_scheduler", None) is None and not _names_a_scheduler(config):
        config.set("core", "local_scheduler", "true")
    if any(isinstance(known, _ShortErrors) for known in LOGGERS[0].filters):
        return
    LOGGERS[0].addFilter(_ShortErrors())
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    for ours in LOGGERS[1:]:
        ours.setLevel(logging.INFO)
        ours.addHandler(handler)
        ours.propagate = False
    if is_luigi_command():
        end_on_signals()


def _names_a_scheduler(config: object) -> bool:
    """Whether a luigid was named, on the command line or in luigi.cfg."""
    flags = tuple(f"--{key}" for key in _SCHEDULER_ADDRESS)
    if any(word.startswith(flags) for word in sys.argv[1:]):
        return True
    keys = [f"default-{key}" for key in _SCHEDULER_ADDRESS] + list(_SCHEDULER_ADDRESS)
    return any(
        config.get("core", key.replace("-", sign), None) is not None  # type: ignore[attr-defined]
        for key in keys
        for sign in "-_"
    )


# Whatever module of tasks or pipelines the `luigi` command loads, it comes by here.
set_up()
