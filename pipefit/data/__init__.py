"""Data sources and the order of examples; knows nothing of TensorFlow."""

from pipefit.data.order import examples
from pipefit.data.sources import (
    Arrays,
    Fields,
    FieldSpec,
    Source,
    check_fields,
    digits,
    field_specs,
)

__all__ = [
    "Arrays",
    "FieldSpec",
    "Fields",
    "Source",
    "check_fields",
    "digits",
    "examples",
    "field_specs",
]
