"""How long a training waits for its data: see `Waiting`."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf


class Waiting:
    """Counts the seconds that whoever reads a dataset waits for its elements.

    It is measured by tf.data itself, where the element is handed over: inside of a compiled loop
    nothing else can tell the time, because tf.timestamp refuses to work with deterministic ops.
    """

    _TAG = "pipefit_waiting"
    _numbers = itertools.count()

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._statistics = tf.raw_ops.StatsAggregatorHandle(
                container="", shared_name=f"pipefit/waiting/{next(self._numbers)}"
            )

    def measured(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same dataset; what its readers wait for it is counted."""
        structure = tf.data.experimental.get_structure(dataset)
        parts = tf.nest.flatten(structure, expand_composites=True)
        kinds = {
            "output_types": [part.dtype for part in parts],
            "output_shapes": [part.shape for part in parts],
        }
        with tf.device("CPU:0"):
            variant = tf.raw_ops.LatencyStatsDataset(
                input_dataset=tf.data.experimental.to_variant(dataset), tag=self._TAG, **kinds
            )
            variant = tf.raw_ops.SetStatsAggregatorDataset(
                input_dataset=variant,
                stats_aggregator=self._statistics,
                tag="",
                counter_prefix="",
                **kinds,
            )
        return tf.data.experimental.from_variant(variant, structure)

    def seconds(self) -> float:
        """Waited so far, by all readers of all datasets that were given to `measured`."""
        return sum(float(one.sum) for one in self._histograms()) / 1e6

    def count(self) -> int:
        """How many elements they were handed."""
        return sum(int(one.num) for one in self._histograms())

    def longest(self) -> float:
        """Seconds that they waited for the one that took longest."""
        return max((float(one.max) for one in self._histograms()), default=0.0) / 1e6

    def _histograms(self) -> list[Any]:
        text = tf.raw_ops.StatsAggregatorSummary(iterator=self._statistics).numpy()
        summary = tf.compat.v1.Summary.FromString(text)
        return [value.histo for value in summary.value if value.tag == self._TAG]
