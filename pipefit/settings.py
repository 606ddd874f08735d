"""Where Pipefit keeps its files and which database it uses.

An environment variable wins over luigi.cfg, which wins over the default; an empty value counts as
not set. luigi.cfg is found and read as Luigi does it, without importing Luigi.

    >>> value("mongo", "no_such_key", "a default")
    'a default'
"""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

from pipefit.errors import SettingsError

#: The value of `mongo_uri()` that stands for Pipefit's own server on this machine.
EMBEDDED = "embedded"

# As in luigi.configuration: later files win, and the one of LUIGI_CONFIG_PATH comes last.
_LUIGI_FILES = ("/etc/luigi/client.cfg", "/etc/luigi/luigi.cfg", "client.cfg", "luigi.cfg")


def home() -> Path:
    """The folder of caches, logs and the embedded database (absolute; it may not exist yet)."""
    given = os.environ.get("PIPEFIT_HOME", "").strip()
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs

    return platformdirs.user_data_path("pipefit", appauthor=False)


def mongo_uri() -> str:
    """The database: a MongoDB URI (it may hold a password: never print it), "embedded" or a file:.

    Raises:
        SettingsError: luigi.cfg cannot be read.
    """
    return os.environ.get("PIPEFIT_MONGO_URI", "").strip() or value("mongo", "uri", EMBEDDED)


def value(section: str, key: str, default: str) -> str:
    """The value of `key` in luigi.cfg's `[section]`, else `default`.

    `${NAME}` in a value stands for an environment variable, as in Luigi. A percent sign stands for
    itself, because MongoDB URIs are full of them.

    Raises:
        SettingsError: luigi.cfg cannot be read or names an environment variable that is not set.
    """
    raw = _luigi_config().get(section, key, fallback="")
    return with_environment(f"luigi.cfg: [{section}] {key}", raw).strip() or default


def with_environment(place: str, text: str) -> str:
    """The text with the environment variable NAME in the place of `${NAME}`.

    Args:
        place: where the text stands, for the message.
        text: the text.

    Raises:
        SettingsError: it names an environment variable that is not set.
    """

    def replaced(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise SettingsError(
                f"{place} names the environment variable {match[1]}, which is not set; set it, or "
                "write the value itself"
            ) from None

    return re.sub(r"\$\{([^}]+)\}", replaced, text)


def _luigi_config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    for path in _luigi_files():
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise SettingsError(f"{path} is not a valid Luigi configuration: {reason}") from error
    return parser


def _luigi_files() -> list[Path]:
    extra = os.environ.get("LUIGI_CONFIG_PATH", "")
    # Luigi gives a .toml file to another parser, which it then does not ask.
    more = [extra] if extra and not extra.endswith(".toml") else []
    return [path for path in map(Path, (*_LUIGI_FILES, *more)) if path.is_file()]
