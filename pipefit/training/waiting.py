"""How long a training waits for its data: see `Waiting`."""

from __future__ import annotations

import tensorflow as tf


class Waiting:
    """Counts the seconds that whoever reads a dataset waits for its elements.

    It is measured by tf.data itself, where the element is handed over: inside of a compiled loop
    nothing else can tell the time, because tf.timestamp refuses to work with deterministic ops.
    """

    _TAG = "pipefit_waiting"

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._statistics = tf.raw_ops.StatsAggregatorHandle(
                container="", shared_name=f"pipefit/waiting/{id(self)}"
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
        text = tf.raw_ops.StatsAggregatorSummary(iterator=self._statistics).numpy()
        summary = tf.compat.v1.Summary.FromString(text)
        microseconds = sum(v.histo.sum for v in summary.value if v.tag == self._TAG)
        return float(microseconds) / 1e6
