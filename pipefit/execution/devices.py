"""Which devices a model gets, decided before TensorFlow starts; see `place`."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from pipefit.errors import DeviceError

Devices = None | int | str | Sequence[int | str]


@dataclass(frozen=True)
class Placement:
    """The devices of one process.

    Attributes:
        kind: "gpu" or "cpu" (logical CPU devices).
        count: how many.
        visible: UUIDs of the GPUs, for CUDA_VISIBLE_DEVICES; empty for CPUs.
    """

    kind: str
    count: int
    visible: tuple[str, ...] = ()

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Let the process see these GPUs only (none for CPUs); before TensorFlow is imported."""
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.visible) if self.visible else "-1"


def gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """UUIDs of the GPUs that this process may use, in NVML's order; empty without a driver.

    A CUDA_VISIBLE_DEVICES set outside (by a cluster's scheduler) is respected: its GPUs, in its
    order.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    return restrict(uuids, environment.get("CUDA_VISIBLE_DEVICES"))


def restrict(uuids: Sequence[str], visible: str | None) -> list[str]:
    """The GPUs that a CUDA_VISIBLE_DEVICES value (None: unset) leaves, as CUDA reads it.

    Entries are indices or prefixes of UUIDs; the first invalid one ends the list.
    """
    if visible is None:
        return list(uuids)
    found: list[str] = []
    for word in (w.strip() for w in visible.split(",")):
        if word.isdigit() and int(word) < len(uuids):
            found.append(uuids[int(word)])
        elif word and any(uuid.startswith(word) for uuid in uuids):
            found.append(next(uuid for uuid in uuids if uuid.startswith(word)))
        else:
            break
    return found


def place(devices: Devices, available: Sequence[str]) -> Placement:
    """Turn what an experiment asks for into devices of this machine.

    Args:
        devices: None (the first GPU, else the CPU), a count, "all", "cpu:N", or a list of GPU
            indices, GPU UUIDs and "cpu:N".
        available: UUIDs of the GPUs (see `gpus`).

    Returns:
        The placement. Without any GPU, indices and counts mean logical CPU devices.

    Raises:
        DeviceError: for no device, one device twice, more GPUs than there are, an unknown UUID, or
            GPUs and CPUs mixed.
    """
    if devices is None:
        return _gpus(available[:1]) if available else Placement("cpu", 1)
    if devices == "all":
        return _gpus(available) if available else Placement("cpu", 1)
    if isinstance(devices, int):
        wanted: list[int | str] = list(range(devices))
    else:
        wanted = [devices] if isinstance(devices, str) else list(devices)
    if not wanted or len(set(wanted)) < len(wanted):
        raise DeviceError(f"model.devices = {devices!r}: name at least one device, and each once")
    cpus = [word for word in wanted if isinstance(word, str) and word.startswith("cpu:")]
    if cpus:
        if len(cpus) < len(wanted):
            raise DeviceError(f"model.devices = {devices!r}: GPUs and CPUs cannot be mixed")
        return Placement("cpu", len(cpus))
    if not available and all(isinstance(word, int) for word in wanted):
        return Placement("cpu", len(wanted))
    found = [_find(word, devices, available) for word in wanted]
    if len(set(found)) < len(found):
        raise DeviceError(f"model.devices = {devices!r}: two of these are the same GPU")
    return _gpus(found)


def _find(word: int | str, devices: Devices, available: Sequence[str]) -> str:
    there = f"this machine has {len(available)}: {', '.join(available) or 'none'}"
    if isinstance(word, int):
        if not 0 <= word < len(available):
            raise DeviceError(
                f"model.devices = {devices!r}: GPU {word} is wanted, {there}; ask for fewer"
            )
        return available[word]
    found = [uuid for uuid in available if uuid.startswith(word)]
    if len(found) != 1:
        raise DeviceError(f"model.devices = {devices!r}: no single GPU {word!r}, {there}")
    return found[0]


def _gpus(uuids: Sequence[str]) -> Placement:
    return Placement("gpu", len(uuids), tuple(uuids))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
