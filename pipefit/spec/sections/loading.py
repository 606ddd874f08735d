"""[[load]]: where the weights of a run's first step come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from pipefit.records import check_collection_name, check_run_name
from pipefit.refs import show
from pipefit.spec.sections.kinds import MetricRule, Regex, kind
from pipefit.spec.sections.sources import Sha256
from pipefit.spec.tables import Listed, Table
from pipefit.spec.values import FrozenDict

_TEXT = Annotated[str, Field(min_length=1)]
_TFUTILS = re.compile(r"mongodb(?:\+srv)?://[^/]+/[^/?]+/[^/?]+(?:\?.*)?")
#: What a table under `from` must have, each with the tag of its kind.
_KINDS = {"name": "<run>", "path": "<file>", "archive": "<archived>", "tfutils": "<tfutils>"}


def _checked_word(text: str) -> str:
    if text not in ("newest", "best"):
        raise ValueError('must be a step, "newest", "best", or a table with metric and mode')
    return text


#: Which checkpoint of a run: of this step, the newest, the best as the run defines it, or the one
#: whose validation has the best value of a metric, of those that are kept and were validated.
WhichStep = Annotated[
    Annotated[int, Field(ge=0), Tag("<number>")]
    | Annotated[str, AfterValidator(_checked_word), Tag("<name>")]
    | Annotated[MetricRule, Tag("<table>")],
    Discriminator(
        kind,
        custom_error_type="wrong_kind",
        custom_error_message='must be a step, "newest", "best", or a table with metric and mode',
    ),
]


class FromRun(Table):
    """A run's checkpoint.

    Attributes:
        name: of the run.
        collection: of the run; None: that of the experiment.
        database: URI; None: the one in which the experiment's run is.
        step: which checkpoint.
    """

    name: Annotated[str, AfterValidator(check_run_name)]
    collection: Annotated[str, AfterValidator(check_collection_name)] | None = None
    database: _TEXT | None = None
    step: WhichStep = "newest"


class FromFile(Table):
    """A file of weights, of any of the kinds that `pipefit.loading` knows.

    Attributes:
        path: the file, or the common beginning of the names of several, or a folder; or an address
            to fetch a file from, which then needs `sha256`.
        sha256: of the file.
    """

    path: _TEXT
    sha256: Sha256 | None = None


class FromArchive(Table):
    """A file of weights in an archive.

    Attributes:
        archive: name of an [archives.*] table.
        member: path in the archive; None: it holds only one.
    """

    archive: str
    member: _TEXT | None = None


def _checked_tfutils(text: str) -> str:
    if not _TFUTILS.fullmatch(text):
        raise ValueError("must be written mongodb://HOST:PORT/DATABASE/COLLECTION")
    return text


class FromTfutils(Table):
    """A checkpoint in a database of tfutils.

    Attributes:
        tfutils: mongodb://HOST:PORT/DATABASE/COLLECTION.
        exp_id: the experiment.
        step: of the checkpoint; None: the newest.
    """

    tfutils: Annotated[str, AfterValidator(_checked_tfutils)]
    exp_id: _TEXT
    step: Annotated[int, Field(ge=0)] | None = None

    @property
    def place(self) -> str:
        """Names of database and collection."""
        return self.tfutils.partition("?")[0].split("/", 3)[3]


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Table):
        value = value.table()
    found = [tag for key, tag in _KINDS.items() if isinstance(value, Mapping) and key in value]
    return found[0] if len(found) == 1 else None


#: What `from` may be.
From = Annotated[
    Annotated[FromRun, Tag("<run>")]
    | Annotated[FromFile, Tag("<file>")]
    | Annotated[FromArchive, Tag("<archived>")]
    | Annotated[FromTfutils, Tag("<tfutils>")],
    Discriminator(
        _kind_of,
        custom_error_type="wrong_kind",
        custom_error_message="must be a table with exactly one of name, path, archive, tfutils",
    ),
]


def _checked_renaming(rules: Mapping[str, str]) -> FrozenDict:
    for pattern, replacement in rules.items():
        try:
            re.sub(pattern, replacement, "")
        except (re.error, IndexError) as error:
            raise ValueError(
                f"{show(pattern)} = {show(replacement)} must be a regular expression and what "
                f"replaces its matches: {error}"
            ) from error
    return FrozenDict(rules)


class Load(Table):
    """[[load]]: a source of weights, and the rules that match its names to the model's.

    Attributes:
        source: `from` in the file: where the weights are.
        strip_prefix: is taken from the names that begin with it.
        rename: by regular expression what replaces each match, one after the other.
        include: only tensors whose own name in the source matches one of these.
        exclude: not those that match one of these.
        mapping: "auto" also looks for the usual names of TensorFlow 1 and Keras 3, "none" does not.
        optimizer: whether slots, averages and loss scale are taken along.
        step: whether the step, the position in the data, counters and seeds are taken along.
        allow_missing: variables of the model that need not be there.
        allow_unexpected: tensors, by their own names, that need not be used.
        allow_mismatch: variables that need not fit: another shape is left out, another floating
            dtype converted.
        order: of several tables for one variable, the one with the largest counts.
    """

    source: From = Field(alias="from")
    strip_prefix: str = ""
    rename: Annotated[Mapping[Regex, str], AfterValidator(_checked_renaming)] = Field(
        default_factory=FrozenDict
    )
    include: Listed[Regex] = ()
    exclude: Listed[Regex] = ()
    mapping: Literal["auto", "none"] = "auto"
    optimizer: bool = False
    step: bool = False
    allow_missing: Listed[Regex] = ()
    allow_unexpected: Listed[Regex] = ()
    allow_mismatch: Listed[Regex] = ()
    order: int | None = None

    def asked(self) -> dict[str, Any]:
        """What of it is not as by default, but for `from`; `rename` as a list, in its order."""
        table, usual = self.table(), type(self).model_fields
        del table["from"]
        kept = {
            key: value
            for key, value in table.items()
            if value != _plain(usual[key].get_default(call_default_factory=True))
        }
        if "rename" in kept:
            kept["rename"] = [list(rule) for rule in kept["rename"].items()]
        return kept


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
