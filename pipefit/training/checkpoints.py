"""TensorFlow's own checkpoint files as sources of tensors: `pipefit.loading.Source`.

Of TensorFlow 1 Savers, in either version, variables have the names they had there; of TensorFlow 2
see `pipefit.loading.object_graph`.

with open_bundle("/old/model.ckpt-1000") as source:
    source.tensors()["hidden1/weights"].shape, source.read(["hidden1/weights"])
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from pipefit.errors import LoadError
from pipefit.loading import TensorInfo
from pipefit.loading.filesource import ITEM_BYTES, FileSource, Origin, shortened
from pipefit.loading.names import is_counter
from pipefit.loading.object_graph import Named, Node, describe
from pipefit.loading.roles import STEP, roles
from pipefit.training.bundles import check_index

if TYPE_CHECKING:
    import numpy as np

_KIND = "checkpoint of TensorFlow"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_STEPS = (STEP, "step")
_HINT = "; name its prefix, without .index and .data-..."
# Savers of TensorFlow 1 put the step there; TensorFlow 2 the number of times it has saved.
_STEP_IN_PREFIX = re.compile(r"-(\d{1,18})$")


def open_bundle(prefix: str | os.PathLike[str], label: str | None = None) -> BundleSource:
    """The variables of a checkpoint of TensorFlow 2, of a SavedModel or of a TensorFlow 1 Saver.

    Args:
        prefix: its path without ".index" and ".data-...", as TensorFlow names it; of a SavedModel
            that is FOLDER/variables/variables.
        label: what to call it in messages; None: its path.

    Raises:
        LoadError: it is no such checkpoint, or damaged.
    """
    return BundleSource(os.fspath(prefix), Origin(label or os.fspath(prefix)))


class BundleSource(FileSource):
    """`pipefit.loading.Source` of one checkpoint; see `open_bundle`."""

    def __init__(self, prefix: str, origin: Origin) -> None:
        self._origin = origin
        # Version 2 keeps the bytes of tensors as they are, in files of their own.
        shards = _bytes_of(Path(prefix), ".data-*")
        self._data = sum(shards)
        self._file = sum(_bytes_of(Path(prefix), ""))
        try:
            if _bytes_of(Path(prefix), ".index"):
                check_index(Path(f"{prefix}.index"), shards)
            # Made directly: tf.train.load_checkpoint would look for the newest one in a folder.
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
            self._dtypes = self._reader.get_variable_to_dtype_map()
            shapes = self._reader.get_variable_to_shape_map()
        except Exception as error:  # TensorFlow has a dozen types for damage
            there = self._data or self._file
            raise _unreadable(origin, error, "" if there else _HINT) from error
        named = self._named()
        self._keys = {named[key].name: key for key in sorted(named)}
        tensors = {
            name: TensorInfo(self._dtypes[key].name, tuple(shapes[key]), named[key].role)
            for name, key in self._keys.items()
        }
        super().__init__(origin, tensors)
        self.step = self._step(prefix)

    def close(self) -> None:
        """Nothing is open between two reads."""

    def _named(self) -> Mapping[str, Named]:
        """Names and roles by key."""
        if _GRAPH not in self._dtypes:
            return {name: Named(name, role) for name, role in roles(self._dtypes).items()}
        nodes = _nodes(self._fetch(_GRAPH), self._origin)
        found = {key: named for key, named in describe(nodes).items() if key in self._dtypes}
        # What is not in the graph, texts for instance, has only a key.
        for key in self._dtypes.keys() - {_GRAPH, *(k for n in nodes for _, k in n.variables)}:
            found[key] = Named(key, "other" if self._dtypes[key] == tf.string else "model")
        return found

    def _step(self, prefix: str) -> int | None:
        of_objects = _GRAPH in self._dtypes
        for name, key in self._keys.items():
            if name == STEP or (of_objects and key.partition("/.")[0] in _STEPS):
                return self.whole_number(name)
        if of_objects:
            return self.only_number(filter(is_counter, self._tensors))
        found = _STEP_IN_PREFIX.search(prefix)
        return int(found[1]) if found else None

    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""
        info = self._tensors[name]
        size = math.prod(info.shape) * ITEM_BYTES[info.dtype]
        if not self._file and size > self._data:
            reason = f"tensor {name!r} claims {size} bytes, its files have {self._data}"
            raise self._origin.damaged(_KIND, reason)
        return size, self.size

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self._data or self._file

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        value = self._fetch(self._keys[name])
        found: np.ndarray[Any, Any] = value
        return found

    def _fetch(self, key: str) -> Any:
        try:
            return self._reader.get_tensor(key)
        except Exception as error:  # likewise
            raise _unreadable(self._origin, f"{key}: {error}") from error


def _nodes(graph: Any, origin: Origin) -> list[Node]:
    """The graph of objects of a checkpoint."""
    parsed = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        parsed.ParseFromString(graph)
    except Exception as error:  # of protobuf's own types
        raise origin.damaged(_KIND, f"its graph of objects: {error}") from error
    return [
        Node(
            children=[(child.local_name, child.node_id) for child in node.children],
            variables=[(a.full_name, a.checkpoint_key) for a in node.attributes],
            slots=[slot.slot_variable_node_id for slot in node.slot_variables],
        )
        for node in parsed.nodes
    ]


def _bytes_of(prefix: Path, ending: str) -> list[int]:
    """The sizes of the files that are called so, in the order of their names."""
    pattern = "".join(f"[{c}]" if c in "*?[" else c for c in prefix.name) + ending
    return [path.stat().st_size for path in sorted(prefix.parent.glob(pattern)) if path.is_file()]


def _unreadable(origin: Origin, error: object, hint: str = "") -> LoadError:
    reason = shortened(" ".join(str(error).split()))
    return LoadError(f"{origin.label} cannot be read as a TensorFlow checkpoint: {reason}{hint}")
