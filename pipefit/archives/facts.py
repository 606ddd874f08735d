"""What was found out about files at some cost, kept until one of them changes."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pipefit.settings import home


def remembered(kind: str, files: Mapping[str, Path], find: Callable[[], str]) -> str:
    """What `find` returns, from `cache/<kind>` of PIPEFIT_HOME while the files are the same.

    They count as the same while their paths, sizes and times of change are. Only a shortcut: where
    the cache cannot be read or written, `find` is called again the next time.

    Args:
        kind: of the facts; the name of a folder.
        files: the files it is about, by the names that `find` knows them by.
        find: called if nothing is kept; what it returns is not empty.

    Raises:
        OSError: a file is not there.
    """
    before = _state(files)
    entry = home() / "cache" / kind / f"{before}.txt"
    with suppress(OSError, UnicodeDecodeError):
        if kept := entry.read_text(encoding="utf-8"):  # empty after a power failure
            return kept
    found = find()
    if _state(files) == before:  # else it may be about something between the two
        with suppress(OSError):
            _write(entry, found)
    return found


def _state(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in files.items():
        now = path.stat()
        facts = [name, os.fspath(path.absolute()), now.st_size, now.st_mtime_ns]
        digest.update(json.dumps(facts).encode() + b"\n")
    return digest.hexdigest()


def _write(entry: Path, text: str) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    part = entry.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(entry)
    finally:
        part.unlink(missing_ok=True)
