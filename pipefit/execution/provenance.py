"""What produced a run: versions, host, command, git state; plain values for its document."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from pathlib import Path
from typing import Any

_PACKAGES = ("pipefit", "tensorflow", "tensorflow-cpu", "keras", "numpy", "luigi", "pymongo")


def program(folder: Path | None = None) -> dict[str, Any]:
    """Versions of Python and the main packages, the host and the git state of a folder.

    Args:
        folder: where the user's code is; None: the current folder.
    """
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # one of TensorFlow's names is enough
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "versions": versions,
        "git": git_state(folder or Path.cwd()),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, branch (None when detached) and whether files differ; None outside a repository."""
    try:
        import git
    except ImportError:  # raised when there is no git program
        return None
    try:
        with git.Repo(folder, search_parent_directories=True) as repository:
            head = repository.head
            return {
                "commit": head.commit.hexsha if head.is_valid() else None,
                "branch": None if head.is_detached else head.ref.name,
                "dirty": repository.is_dirty(untracked_files=False),
            }
    except (git.GitError, OSError, ValueError):
        return None
