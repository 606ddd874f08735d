"""What produced a run: versions, host, git state; plain values for its document.

A run must never fail because of this: what cannot be found out is None.
"""

from __future__ import annotations

import configparser
import functools
import importlib.metadata
import io
import platform
import re
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipefit.errors import without_passwords

if TYPE_CHECKING:
    import git

#: Bytes of a diff that are kept.
DIFF_BYTES = 2**20

# Named even if nothing has loaded them; of what TensorFlow may be called one is there.
_PACKAGES = (
    *("pipefit", "tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "numpy", "pandas"),
    *("luigi", "pymongo", "safetensors", "ml-dtypes"),
)

# A file system that hangs must not hold up a run for longer.
_GIT_SECONDS = 30.0

_T = TypeVar("_T")


def program(folder: Path | None = None) -> dict[str, Any]:
    """Versions of Python and of the packages that matter, the host, the git state of a folder.

    The packages that matter are Pipefit's foundations and whatever this process has loaded so far,
    so it is best asked when the experiment has been built.

    Args:
        folder: where the user's code is; None: the current folder.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "versions": _versions(),
        "git": git_state(folder or Path.cwd()),
    }


def command_line() -> str:
    """The command line of this process, without the passwords of addresses in it."""
    return without_passwords(shlex.join(sys.argv))


def _versions() -> dict[str, str]:
    loaded = {name.partition(".")[0] for name in list(sys.modules)}
    distributions = _distributions()
    names = {name for module in loaded for name in distributions.get(module, ())}
    versions = {}
    for name in sorted({_normal(name) for name in [*names, *_PACKAGES]}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    """By module the packages that bring it; takes a tenth of a second."""
    return importlib.metadata.packages_distributions()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def git_state(folder: Path) -> dict[str, Any] | None:
    """The git state of a folder; None outside a repository, and without a git program.

    Returns:
        commit: None before the first one.
        branch: None on a detached head.
        dirty: whether tracked files differ from the commit; None if git cannot tell.
        remote: the address of the branch's remote, else of origin, else of the only one, without
            passwords; None if there is none.
    """
    return _asked(folder, _state)


def diff(folder: Path | None = None) -> bytes | None:
    """What differs from the commit in tracked files, as `git diff` shows it.

    Args:
        folder: where the user's code is; None: the current folder.

    Returns:
        At most `DIFF_BYTES`, and a line that says so if there is more; None if nothing differs,
        or git cannot tell.
    """
    return _asked(folder or Path.cwd(), _difference)


def _asked(folder: Path, question: Callable[[git.Repo], _T]) -> _T | None:
    """The answer of the repository that a folder is in; None if there is none, or git fails."""
    try:
        import git
    except ImportError:  # raised when there is no git program
        return None
    try:
        with git.Repo(folder, search_parent_directories=True) as repository:
            return question(repository)
    except (git.GitError, configparser.Error, OSError, ValueError):
        return None


def _state(repository: git.Repo) -> dict[str, Any]:
    head = repository.head
    return {
        "commit": head.commit.hexsha if head.is_valid() else None,
        "branch": None if head.is_detached else head.ref.name,
        "dirty": _is_dirty(repository),
        "remote": _remote(repository),
    }


def _is_dirty(repository: git.Repo) -> bool | None:
    if repository.bare:
        return False
    status, *_ = repository.git.execute(
        _diff_command(repository, "--quiet"),
        with_extended_output=True,
        with_exceptions=False,
        kill_after_timeout=_GIT_SECONDS,
    )
    return {0: False, 1: True}.get(status)


def _difference(repository: git.Repo) -> bytes | None:
    if repository.bare:
        return None
    first = _First(DIFF_BYTES)
    repository.git.execute(
        _diff_command(repository, "--no-color"),
        output_stream=first,
        kill_after_timeout=_GIT_SECONDS,
    )
    return first.content() or None


def _diff_command(repository: git.Repo, *options: str) -> list[str]:
    """Compares tracked files with the commit, or with nothing if there is none yet."""
    base = "HEAD"
    if not repository.head.is_valid():
        base = repository.git.execute(["git", "hash-object", "-t", "tree", "--stdin"])
    # No program that the configuration of a repository names is run.
    return ["git", "diff", "--no-ext-diff", "--no-textconv", *options, base, "--"]


def _remote(repository: git.Repo) -> str | None:
    remotes = {remote.name: remote for remote in repository.remotes}
    tracked = None if repository.head.is_detached else repository.head.ref.tracking_branch()
    names = [
        tracked.remote_name if tracked else "",
        "origin",
        *(remotes if len(remotes) == 1 else ()),
    ]
    chosen = next((remotes[name] for name in names if name in remotes), None)
    address = str(chosen.config_reader.get_value("url", "")) if chosen else ""
    return without_credentials(address) or None


def without_credentials(address: str) -> str:
    """The address of a repository without what gives access to it."""
    if "://" not in address:
        # HOST:PATH and USER@HOST:PATH, or a path; neither can hold a password.
        return re.sub(r"^[^/@]*:[^/@]*@", "", address)
    place = re.split(r"[?#]", address)[0]
    # The user of SSH is part of the address; elsewhere it may be a token.
    user = re.match(r"(?:\w+\+)?ssh://([^/:@]+)(?::[^/]*)?@", place)
    return re.sub(r"://[^/]*@", f"://{user[1]}@" if user else "://", place)


class _First(io.RawIOBase):
    """Keeps the first bytes that are written to it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._written = 0

    def write(self, data: Any) -> int:
        self._kept += bytes(data)[: self._most - len(self._kept)]
        self._written += len(data)
        return len(data)

    def content(self) -> bytes:
        """What was kept, and a line that says so if it is not all."""
        if self._written <= self._most:
            return bytes(self._kept)
        return bytes(self._kept) + b"\n... the first %d bytes of %d\n" % (self._most, self._written)
