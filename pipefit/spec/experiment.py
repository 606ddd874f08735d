"""A whole experiment file, validated: `Spec`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from pipefit.errors import SpecError
from pipefit.records import check_collection_name, check_run_name
from pipefit.refs import Call, dotted, nested_calls, show
from pipefit.spec.problems import described, ready_made, report
from pipefit.spec.rules import broken_rules
from pipefit.spec.sections import Archive, Data, Model, Optimizer, Save, Train, ValidationSet
from pipefit.spec.tables import Builder, Named, Table
from pipefit.spec.values import FrozenDict, from_json_value, plain, to_json_value


class Spec(Table):
    """An experiment: what is trained, on what, how, and what is kept.

    Made by `pipefit.read_spec` or `Spec.from_json`; always valid, and immutable in every part.
    Two specs are equal if their tables are, wherever they were read.

        spec = read_spec("configs/digits.toml", {"train.steps": 200})
        spec.train.steps, spec.train_data.batch_size, spec.identity
    """

    name: Annotated[str, AfterValidator(check_run_name)]
    collection: Annotated[str, AfterValidator(check_collection_name)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    archives: Named[Archive] = Field(default_factory=FrozenDict)
    data: Named[Data] = Field(default_factory=FrozenDict)
    model: Model
    loss: Builder | None = None
    optimizer: Optimizer
    train: Train
    validation: Named[ValidationSet] = Field(default_factory=FrozenDict)
    save: Save = Field(default_factory=Save)

    _origin: Path | None = PrivateAttr(None)

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

    def import_paths(self) -> list[str]:
        """Folders to look in for the user's modules: the file's own, then the current one."""
        folders = [self._origin.parent] if self._origin else []
        return list(dict.fromkeys(str(path.absolute()) for path in [*folders, Path.cwd()]))

    def builder_tables(self) -> Iterator[tuple[str, Builder]]:
        """Every builder table with its dotted place, those inside arguments apart."""
        for name, data in self.data.items():
            yield dotted("data", name), data
        yield "model", self.model
        if self.loss:
            yield "loss", self.loss
        yield "optimizer", self.optimizer
        yield from _metrics("train", self.train.metrics)
        for name, validation in self.validation.items():
            place = dotted("validation", name)
            if isinstance(validation.data, Data):
                yield dotted(place, "data"), validation.data
            yield from _metrics(place, validation.metrics)

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
        return hashlib.sha256(_canonical(self.parts()).encode()).hexdigest()

    def parts(self) -> dict[str, Any]:
        """What decides the numbers: by dotted key a plain value, as JSON can hold it.

        Names, steps, [save], [validation], devices and where archives come from are not among
        them. What is absent is left out, so that keys of later versions change no identity.
        """
        model = self.model.table()
        model.pop("devices", None)
        data = self.train_data.table()
        archive = self.archive_of(self.train_data)
        if archive:
            data["archive"] = archive.sha256
        optimizer = self.optimizer.table()
        if not self.optimizer.groups:
            optimizer.pop("groups")
        sections = {"model": model, "data": data, "optimizer": optimizer}
        if self.loss:
            sections["loss"] = self.loss.table()
        accumulate = {"train.accumulate": self.train.accumulate}
        return {"seed": self.seed, **_flat(sections), **accumulate}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        return _canonical(self.table()) == _canonical(other.table())

    def __hash__(self) -> int:
        return hash(_canonical(self.table()))

    # ---- text ----

    def to_json(self) -> str:
        """The whole experiment, defaults included, without loss; see `from_json`."""
        return json.dumps(to_json_value(self.table()), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, origin: Path | None = None) -> Spec:
        """Read what `to_json` wrote.

        Raises:
            SpecError: if it is not an experiment.
        """
        try:
            tables = from_json_value(json.loads(text))
        except ValueError as error:
            raise SpecError(f"{show(text)}: is no experiment written as JSON: {error}") from error
        if not isinstance(tables, dict):
            raise SpecError(f"{show(text)}: is no experiment written as JSON")
        return cls.of_tables(tables, origin)

    def to_toml(self) -> str:
        """An experiment file that reads back to an equal spec, defaults included."""
        return tomli_w.dumps(self.table())


def _canonical(tables: Mapping[str, Any]) -> str:
    """One text for equal tables: in TOML the order of keys means nothing."""
    values = to_json_value(tables)
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _metrics(place: str, metrics: Mapping[str, Builder] | None) -> Iterator[tuple[str, Builder]]:
    for name, metric in (metrics or {}).items():
        yield dotted(place, "metrics", name), metric


def _flat(tables: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Values by dotted key; lists and empty tables stay values."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        here = dotted(place, key)
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, here))
        else:
            flat[here] = to_json_value(value)
    return flat
