"""Data sources and the order of examples; knows nothing of TensorFlow.

Builders for `[data.NAME]` tables: `npz`, `hdf5`, `csv`, `parquet`, `image_folder`, `files`, `mix`,
and `Arrays` for what a builder of one's own has in memory. Whatever else has `__len__` and `take`
is a source too, see `Source`.

    >>> source = Arrays(x=[[1.0, 2.0], [3.0, 4.0]], labels=[0, 1])
    >>> field_specs(source) == declared_specs({"x": "float64[2]", "labels": "int64[]"})
    True
"""

from pipefit.data.arrays import Arrays, digits, npz
from pipefit.data.datasets import Hdf5, hdf5
from pipefit.data.decoded import Files, files
from pipefit.data.digests import content_digest
from pipefit.data.fields import Fields, FieldSpec, check_declared, check_fields, declared_specs
from pipefit.data.filesets import FileSet, open_files
from pipefit.data.images import Images, image_decoder, image_folder
from pipefit.data.mixes import Mix, mix
from pipefit.data.order import examples
from pipefit.data.sources import Source, field_specs, indexable, order_of
from pipefit.data.tables import csv, parquet

__all__ = [
    "Arrays",
    "FieldSpec",
    "Fields",
    "FileSet",
    "Files",
    "Hdf5",
    "Images",
    "Mix",
    "Source",
    "check_declared",
    "check_fields",
    "content_digest",
    "csv",
    "declared_specs",
    "digits",
    "examples",
    "field_specs",
    "files",
    "hdf5",
    "image_decoder",
    "image_folder",
    "indexable",
    "mix",
    "npz",
    "open_files",
    "order_of",
    "parquet",
]
