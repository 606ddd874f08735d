"""Fields of examples: what a source gives, what was declared, and whether the two agree.

>>> declared_specs({"images": "float32[8,8,1]", "labels": "int64[]", "name": "str"})["images"]
FieldSpec(shape=(8, 8, 1), dtype=dtype('float32'))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.errors import DataError
from pipefit.refs import show
from pipefit.spec import parse_field

Fields = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class FieldSpec:
    """Shape of one example (without the batch dimension) and dtype of a field.

    Texts and bytes have a dtype without a length: it differs from batch to batch.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        """As it is declared: "float32[8,8,1]", "int64[]", "str"."""
        words = {"S": "bytes", "U": "str"}
        word = words.get(self.dtype.kind, str(self.dtype))
        if word in words.values() and not self.shape:
            return word
        return f"{word}[{','.join(map(str, self.shape))}]"


def check_fields(
    fields: Any, count: int, declared: Mapping[str, FieldSpec] | None, origin: str
) -> dict[str, FieldSpec]:
    """Check what `take` returned: names, number of examples, shapes and dtypes.

    Args:
        fields: what came back for `count` indices.
        count: number of indices asked for.
        declared: what is expected; None for the first look.
        origin: name of the source, for messages.

    Returns:
        Shapes and dtypes by field.

    Raises:
        DataError: naming the field, what it has and what it should have.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise DataError(
            f"{origin}: take() must return a dict of arrays, not {type(fields).__name__}"
        )
    found = {}
    for name, value in fields.items():
        array = np.asarray(value)
        if array.ndim < 1 or array.shape[0] != count:
            raise DataError(
                f"{origin}: field {name!r} has shape {array.shape} for {count} examples; "
                f"the first dimension must be {count}"
            )
        found[name] = spec_of(name, array, origin)
    if declared is not None and found != declared:
        raise DataError(
            f"{origin}: examples differ from the first one: got {described(found)}, "
            f"the first has {described(declared)}"
        )
    return found


def spec_of(name: str, array: npt.NDArray[Any], origin: str) -> FieldSpec:
    """Shape and dtype of the examples in an array [examples, ...].

    Raises:
        DataError: its elements are neither numbers nor texts nor bytes.
    """
    dtype = array.dtype
    if dtype.hasobject:
        raise DataError(
            f"{origin}: field {name!r} holds Python objects; give numbers, texts or bytes"
        )
    if dtype.kind in "mM" or dtype.names:
        raise DataError(f"{origin}: field {name!r} is {dtype}; give numbers, texts or bytes")
    return FieldSpec(array.shape[1:], np.dtype(dtype.kind) if dtype.kind in "SU" else dtype)


def described(specs: Mapping[str, FieldSpec]) -> str:
    """Fields for messages."""
    return ", ".join(f"{name} {spec}" for name, spec in specs.items())


def declared_specs(texts: Mapping[str, str], where: str = "fields") -> dict[str, FieldSpec]:
    """Read declarations of fields, such as those of `[data.NAME] fields`.

    Args:
        texts: by field, what `pipefit.spec.parse_field` reads: "float32[8,8,1]", "int64[]", "str".
        where: they stand, for messages.

    Raises:
        DataError: naming the field and what is wrong.
    """
    specs = {}
    for name, text in texts.items():
        try:
            word, shape = parse_field(text)
        except (TypeError, ValueError) as error:
            rule = error if isinstance(text, str) else "must be a text"
            raise DataError(f"{where}.{name} = {show(text)}: {rule}") from error
        specs[name] = FieldSpec(shape, np.dtype(word))
    return specs


def check_declared(
    found: Mapping[str, FieldSpec], declared: Mapping[str, FieldSpec], origin: str
) -> None:
    """Check that a source gives what was declared; it may give more.

    Args:
        found: what it gives.
        declared: from `declared_specs`.
        origin: name of the source, for messages.

    Raises:
        DataError: naming every field that is missing or differs.
    """
    problems = [
        f"{name} is declared {spec}, and is {found.get(name, 'missing')}"
        for name, spec in declared.items()
        if found.get(name) != spec
    ]
    if problems:
        raise DataError(
            f"{origin}: {'; '.join(problems)}. It gives {described(found)}; correct the "
            "declaration or the source"
        )
