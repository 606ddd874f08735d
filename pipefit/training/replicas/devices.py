"""One or several devices that work on slices of each batch: `Replicas`.

Several devices are a tf.distribute.MirroredStrategy. One plain iterator feeds them and every batch
is split inside the step, so there is one order and one position whatever the number of devices.
One device uses no strategy at all (a MirroredStrategy of one costs 0.5 to 0.7 of the speed).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pipefit.errors import DeviceError, SpecError

Batch = dict[str, tf.Tensor]

#: The devices of this process that sum by NCCL.
_group: list[str] = []


class Slice(NamedTuple):
    """What one device gets of a batch, or of a part of it.

    Attributes:
        fields: tensors of shape [examples, ...]; of a batch with fewer examples than there are
            devices some get none.
        spare: if so, one example of the batch, [1, ...], for every device to have something to
            compute; else empty.
    """

    fields: Batch
    spare: Batch

    @property
    def examples(self) -> int:
        """How many examples the device gets."""
        return int(next(iter(self.fields.values())).shape[0])


class Replicas:
    """The devices of one model.

    Args:
        kind: "gpu" or "cpu". Which GPUs is decided before TensorFlow starts, by what the process
            can see. CPUs are logical devices, parts of one CPU.
        count: the first so many of the process's devices. Default: 1.
        indices: these of the process's devices instead, so that several models of one process use
            different ones, or share them. If other models use devices of higher indices, call
            `start` first.
        threads: see `start`.
        alone: no other model of this process uses several devices. On GPUs the sums are then made
            by NCCL; several models at once would wait for each other there, so theirs are not.

    Raises:
        DeviceError: if there are fewer devices, TensorFlow was started with fewer, or `indices`
            are not distinct numbers from 0.
    """

    def __init__(
        self,
        *,
        kind: str = "cpu",
        count: int | None = None,
        indices: Sequence[int] | None = None,
        threads: int | None = None,
        alone: bool = True,
    ):
        chosen = list(range(1 if count is None else count)) if indices is None else list(indices)
        if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
            raise DeviceError(f"indices = {chosen}: give different numbers from 0, at least one")
        there = start(kind, max(chosen) + 1, threads)
        self.names = [there[index] for index in chosen]
        self.count = len(chosen)
        self.strategy: tf.distribute.Strategy | None = None
        if self.count > 1:
            own = None if alone and _have_nccl(self.names) else tf.distribute.ReductionToOneDevice()
            # Not HierarchicalCopyAllReduce: of 3, 5, ... devices it leaves out the last.
            self.strategy = tf.distribute.MirroredStrategy(self.names, cross_device_ops=own)

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

    def run(self, step: Callable[..., Any], slices: Sequence[Sequence[Slice]]) -> Any:
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

    def split(self, batch: Batch, parts: int = 1) -> list[list[Slice]]:
        """Cut a batch into `parts` consecutive parts and each part into one slice per device.

        Args:
            batch: tensors of shape [examples, ...] with a static number of examples.
            parts: must divide the number of examples.

        Returns:
            For every device the list of its slices, one per part.
        """
        examples = next(iter(batch.values())).shape[0]
        if self.count == 1 and parts == 1:
            return [[Slice(batch, {})]]
        sizes = self.sizes(examples // parts)
        spare = {k: v[:1] for k, v in batch.items()} if 0 in sizes else {}
        slices: list[list[Slice]] = [[] for _ in range(self.count)]
        begin = 0
        for _ in range(parts):
            for replica, size in enumerate(sizes):
                end = begin + size
                fields = {k: v[begin:end] for k, v in batch.items()}
                slices[replica].append(Slice(fields, spare))
                begin = end
        return slices

    def call(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function on every device with its own part of per-device values."""
        return function(*values) if self.strategy is None else self.strategy.run(function, values)

    def first(self, values: Any) -> Any:
        """The first device's part, of values that are the same on all."""
        if self.strategy is None:
            return values
        return self.strategy.experimental_local_results(values)[0]

    def firsts(self, values: Any) -> Any:
        """The same for a structure of values, lists and dicts; None stays None."""
        return tf.nest.map_structure(
            lambda value: None if value is None else self.first(value), values
        )

    def total(self, values: Any) -> tf.Tensor:
        """Sum of per-device tensors."""
        if self.strategy is None:
            return values
        # Else on the host, where TensorFlow adds up in another order if that is the first device.
        with tf.device(self.names[0]):
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)

    def joined(self, values: Any) -> tf.Tensor:
        """Per-device tensors of shape [slice, ...] as one [batch, ...], in the batch's order."""
        if self.strategy is None:
            return values
        return tf.concat(self.strategy.experimental_local_results(values), axis=0)

    def joined_rows(self, results: Mapping[str, Any], examples: int, what: str) -> Batch:
        """The same for results by name, of which each must have one row per example.

        Args:
            results: per-device tensors by name.
            examples: of the first device.
            what: they are, for messages.

        Raises:
            SpecError: one has not.
        """
        for name, value in self.firsts(results).items():
            if value.shape.rank == 0 or value.shape[0] != examples:
                raise SpecError(
                    f"{what} {name!r} has shape {value.shape} for {examples} examples: it cannot "
                    f"be joined with those of other slices of a batch; give one row per example, "
                    f"or use one device and train.accumulate = 1"
                )
        return {name: self.joined(value) for name, value in results.items()}


def _have_nccl(names: list[str]) -> bool:
    """Whether these devices sum by NCCL: GPUs, if no others did so in this process before.

    TensorFlow can form one group only; a second one breaks both until the process ends.
    """
    if "GPU" not in names[0]:
        return False
    if not _group:
        _group.extend(names)
    return _group == names


def start(kind: str, count: int, threads: int | None = None) -> list[str]:
    """Start TensorFlow with at least this many devices in this process.

    Args:
        kind: "gpu" or "cpu".
        count: number of devices.
        threads: threads of one operation on the CPU; None: TensorFlow's default, one per core.
            Sums depend on how they are cut up, so it is part of what makes a run exact. It has no
            effect once TensorFlow has started.

    Returns:
        The names of all devices of that kind.

    Raises:
        DeviceError: if there are fewer, or TensorFlow was started before with fewer.
    """
    if threads is not None:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    if kind == "gpu":
        for gpu in tf.config.list_physical_devices("GPU"):
            # Raises once the runtime has started; then the setting is what it was.
            with contextlib.suppress(RuntimeError):
                tf.config.experimental.set_memory_growth(gpu, True)
    elif count > 1:
        with contextlib.suppress(RuntimeError):
            cpu = tf.config.list_physical_devices("CPU")[0]
            configuration = tf.config.LogicalDeviceConfiguration()
            tf.config.set_logical_device_configuration(cpu, [configuration] * count)
    names = [device.name for device in tf.config.list_logical_devices(kind.upper())]
    if len(names) < count:
        raise DeviceError(
            f"devices: {count} {kind.upper()} devices wanted, TensorFlow has {len(names)} in this "
            f"process; ask for fewer, or start a fresh process"
        )
    return names
