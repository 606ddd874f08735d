"""Reading experiment files, and overrides of their values."""

from __future__ import annotations

import copy
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipefit.errors import SpecError, hide_in_addresses
from pipefit.refs import dotted, show
from pipefit.spec.experiment import Spec
from pipefit.spec.problems import described, report
from pipefit.spec.sections import From, Load
from pipefit.spec.values import plain

_EXAMPLE = "write dotted.key=value, such as train.steps=2000"


def read_spec(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Spec:
    """Read and validate an experiment file.

    Args:
        path: a TOML file.
        overrides: by dotted key the value that replaces the file's; tables are replaced whole,
            and keys the file does not have are added.

    Raises:
        SpecError: if the file cannot be read, or anything in it is wrong; lists everything.
    """
    path = Path(path)
    tables = _read_toml(path)
    try:
        tables = overridden(tables, overrides or {})
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error.__cause__
    return Spec.of_tables(tables, origin=path)


def read_source(table: Mapping[str, Any]) -> From:
    """Read a table as it stands under `from` in [[load]].

    Raises:
        SpecError: listing everything that is wrong.
    """
    try:
        return Load.model_validate({"from": plain(table)}).source
    except ValidationError as error:
        raise SpecError(report(described(error), None)) from error


def changed(spec: Spec, overrides: Mapping[str, Any]) -> Spec:
    """The experiment with other values at dotted keys, as `read_spec` takes them.

    Raises:
        SpecError: listing everything that is wrong.
    """
    return Spec.of_tables(overridden(spec.table(), overrides), spec.origin) if overrides else spec


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError(f"{path}: cannot be read: {reason} (in {Path.cwd()})") from error
    try:
        # Editors on Windows put a byte order mark first.
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}, line {line}: is not UTF-8 text: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not TOML: {error}") from error


def overridden(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tables in which the values at dotted keys are replaced or added.

    Raises:
        SpecError: if a key is not written as TOML, or leads through something that is no table.
    """
    result: dict[str, Any] = copy.deepcopy(dict(tables))
    for key, value in overrides.items():
        keys = _split(key)
        if keys is None:
            raise SpecError(f"override {key!r}: is not a dotted TOML key such as train.steps")
        table, place = result, ""
        for name in keys[:-1]:
            table, place = table.setdefault(name, {}), dotted(place, name)
            if not isinstance(table, dict):
                raise SpecError(f"override {key} = {show(value)}: {place} is no table here")
        table[keys[-1]] = copy.deepcopy(value)
    return result


def _split(key: str) -> list[str] | None:
    """The names in a dotted TOML key, None if it is not one."""
    try:
        value: Any = tomllib.loads(f"{key} = 0") if "\n" not in key else None
    except tomllib.TOMLDecodeError:
        return None
    names: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        [(name, value)] = value.items()
        names.append(name)
    return names if value == 0 and names else None


def parse_set(text: str) -> dict[str, Any]:
    r"""Read the words of `--set`: `dotted.key=value ...`, separated and quoted as in a shell.

    A value is read as TOML; one that is not TOML and does not look so is a string. As in a shell,
    quotes around a word do not belong to it, so TOML strings and values with spaces need two
    kinds: ``--set "seed=3 name=night-1 'model.units=[64, 32]' 'collection=\"2024\"'"``.

    Returns:
        Values by dotted key, as `read_spec` takes them.

    Raises:
        SpecError: naming the word that is wrong.
    """
    if (shown := hide_in_addresses(text)) != text:
        raise SpecError(
            f"--set {shown!r}: has a password, and everybody on this machine can see what is "
            "typed: write the address into the experiment file"
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"--set {text!r}: {error}; {_EXAMPLE}") from error
    values: dict[str, Any] = {}
    for key, value in map(_read_word, words):
        if key in values:
            raise SpecError(f"--set {text!r}: {key} is given twice; give it once")
        values[key] = value
    return values


def _read_word(word: str) -> tuple[str, Any]:
    for position, character in enumerate(word):
        # A quoted key may contain "=" itself.
        if character == "=" and (keys := _split(word[:position])):
            return dotted("", *keys), _read_value(word, word[position + 1 :].strip())
    raise SpecError(f"--set word {word!r}: has no key and value; {_EXAMPLE}")


def _read_value(word: str, text: str) -> Any:
    if not text:
        raise SpecError(f"--set word {word!r}: has no value; {_EXAMPLE}")
    try:
        tomllib.loads(f"value = [{text}]")  # Refuses what would end the value early.
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text[0] in "[{\"'":
            raise SpecError(
                f"--set word {word!r}: the value is not TOML: {error}; put the whole word in "
                "single quotes if it has spaces or double quotes"
            ) from error
        return text
