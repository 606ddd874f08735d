"""[archives.*] and [data.*]: where examples come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from pipefit.refs import dotted, is_call, nested_calls
from pipefit.spec.sections.kinds import FieldText
from pipefit.spec.tables import Builder, Count, Listed, Table
from pipefit.spec.values import FrozenDict


def _checked_hash(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        raise ValueError("must be 64 hexadecimal digits, as `sha256sum FILE` prints them")
    return text.lower()


#: Of a file, in lower case.
Sha256 = Annotated[str, AfterValidator(_checked_hash)]


class Archive(Table):
    """[archives.NAME]: a file to fetch, verify and unpack.

    Attributes:
        url: a path or any fsspec URL.
        sha256: of the archive file, 64 lower-case hexadecimal digits.
        unpack: whether builders get a folder of the unpacked files, or else the archive file.
        max_bytes: limit of all unpacked files together; None: the default of `pipefit.archives`.
        max_members: limit of the number of members; None: likewise.
    """

    url: Annotated[str, Field(min_length=1)]
    sha256: Sha256
    unpack: bool = True
    max_bytes: Count | None = None
    max_members: Count | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> Archive:
        if not self.unpack and (self.max_bytes or self.max_members):
            raise ValueError(
                "max_bytes and max_members limit unpacking, but unpack = false; leave them out"
            )
        return self


class Data(Builder):
    """[data.NAME]: a data source.

    Attributes:
        batch_size: examples per update, over all devices.
        archive: name of an [archives.*] table; the builder gets the folder where it is unpacked
            (or the path of the file) as its argument `archive`.
        fields: what the source must give, by field; see `parse_field`. Empty: nothing is declared.
        augment: builders of functions that change the batches of a training.
        readers: parallel calls that read.
        prefetch: batches kept ready.
    """

    batch_size: Count
    archive: str | None = None
    fields: Annotated[Mapping[str, FieldText], AfterValidator(FrozenDict)] = Field(
        default_factory=FrozenDict
    )
    augment: Listed[Builder] = ()
    readers: Count = 4
    prefetch: Count = 4

    def archives(self, place: str) -> Iterator[tuple[str, str]]:
        """The names of all archives that are read, with their dotted places.

        Builders among the arguments may have a key `archive` too: sources of a mix.

        Args:
            place: of this table in the file.
        """
        if self.archive is not None:
            yield dotted(place, "archive"), self.archive
        for where, call in nested_calls(self.call_table(), place):
            name = call.arguments.get("archive")
            if where != place and isinstance(name, str):
                yield dotted(where, "archive"), name


def with_archives(value: Any, given: Mapping[str, Any]) -> Any:
    """Arguments of a data table, with what is given for an archive in place of each name of it."""
    if isinstance(value, Mapping):
        items = {key: with_archives(item, given) for key, item in value.items()}
        if is_call(value) and isinstance(value.get("archive"), str):
            items["archive"] = given.get(value["archive"], value["archive"])
        return items
    if isinstance(value, list | tuple):
        return [with_archives(item, given) for item in value]
    return value
