"""The sections of an experiment file: [archives.*], [data.*], [model], [optimizer], ..."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    model_validator,
)

from pipefit.refs import Call
from pipefit.spec.tables import (
    Builder,
    Count,
    Interval,
    Listed,
    Named,
    Positive,
    Table,
)

#: Words that pydantic adds to the place of an error where a key may hold several kinds of value.
TAGS = frozenset(("<name>", "<number>", "<table>"))

_DEVICE = re.compile(r"cpu:(0|[1-9]\d*)|GPU-[0-9A-Za-z-]+")
_DEVICES_RULE = (
    'must be a count (1 or more), "all", "cpu:N", or a list of GPU indices, UUIDs ("GPU-...") and '
    '"cpu:N", each once'
)


def _kind(value: Any) -> str | None:
    """The tag of a value that may be a name, a number or a table."""
    if isinstance(value, dict | Table):
        return "<table>"
    if isinstance(value, str):
        return "<name>"
    return "<number>" if isinstance(value, int | float) and not isinstance(value, bool) else None


def _checked_hash(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        raise ValueError("must be 64 hexadecimal digits, as `sha256sum FILE` prints them")
    return text.lower()


class Archive(Table):
    """[archives.NAME]: a file to fetch, verify and unpack.

    Attributes:
        url: a path or any fsspec URL.
        sha256: of the archive file, 64 lower-case hexadecimal digits.
        max_bytes: limit of all unpacked files together; None: the default of `pipefit.archives`.
        max_members: limit of the number of members; None: likewise.
    """

    url: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, AfterValidator(_checked_hash)]
    max_bytes: Count | None = None
    max_members: Count | None = None


class Data(Builder):
    """[data.NAME]: a data source.

    Attributes:
        batch_size: examples per update, over all devices.
        archive: name of an [archives.*] table; the builder gets the folder where it is unpacked
            as its argument `archive`.
    """

    batch_size: Count
    archive: str | None = None


def _checked_devices(value: Any) -> int | str | tuple[int | str, ...]:
    if isinstance(value, list | tuple):
        known = [str(item).lower() for item in value]
        if value and all(map(_is_device, value)) and len(set(known)) == len(known):
            return tuple(value)
    elif isinstance(value, str):
        if value == "all" or (value.startswith("cpu:") and _DEVICE.fullmatch(value)):
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(_DEVICES_RULE)


def _is_device(item: object) -> bool:
    if isinstance(item, str):
        return bool(_DEVICE.fullmatch(item))
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


class Model(Builder):
    """[model]: what is trained.

    Attributes:
        devices: None (the first GPU, else the CPU), a count, "all", "cpu:N", or a tuple of GPU
            indices, GPU UUIDs and "cpu:N".
    """

    devices: Annotated[
        int | str | tuple[int | str, ...] | None, PlainValidator(_checked_devices)
    ] = None


class Clip(Table):
    """How gradients are clipped: to a range, each by its norm, or all by their common norm."""

    value: Positive | None = None
    norm: Positive | None = None
    global_norm: Positive | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Clip:
        if len(self.table()) != 1:
            raise ValueError("must have exactly one of value, norm, global_norm")
        return self


def _checked_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return text


class Group(Table):
    """The learning rate of variables whose name matches (`re.search`) is multiplied by `scale`."""

    match: Annotated[str, AfterValidator(_checked_regex)]
    scale: Annotated[float, Field(ge=0)]


class Optimizer(Builder):
    """[optimizer]: how variables are updated.

    Attributes:
        learning_rate: a number, a schedule, or None for the builder's own default.
        clip: how gradients are clipped, None for not at all.
        groups: learning rates by variable name.
    """

    learning_rate: (
        Annotated[
            Annotated[Positive, Tag("<number>")] | Annotated[Builder, Tag("<table>")],
            Discriminator(
                _kind,
                custom_error_type="wrong_kind",
                custom_error_message="must be a number greater than 0 or a table with a builder",
            ),
        ]
        | None
    ) = None
    clip: Clip | None = None
    groups: Listed[Group] = ()

    @property
    def call(self) -> Call:
        """The builder with its arguments, the learning rate (as written) among them."""
        written = {key: value for key, value in self.table().items() if key == "learning_rate"}
        return Call(self.builder, {**self.arguments, **written})


class Train(Table):
    """[train]: what is trained on and how long.

    Attributes:
        data: name of a [data.*] table.
        steps: optimizer updates in all; more steps later continue the run.
        accumulate: gradients of this many slices of a batch are averaged before one update.
        max_loss: a larger loss stops the run as failed.
        metrics: by name; None: the worker's default.
        deterministic: whether the same run gives the same bits.
        jit_compile: whether XLA compiles the step.
    """

    data: str
    steps: Count
    accumulate: Count = 1
    max_loss: Positive | None = None
    metrics: Named[Builder] | None = None
    deterministic: bool = True
    jit_compile: bool = False


class ValidationSet(Table):
    """[validation.NAME]: data to validate on.

    Attributes:
        data: name of a [data.*] table, or such a table.
        outputs: names of the model outputs to keep per example.
        metrics: by name; None: the worker's default.
    """

    data: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Data, Tag("<table>")],
        Discriminator(
            _kind,
            custom_error_type="wrong_kind",
            custom_error_message="must be the name of a [data.*] table or a table with a builder",
        ),
    ]
    outputs: Listed[str] = ()
    metrics: Named[Builder] | None = None


def _checked_metric(text: str) -> str:
    validation, _, metric = text.partition("/")
    if not validation or not metric:
        raise ValueError("must be written SET/METRIC, such as test/accuracy")
    return text


class BestRule(Table):
    """Which validation metric decides what the best checkpoint is."""

    metric: Annotated[str, AfterValidator(_checked_metric)]
    mode: Literal["min", "max"]

    @property
    def validation(self) -> str:
        """The validation set of `metric`, which is written "SET/METRIC"."""
        return self.metric.partition("/")[0]


class Save(Table):
    """[save]: what is written when, in steps; 0 means never.

    Attributes:
        metrics_every: training metrics are sent to the database.
        validate_every: all validation sets are validated.
        checkpoint_every: a checkpoint is kept for good.
        recent_every: a checkpoint is kept until `recent_keep` newer ones are there.
        recent_keep: how many of those are kept.
        best: keeps the checkpoint with the best value of a validation metric as well.
    """

    metrics_every: Count = 100
    validate_every: Interval = 1000
    checkpoint_every: Interval = 10000
    recent_every: Interval = 1000
    recent_keep: Count = 3
    best: BestRule | None = None
