"""The tables in docs/ have what the code has: keys, defaults, identity, errors, imports."""

import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipefit import errors
from pipefit.cli import main
from pipefit.spec import Model, NamedModel, Optimizer, OptimizerPart, Spec, read_spec
from pipefit.spec.tables import Table
from tests.test_house import MAY_IMPORT

ROOT = Path(__file__).parent.parent


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


#: Tables with all keys of another one, whose own keys alone are documented.
AS_ANOTHER = {NamedModel: Model, OptimizerPart: Optimizer}


def keys_of(table: type[Table], place: str = "") -> Iterator[tuple[str, str]]:
    """Every key of an experiment file with its default as TOML writes it."""
    elsewhere = AS_ANOTHER[table].model_fields if table in AS_ANOTHER else {}
    for name, field in table.model_fields.items():
        if name == "arguments" or name in elsewhere:
            continue
        here = f"{place}.{field.alias or name}".lstrip(".")
        inner = kinds_in(field.annotation)
        if len(inner) == 1 and issubclass(inner[0], Table) and not elsewhere:
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

[loss]
builder = "m:loss"

[train]
data = "d"
steps = 10
average = 0.999
early_stop = { metric = "v/loss", mode = "min" }
rollback = {}

[validation.v]
data = "d"
metrics.other = { builder = "m:metric" }

[save]
best = { metric = "v/loss", mode = "min" }

[[load]]
from = { name = "source", collection = "c" }
""".replace("A_HASH", "0" * 64).replace("B_HASH", "1" * 64)

ONE = """
[model]
builder = "m:model"

[optimizer]
builder = "m:optimizer"
learning_rate = 0.1
clip = { norm = 1.0 }
groups = [{ match = "a", scale = 1.0 }]
"""

SEVERAL = """
[models.m]
builder = "m:model"

[optimizers.o]
builder = "m:optimizer"
match = "."
"""

#: For every documented key: what to override, and the other value.
CHANGES: dict[str, tuple[str, object]] = {
    "name": ("name", "other"),
    "collection": ("collection", "other"),
    "seed": ("seed", 1),
    "experiment": ("experiment", "m:Experiment"),
    "archives.NAME.url": ("archives.a.url", "c.tar"),
    "archives.NAME.sha256": ("archives.a.sha256", "2" * 64),
    "archives.NAME.unpack": ("archives.a.unpack", False),
    "archives.NAME.max_bytes": ("archives.a.max_bytes", 10),
    "archives.NAME.max_members": ("archives.a.max_members", 10),
    "data.NAME.builder": ("data.d.builder", "m:other"),
    "data.NAME.batch_size": ("data.d.batch_size", 16),
    "data.NAME.archive": ("data.d.archive", "b"),
    "data.NAME.fields": ("data.d.fields", {"x": "int64[]"}),
    "data.NAME.augment[].builder": ("data.d.augment", [{"builder": "m:augment"}]),
    "data.NAME.readers": ("data.d.readers", 1),
    "data.NAME.prefetch": ("data.d.prefetch", 1),
    "model.builder": ("model.builder", "m:other"),
    "model.devices": ("model.devices", 2),
    "model.trainable": ("model.trainable", "a"),
    "models.NAME.data": ("models.m.data", "same"),
    "models.NAME.loss": ("models.m.loss", {"builder": "m:other"}),
    "models.NAME.optimizer": ("models.m.optimizer", {"builder": "m:other"}),
    "models.NAME.load": ("models.m.load", []),
    "models.NAME.optimizers": ("models.m.optimizers.p", {"builder": "m:other", "match": "."}),
    "loss.builder": ("loss.builder", "m:other"),
    "optimizer.builder": ("optimizer.builder", "m:other"),
    "optimizer.learning_rate": ("optimizer.learning_rate", 0.2),
    "optimizer.clip.value": ("optimizer.clip", {"value": 1.0}),
    "optimizer.clip.norm": ("optimizer.clip", {"norm": 2.0}),
    "optimizer.clip.global_norm": ("optimizer.clip", {"global_norm": 1.0}),
    "optimizer.groups[].match": ("optimizer.groups", [{"match": "b", "scale": 1.0}]),
    "optimizer.groups[].scale": ("optimizer.groups", [{"match": "a", "scale": 2.0}]),
    "optimizer.groups[].learning_rate": (
        "optimizer.groups",
        [{"match": "a", "learning_rate": 1.0}],
    ),
    "optimizer.weight_decay_on": ("optimizer.weight_decay_on", "a"),
    "optimizers.NAME.match": ("optimizers.o.match", "a"),
    "train.data": ("train.data", "same"),
    "train.steps": ("train.steps", 20),
    "train.accumulate": ("train.accumulate", 2),
    "train.max_loss": ("train.max_loss", 5.0),
    "train.metrics.NAME.builder": ("train.metrics", {"x": {"builder": "m:metric"}}),
    "train.deterministic": ("train.deterministic", False),
    "train.jit_compile": ("train.jit_compile", True),
    "train.precision": ("train.precision", "float16"),
    "train.average": ("train.average", 0.9),
    "train.overfit": ("train.overfit", 1),
    "train.targets.NAME.builder": ("train.targets.x.builder", "m:target"),
    "train.loop.builder": ("train.loop.builder", "m:loop"),
    "train.record": ("train.record", ["gradient_norms"]),
    "train.early_stop.metric": ("train.early_stop.metric", "v/other"),
    "train.early_stop.mode": ("train.early_stop.mode", "max"),
    "train.early_stop.patience": ("train.early_stop.patience", 1),
    "train.early_stop.min_delta": ("train.early_stop.min_delta", 1.0),
    "train.max_time": ("train.max_time", "1h"),
    "train.rollback.times": ("train.rollback.times", 1),
    "train.rollback.scale": ("train.rollback.scale", 0.1),
    "train.step_timeout": ("train.step_timeout", 1.0),
    "validation.NAME.data": ("validation.v.data", "same"),
    "validation.NAME.outputs": ("validation.v.outputs", ["logits"]),
    "validation.NAME.metrics.NAME.builder": (
        "validation.v.metrics",
        {"x": {"builder": "m:metric"}},
    ),
    "validation.NAME.targets.NAME.builder": ("validation.v.targets.x.builder", "m:target"),
    "validation.NAME.loop.builder": ("validation.v.loop.builder", "m:loop"),
    "validation.NAME.averaged": ("validation.v.averaged", True),
    "save.metrics_every": ("save.metrics_every", 5),
    "save.validate_every": ("save.validate_every", 5),
    "save.checkpoint_every": ("save.checkpoint_every", 5),
    "save.recent_every": ("save.recent_every", 5),
    "save.recent_keep": ("save.recent_keep", 5),
    "save.best.metric": ("save.best.metric", "v/other"),
    "save.best.mode": ("save.best.mode", "max"),
    "save.strict": ("save.strict", True),
    "load[].from": ("load", [{"from": {"name": "another", "collection": "c"}}]),
    **{
        f"load[].{key}": ("load", [{"from": {"name": "source", "collection": "c"}, key: value}])
        for key, value in {
            "strip_prefix": "a/",
            "rename": {"a": "b"},
            "include": ["a"],
            "exclude": ["a"],
            "mapping": "none",
            "optimizer": True,
            "step": True,
            "allow_missing": ["a"],
            "allow_unexpected": ["a"],
            "allow_mismatch": ["a"],
            "order": 1,
        }.items()
    },
}


def test_the_tables_say_what_is_part_of_the_identity(tmp_path):
    paths = {ONE: tmp_path / "one.toml", SEVERAL: tmp_path / "several.toml"}
    for rest, path in paths.items():
        path.write_text(FULL + rest, encoding="utf-8")
    changed = {}
    for key, (place, value) in CHANGES.items():
        path = paths[SEVERAL if key.startswith(("models.", "optimizers.")) else ONE]
        whole, other = read_spec(path), read_spec(path, {place: value})
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


def test_every_command_is_told():
    rows = table_rows("keeping.md", "| Command | Does |")
    documented = [row[0].strip("`").removeprefix("pipefit ") for row in rows]
    assert sorted(documented) == sorted(main.commands)
