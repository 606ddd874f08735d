"""Every example with >>> in a docstring of pipefit, in README.md and in docs/ runs as written."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "pipefit").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: Pages with examples that read the results of the main job.
READERS = [page for page in PAGES if "open_store" in page.read_text(encoding="utf-8")]
FENCED = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def examples(page: str, name: str) -> doctest.DocTest:
    """The fenced blocks of a page that have examples, as one session; line numbers are kept."""
    lines = [""] * (page.count("\n") + 1)
    for block in FENCED.finditer(page):
        if ">>> " in block[2]:
            first = page.count("\n", 0, block.start(2))
            # An empty line after the last one ends the expected output.
            lines[first : first + block[2].count("\n")] = block[2].splitlines()
    return doctest.DocTestParser().get_doctest("\n".join(lines), {}, name, name, 0)


def run(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


@pytest.fixture(autouse=True)
def _as_a_reader(tmp_path, monkeypatch):
    """At the top of the repository, with a home of one's own."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path))


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert tests
    for test in tests:
        run(test)


def run_page(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    test = examples(page, path.name)
    assert len(test.examples) == len(re.findall(r"^ *>>> ", page, re.MULTILINE))
    run(test)


@pytest.mark.parametrize("path", [p for p in PAGES if p not in READERS], ids=lambda p: p.name)
def test_page(path):
    run_page(path)


def test_pages_that_read_results(environment):
    luigi = Path(sys.executable).parent / "luigi"
    words = [luigi, "--module", "pipelines", "TrainAndValidate"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert READERS
    for path in READERS:
        run_page(path)


def test_a_page_is_read_block_by_block():
    page = "# Title\n\n```python\n>>> a = 1\n>>> a\n1\n```\n\n"
    page += "```\n$ ls\n```\n\n```\n>>> a + 1\n3\n```\n"
    test = examples(page, "page")
    assert [(e.source, e.want, e.lineno) for e in test.examples] == [
        ("a = 1\n", "", 3),
        ("a\n", "1\n", 4),
        ("a + 1\n", "3\n", 13),
    ]
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        run(test)
