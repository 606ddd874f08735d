"""Modules of a test's own, importable for its time."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files by relative path into a folder that is on sys.path; imports are forgotten."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text), encoding="utf-8")
        return folder

    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[[str], str]:
    """Runs code in a fresh interpreter, away from the source tree; gives what it prints."""

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
