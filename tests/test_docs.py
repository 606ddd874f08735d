"""What README.md and docs/ name is there: files, links, experiments, commands; and their jobs run.

The examples with >>> are run by test_examples.py, the tables are held to the code by
test_docs_tables.py.
"""

import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from pipefit.spec import Spec, check_builders, read_spec

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the block says it is, in a comment on its first line."""
        found = re.match(r"# ([\w/.-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None


def blocks(page: Path, *languages: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    every = [Block(*block) for block in found]
    return [block for block in every if not languages or block.language in languages]


def write_files(page: Path, folder: Path) -> list[Path]:
    """Write the blocks that are files as they stand in the page."""
    paths = []
    for block in blocks(page):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            paths.append(path)
    return paths


# ---- links ----


def headings(page: Path) -> set[str]:
    """The names of the headings of a page as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@each_page
def test_links_and_images_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists() and path.is_relative_to(ROOT), target
        assert not heading or heading in headings(path), target


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == pages
    assert "docs/README.md" in (ROOT / "README.md").read_text("utf-8")


def test_images_are_small_enough_to_load_at_once():
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size < 300_000, image.name


# ---- experiments ----


@each_page
def test_experiments_are_read(page, tmp_path, monkeypatch):
    write_files(page, tmp_path)
    monkeypatch.chdir(ROOT)
    for number, block in enumerate(blocks(page, "toml")):
        if "name" in tomllib.loads(block.text):
            path = tmp_path / (block.file or f"{number}.toml")
            path.write_text(block.text, encoding="utf-8")
            check_builders(read_spec(path))


@each_page
def test_parts_of_experiments_fit_into_one(page):
    for block in blocks(page, "toml"):
        part = tomllib.loads(block.text)
        if "name" not in part:
            whole = tomllib.loads((ROOT / "configs" / "digits.toml").read_text("utf-8"))
            # [models.NAME] stands instead of [model], [optimizers.NAME] instead of [optimizer].
            rest = {key: value for key, value in whole.items() if f"{key}s" not in part}
            Spec.of_tables(merged(rest, part))


def merged(whole: Mapping, part: Mapping) -> dict:
    result = dict(whole)
    for key, value in part.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@each_page
def test_python_that_is_not_an_example_compiles(page):
    for block in blocks(page, "python"):
        if ">>> " not in block.text:
            compile(block.text, page.name, "exec")


@pytest.mark.parametrize(
    "name, run, metric",
    [("README.md", "rings", "accuracy"), ("docs/own-model-and-data.md", "sums", "right")],
)
def test_the_job_of_a_page_runs_as_it_stands_there(name, run, metric, tmp_path, environment, store):
    page = ROOT / name
    files = write_files(page, tmp_path)
    [script] = [block.text for block in blocks(page, "sh") if f"{run}.toml" in block.text]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(BIN)
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={**environment, "PATH": f"{BIN}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [spec] = [read_spec(path) for path in files if path.suffix == ".toml"]
    reader = store.run(spec.name, spec.collection)
    assert reader.status().step == spec.train.steps
    assert reader.validations()[metric].iloc[-1] > 0.9
    assert re.search(rf"^ *{spec.train.steps}  test ", done.stdout, re.MULTILINE)


# ---- commands ----

#: Programs that are not ours and may stand on a page.
FOREIGN = {"luigid", "mongodump", "mongorestore"}

_PARSE = """
import json, sys
from luigi.cmdline_parser import CmdlineParser
for words in json.load(sys.stdin):
    CmdlineParser(words)   # exits if a module, a task or an option does not exist
"""


def commands(page: Path) -> Iterator[list[str]]:
    """The commands on a page: lines of shell blocks, indented lines, and ours in running text."""
    text = page.read_text("utf-8")
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"^    (\S.*)$", prose, re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", prose)
    lines += [span for span in spans if re.match(r"(luigi|pipefit|make) ", span)]
    lines += re.findall(r"\$\(([^)]+)\)", "\n".join(lines))
    for line in lines:
        words = shlex.split(line, comments=True)
        yield [words[0].removeprefix(".venv/bin/"), *(w for w in words[1:] if w != "...")]


@each_page
def test_commands_exist(page):
    for_luigi = []
    for program, *words in commands(page):
        if program == "luigi":
            for_luigi.append(words)
        elif program == "pipefit":
            check_pipefit(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        elif program == "python":
            assert words[:2] == ["-m", "pytest"] or (ROOT / words[0]).is_file()
            assert all((ROOT / word).exists() for word in words if word.startswith("tests"))
        else:
            assert program in FOREIGN, program
    if for_luigi:
        subprocess.run(
            [sys.executable, "-c", _PARSE],
            input=json.dumps(for_luigi),
            cwd=ROOT,
            text=True,
            check=True,
        )


def check_pipefit(words: list[str]) -> None:
    """Fails unless the command, its options and so many arguments exist; a name may stand alone."""
    command: click.Command = importlib.import_module("pipefit.cli").main
    while isinstance(command, click.Group) and words:
        command, words = command.commands[words[0]], words[1:]
    # Values of options that name nothing are as good as others.
    if words:
        command.make_context(str(command.name), list(words), resilient_parsing=False)
