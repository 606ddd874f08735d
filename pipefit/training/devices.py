"""One or several devices that work on slices of each batch: `Replicas`.

Several devices are a tf.distribute.MirroredStrategy. One plain iterator feeds them and every batch
is split inside the step, so there is one order and one position whatever the number of devices.
One device uses no strategy at all (a MirroredStrategy of one costs 0.5 to 0.7 of the speed).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipefit.errors import DeviceError

Batch = dict[str, tf.Tensor]


class Replicas:
    """The devices of one model.

    Args:
        kind: "gpu" or "cpu". Which GPUs is decided before TensorFlow starts, by what the process
            can see; here they are taken in order. CPUs are logical devices.
        count: number of devices, at least 1.
        threads: threads of one operation on the CPU; None: TensorFlow's default, one per core.
            Sums depend on how they are cut up, so it is part of what makes a run exact. It has no
            effect once TensorFlow has started.

    Raises:
        DeviceError: if there are fewer devices, or TensorFlow was started with fewer.
    """

    def __init__(self, *, kind: str = "cpu", count: int = 1, threads: int | None = None):
        if threads is not None:
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(threads)
        self.names = _logical_devices(kind, count)
        self.count = count
        self.strategy: tf.distribute.Strategy | None = None
        if count > 1:
            reduce = None if kind == "gpu" else tf.distribute.HierarchicalCopyAllReduce()
            self.strategy = tf.distribute.MirroredStrategy(self.names, cross_device_ops=reduce)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Variables made inside live on all devices."""
        if self.strategy is not None:
            scope: contextlib.AbstractContextManager[Any] = self.strategy.scope()
            return scope
        device: contextlib.AbstractContextManager[Any] = tf.device(self.names[0])
        return device

    def sizes(self, examples: int) -> list[int]:
        """How many of a batch's examples each device gets; they differ by at most one."""
        return [examples // self.count + (i < examples % self.count) for i in range(self.count)]

    def run(self, step: Callable[..., Any], slices: Sequence[Sequence[Batch]]) -> Any:
        """Call `step(slices[i])` on device i; per-device results (see `total`, `joined`)."""
        if self.strategy is None:
            return step(slices[0])
        values = [
            self.strategy.experimental_distribute_values_from_function(
                lambda context, j=j: slices[context.replica_id_in_sync_group][j]
            )
            for j in range(len(slices[0]))
        ]
        return self.strategy.run(step, args=(values,))

    def split(self, batch: Batch, parts: int = 1) -> list[list[Batch]]:
        """Cut a batch into `parts` consecutive parts and each part into one slice per device.

        Args:
            batch: tensors of shape [examples, ...] with a static number of examples.
            parts: must divide the number of examples.

        Returns:
            For every device the list of its slices, one per part.
        """
        examples = next(iter(batch.values())).shape[0]
        if self.count == 1 and parts == 1:
            return [[batch]]
        slices: list[list[Batch]] = [[] for _ in range(self.count)]
        begin = 0
        for _ in range(parts):
            for replica, size in enumerate(self.sizes(examples // parts)):
                end = begin + size
                slices[replica].append({k: v[begin:end] for k, v in batch.items()})
                begin = end
        return slices

    def total(self, values: Any) -> tf.Tensor:
        """Sum of per-device tensors."""
        if self.strategy is None:
            return values
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    def joined(self, values: Any) -> tf.Tensor:
        """Per-device tensors of shape [slice, ...] as one [batch, ...], in the batch's order."""
        if self.strategy is None:
            return values
        return tf.concat(self.strategy.experimental_local_results(values), axis=0)


def _logical_devices(kind: str, count: int) -> list[str]:
    if kind == "gpu":
        for gpu in tf.config.list_physical_devices("GPU"):
            # Raises once the runtime has started; then the setting is what it was.
            with contextlib.suppress(RuntimeError):
                tf.config.experimental.set_memory_growth(gpu, True)
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
    else:
        if count > 1:
            with contextlib.suppress(RuntimeError):
                cpu = tf.config.list_physical_devices("CPU")[0]
                configuration = tf.config.LogicalDeviceConfiguration()
                tf.config.set_logical_device_configuration(cpu, [configuration] * count)
        names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < count:
        raise DeviceError(
            f"devices: {count} {kind.upper()} devices wanted, TensorFlow has {len(names)} in this "
            f"process; ask for fewer, or start a fresh process"
        )
    return names[:count]
