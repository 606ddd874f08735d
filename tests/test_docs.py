"""What README.md and docs/ name is there: files, links, keys, commands; and their jobs run.

The examples with >>> are run by test_examples.py.
"""

import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from pipefit import errors
from pipefit.spec import Spec, check_builders, read_spec
from pipefit.spec.tables import Table
from tests.test_house import MAY_IMPORT

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


def table_rows(page: str, header: str) -> list[list[str]]:
    """The cells of all tables of a page of docs/ that have this header."""
    rows, inside = [], False
    for line in (ROOT / "docs" / page).read_text("utf-8").splitlines():
        if line.startswith(header):
            inside = True
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if set(cells[0]) != {"-"}:
                rows.append(cells)
        else:
            inside = False
    return rows


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
            Spec.of_tables(merged(whole, part))


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


# ---- the tables ----


def keys_of(table: type[Table], place: str = "") -> Iterator[tuple[str, str]]:
    """Every key of an experiment file with its default as TOML writes it."""
    for name, field in table.model_fields.items():
        if name == "arguments":
            continue
        here = f"{place}.{name}".lstrip(".")
        inner = kinds_in(field.annotation)
        if len(inner) == 1 and issubclass(inner[0], Table):
            here += {dict: ".NAME", tuple: "[]"}.get(container(field.annotation), "")
            yield from keys_of(inner[0], here)
        elif field.is_required():
            yield here, "required"
        else:
            default = field.get_default(call_default_factory=True)
            yield here, "none" if default is None else f"`{json.dumps(default)}`"


def kinds_in(annotation: object) -> list[type]:
    """The types of the values that an annotation has in the end, without None."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kinds_in(inner[0])
    if origin is typing.Literal:
        return [str]
    if is_mapping(origin):
        return kinds_in(inner[1])
    if inner:
        return [kind for part in inner for kind in kinds_in(part)]
    return [] if annotation in (type(None), ...) else [annotation]


def container(annotation: object) -> type | None:
    """dict or tuple, if the annotation is of such; an optional one is looked into."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated or type(None) in inner:
        return container(inner[0])
    return dict if is_mapping(origin) else tuple if origin is tuple else None


def is_mapping(origin: object) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def documented_keys() -> dict[str, list[str]]:
    rows = table_rows("experiment-file.md", "| Key | Default | Identity |")
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_tables_of_keys_are_those_of_the_experiment_file():
    assert {key: row[0] for key, row in documented_keys().items()} == dict(keys_of(Spec))


FULL = """
name = "run"
collection = "c"

[archives.a]
url = "a.tar"
sha256 = "A_HASH"
[archives.b]
url = "b.tar"
sha256 = "B_HASH"

[data.d]
builder = "m:data"
batch_size = 8
archive = "a"
[data.same]
builder = "m:data"
batch_size = 8
archive = "a"

[model]
builder = "m:model"

[loss]
builder = "m:loss"

[optimizer]
builder = "m:optimizer"
learning_rate = 0.1
clip = { norm = 1.0 }
groups = [{ match = "a", scale = 1.0 }]

[train]
data = "d"
steps = 10

[validation.v]
data = "d"

[save]
best = { metric = "v/loss", mode = "min" }
""".replace("A_HASH", "0" * 64).replace("B_HASH", "1" * 64)

#: For every documented key: what to override in FULL, and the other value.
CHANGES: dict[str, tuple[str, object]] = {
    "name": ("name", "other"),
    "collection": ("collection", "other"),
    "seed": ("seed", 1),
    "archives.NAME.url": ("archives.a.url", "c.tar"),
    "archives.NAME.sha256": ("archives.a.sha256", "2" * 64),
    "archives.NAME.max_bytes": ("archives.a.max_bytes", 10),
    "archives.NAME.max_members": ("archives.a.max_members", 10),
    "data.NAME.builder": ("data.d.builder", "m:other"),
    "data.NAME.batch_size": ("data.d.batch_size", 16),
    "data.NAME.archive": ("data.d.archive", "b"),
    "model.builder": ("model.builder", "m:other"),
    "model.devices": ("model.devices", 2),
    "loss.builder": ("loss.builder", "m:other"),
    "optimizer.builder": ("optimizer.builder", "m:other"),
    "optimizer.learning_rate": ("optimizer.learning_rate", 0.2),
    "optimizer.clip.value": ("optimizer.clip", {"value": 1.0}),
    "optimizer.clip.norm": ("optimizer.clip", {"norm": 2.0}),
    "optimizer.clip.global_norm": ("optimizer.clip", {"global_norm": 1.0}),
    "optimizer.groups[].match": ("optimizer.groups", [{"match": "b", "scale": 1.0}]),
    "optimizer.groups[].scale": ("optimizer.groups", [{"match": "a", "scale": 2.0}]),
    "train.data": ("train.data", "same"),
    "train.steps": ("train.steps", 20),
    "train.accumulate": ("train.accumulate", 2),
    "train.max_loss": ("train.max_loss", 5.0),
    "train.metrics.NAME.builder": ("train.metrics", {"x": {"builder": "m:metric"}}),
    "train.deterministic": ("train.deterministic", False),
    "train.jit_compile": ("train.jit_compile", True),
    "validation.NAME.data": ("validation.v.data", "same"),
    "validation.NAME.outputs": ("validation.v.outputs", ["logits"]),
    "validation.NAME.metrics.NAME.builder": (
        "validation.v.metrics",
        {"x": {"builder": "m:metric"}},
    ),
    "save.metrics_every": ("save.metrics_every", 5),
    "save.validate_every": ("save.validate_every", 5),
    "save.checkpoint_every": ("save.checkpoint_every", 5),
    "save.recent_every": ("save.recent_every", 5),
    "save.recent_keep": ("save.recent_keep", 5),
    "save.best.metric": ("save.best.metric", "v/other"),
    "save.best.mode": ("save.best.mode", "max"),
}


def test_the_tables_say_what_is_part_of_the_identity(tmp_path):
    path = tmp_path / "full.toml"
    path.write_text(FULL, encoding="utf-8")
    whole = read_spec(path)
    changed = {}
    for key, (place, value) in CHANGES.items():
        other = read_spec(path, {place: value})
        assert other != whole, key
        changed[key] = "yes" if other.identity != whole.identity else "no"
    assert {key: row[1] for key, row in documented_keys().items()} == changed


def test_every_error_is_explained():
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    rows = table_rows("errors.md", "| Error |")
    assert sorted(row[0].strip("`") for row in rows) == sorted(classes)


def test_the_table_of_imports_is_the_rule():
    rows = table_rows("development.md", "| Part | May import |")
    documented = {row[0].strip("`"): set(re.findall(r"`([\w.]+)`", row[1])) for row in rows}
    assert documented == {part: set(others.split()) for part, others in MAY_IMPORT.items()}


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
            assert words[:2] == ["-m", "pytest"]
            assert all((ROOT / word).exists() for word in words if word.startswith("tests"))
        else:
            assert program in FOREIGN, program
    subprocess.run(
        [sys.executable, "-c", _PARSE],
        input=json.dumps(for_luigi),
        cwd=ROOT,
        text=True,
        check=True,
    )


def check_pipefit(words: list[str]) -> None:
    """Fails unless the command, its options and so many arguments exist."""
    command: click.Command = importlib.import_module("pipefit.cli").main
    while isinstance(command, click.Group) and words:
        command, words = command.commands[words[0]], words[1:]
    # Values of options that name nothing are as good as others.
    command.make_context(str(command.name), list(words), resilient_parsing=False)
