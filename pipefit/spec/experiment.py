"""A whole experiment file, validated: `Spec`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from pipefit.errors import SpecError
from pipefit.records import check_collection_name, check_run_name
from pipefit.refs import Call, nested_calls, show
from pipefit.spec.builders import builder_tables
from pipefit.spec.identity import canonical, digest, parts
from pipefit.spec.problems import described, ready_made, report
from pipefit.spec.rules import broken_rules
from pipefit.spec.runs import single_tables
from pipefit.spec.secrets import hidden, left_out
from pipefit.spec.sections import (
    Archive,
    Data,
    FromArchive,
    Load,
    Model,
    NamedModel,
    Optimizer,
    OptimizerPart,
    Save,
    Train,
    ValidationSet,
)
from pipefit.spec.tables import Builder, ImportPath, Listed, Named, Table
from pipefit.spec.values import FrozenDict, from_json_value, plain, to_json_value


class Spec(Table):
    """An experiment: what is trained, on what, how, and what is kept.

    Made by `pipefit.read_spec` or `Spec.from_json`; always valid, and immutable in every part.
    Two specs are equal if their tables are, wherever they were read.

        spec = read_spec("configs/digits.toml", {"train.steps": 200})
        spec.train.steps, spec.train_data.batch_size, spec.identity

    It has either `model` or `models`, and either `optimizer` or `optimizers` (or neither, if every
    one of several models has its own). Whoever trains takes the specs of `runs()`: each has one
    `model`, with its own data, loss and optimizers in the place of the common ones.
    """

    name: Annotated[str, AfterValidator(check_run_name)]
    collection: Annotated[str, AfterValidator(check_collection_name)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    experiment: ImportPath | None = None
    archives: Named[Archive] = Field(default_factory=FrozenDict)
    data: Named[Data] = Field(default_factory=FrozenDict)
    model: Model | None = None
    models: Named[NamedModel] = Field(default_factory=FrozenDict)
    loss: Builder | None = None
    optimizer: Optimizer | None = None
    optimizers: Named[OptimizerPart] = Field(default_factory=FrozenDict)
    train: Train
    validation: Named[ValidationSet] = Field(default_factory=FrozenDict)
    save: Save = Field(default_factory=Save)
    load: Listed[Load] = ()

    _origin: Path | None = PrivateAttr(None)
    _runs: Mapping[str, Spec] | None = PrivateAttr(None)

    @classmethod
    def of_tables(cls, tables: Mapping[str, Any], origin: Path | None = None) -> Spec:
        """Validate the tables of an experiment file; they are copied.

        Args:
            tables: as `tomllib` reads them.
            origin: the file they came from: named in messages, and its folder is importable.

        Raises:
            SpecError: listing everything that is wrong.
        """
        try:
            spec = cls.model_validate(plain(tables))
        except ValidationError as error:
            raise SpecError(report(described(error), origin)) from error
        except SpecError as error:
            raise SpecError(report([str(error)], origin)) from error
        spec._origin = origin
        return spec

    @model_validator(mode="after")
    def _check_rules(self) -> Spec:
        if lines := broken_rules(self):
            raise ready_made(lines)
        return self

    # ---- what belongs together ----

    @property
    def origin(self) -> Path | None:
        """The file it was read from; says nothing about the experiment itself."""
        return self._origin

    def runs(self) -> dict[str, Spec]:
        """The runs of this experiment, by the name of the model: one spec with one model each.

        With [model] that is the experiment itself, under the name "". With [models.NAME] the run of
        a model is called "name/NAME", and is the same as if it were trained alone.
        """
        if not self.models:
            return {"": self}
        if self._runs is None:
            tables = single_tables(self).items()
            self._runs = {name: Spec.of_tables(table, self._origin) for name, table in tables}
        return dict(self._runs)

    @property
    def loads(self) -> bool:
        """Whether any of its runs begins with weights that are loaded."""
        return any(spec.load for spec in self.runs().values())

    @property
    def one_model(self) -> Model:
        """[model].

        Raises:
            SpecError: if there are several models.
        """
        if self.model is None:
            names = ", ".join(self.models)
            raise SpecError(f"{self.name}: has several models ({names}); take one of Spec.runs()")
        return self.model

    @property
    def optimizer_parts(self) -> dict[str, Optimizer]:
        """The optimizers by name; that of [optimizer] has the name ""."""
        return dict(self.optimizers) or ({"": self.optimizer} if self.optimizer else {})

    @property
    def train_data(self) -> Data:
        """The data that is trained on."""
        return self.data[self.train.data]

    def data_of(self, validation: str) -> Data:
        """The data of a validation set, whether it is named or written in place."""
        data = self.validation[validation].data
        return self.data[data] if isinstance(data, str) else data

    def archive_of(self, data: Data) -> Archive | None:
        """The archive that a data source reads, None if it reads none."""
        return self.archives[data.archive] if data.archive is not None else None

    def archives_needed(self, *, loading: bool) -> dict[str, Archive]:
        """The archives by name.

        Args:
            loading: also those of which only [[load]] reads: once a run has begun, nobody does.
        """
        if loading:
            return dict(self.archives)
        sources = [table.source for spec in self.runs().values() for table in spec.load]
        weights = {source.archive for source in sources if isinstance(source, FromArchive)}
        read = {
            name
            for place, table in self.builder_tables()
            if isinstance(table, Data)
            for _, name in table.archives(place)
        }
        return {name: a for name, a in self.archives.items() if name in read or name not in weights}

    def import_paths(self) -> list[str]:
        """Folders to look in for the user's modules: the file's own, then the current one."""
        folders = [self._origin.parent] if self._origin else []
        return list(dict.fromkeys(str(path.absolute()) for path in [*folders, Path.cwd()]))

    def stop_rules(self) -> dict[str, str]:
        """What may end a run before `train.steps`: by key of [train] a text, equal for equal rules.

        See `pipefit.records.RunOrder`.
        """
        train, rules = self.train, {}
        if train.early_stop:
            rules["early_stop"] = canonical(train.early_stop.table())
        if train.max_time is not None:
            rules["max_time"] = repr(train.max_time)
        return rules

    def builder_tables(self) -> Iterator[tuple[str, Builder]]:
        """Every builder table with its dotted place, those inside arguments apart."""
        return builder_tables(self)

    def calls(self) -> list[tuple[str, Call]]:
        """Every call with its dotted place, also those nested in arguments of others."""
        return [
            found
            for place, table in self.builder_tables()
            for found in nested_calls(table.call_table(), place)
        ]

    # ---- identity ----

    @property
    def identity(self) -> str:
        """Hash of `parts()`: equal for experiments that compute the same numbers."""
        return digest(self.parts())

    def parts(self) -> dict[str, Any]:
        """What decides the numbers: by dotted key a plain value, as JSON can hold it.

        Names, steps, [save], [validation], devices, what only records or ends a run, and where
        archives come from are not among them, nor are the passwords of addresses. What is absent
        is left out, so that keys of later versions change no identity.
        """
        return parts(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        return canonical(self.table()) == canonical(other.table())

    def __hash__(self) -> int:
        return hash(canonical(self.table()))

    # ---- text ----

    def to_json(self, *, secrets: bool = False) -> str:
        """The whole experiment, defaults included; see `from_json`.

        Args:
            secrets: whether the passwords of addresses are in it; else they are ***.
        """
        table = self.table()
        return json.dumps(to_json_value(table if secrets else hidden(table)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, origin: Path | None = None) -> Spec:
        """Read what `to_json` wrote.

        Raises:
            SpecError: if it is not an experiment.
        """
        return cls.of_tables(cls._tables_of(text), origin)

    @staticmethod
    def _tables_of(text: str) -> dict[str, Any]:
        try:
            tables = from_json_value(json.loads(text))
        except ValueError as error:
            raise SpecError(f"{show(text)}: is no experiment written as JSON: {error}") from error
        if not isinstance(tables, dict):
            raise SpecError(f"{show(text)}: is no experiment written as JSON")
        return tables

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Spec:
        """The whole experiment of a stored run, as it was resolved.

            Spec.of_document(run.document()).to_toml()

        Args:
            document: what `RunReader.document` of a store gives.

        Raises:
            SpecError: if it is not an experiment, not one of this version, or was imported from
                another tool.
        """
        if origin := (document.get("program") or {}).get("imported_from"):
            raise SpecError(
                f"run {document['name']!r} was imported from {origin['tool']} and has no "
                "experiment file: its parameters are under `spec` in RunReader.document()"
            )
        # Earlier versions stored passwords, too.
        return cls.of_tables(hidden(cls._tables_of(json.dumps(document["spec"]))))

    def left_out(self) -> list[str]:
        """The dotted places that have *** in the place of a secret."""
        return list(left_out(self.table()))

    def to_toml(self) -> str:
        """An experiment file that reads back to an equal spec, defaults included.

        But for the passwords of addresses: there is *** in their place.
        """
        return tomli_w.dumps(hidden(self.table()))
