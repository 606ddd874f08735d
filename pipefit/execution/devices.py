"""Which devices a model gets, decided before TensorFlow starts; see `place_all`."""

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
    return place_all({"": devices}, available)[0]


def place_all(
    devices: Mapping[str, Devices], available: Sequence[str]
) -> tuple[Placement, dict[str, list[int]]]:
    """Turn what several models of one process ask for into devices of this machine.

    Args:
        devices: of each model, by its name ("" for that of `[model]`), as `place` takes them.
            Models may share devices; None is the same device for all.
        available: UUIDs of the GPUs (see `gpus`).

    Returns:
        The placement of the process, which has all devices that any model asks for, and for each
        model the indices of its devices among them.

    Raises:
        DeviceError: as `place`; also if some models are on GPUs and others on CPUs.
    """
    kinds: dict[str, str] = {}
    chosen: dict[str, list[str]] = {}
    for name, wanted in devices.items():
        key = f"models.{name}.devices" if name else "model.devices"
        kinds[key], chosen[name] = _choose(wanted, available, f"{key} = {wanted!r}")
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{key} on the {kind.upper()}" for key, kind in kinds.items())
        raise DeviceError(
            f"{told}: models that train in one process are all on GPUs or all on CPUs; name the "
            f"devices of each, or train them as experiments of their own"
        )
    every = list(dict.fromkeys(device for model in chosen.values() for device in model))
    kind = next(iter(kinds.values()))
    visible = tuple(every) if kind == "gpu" else ()
    indices = {name: [every.index(device) for device in model] for name, model in chosen.items()}
    return Placement(kind, len(every), visible), indices


def _choose(devices: Devices, available: Sequence[str], given: str) -> tuple[str, list[str]]:
    """The kind of a model's devices, and their UUIDs or numbers."""
    if devices is None or devices == "all":
        found = list(available) if devices == "all" else list(available[:1])
        return ("gpu", found) if found else ("cpu", ["0"])
    if isinstance(devices, int):
        wanted: list[int | str] = list(range(devices))
    else:
        wanted = [devices] if isinstance(devices, str) else list(devices)
    if not wanted or len(set(wanted)) < len(wanted):
        raise DeviceError(f"{given}: name at least one device, and each once")
    cpus = [word for word in wanted if isinstance(word, str) and word.startswith("cpu:")]
    if cpus:
        if len(cpus) < len(wanted):
            raise DeviceError(f"{given}: GPUs and CPUs cannot be mixed")
        return "cpu", [word.removeprefix("cpu:") for word in cpus]
    if not available and all(isinstance(word, int) for word in wanted):
        return "cpu", [str(word) for word in wanted]
    found = [_find(word, given, available) for word in wanted]
    if len(set(found)) < len(found):
        raise DeviceError(f"{given}: two of these are the same GPU")
    return "gpu", found


def _find(word: int | str, given: str, available: Sequence[str]) -> str:
    there = f"this machine has {len(available)}: {', '.join(available) or 'none'}"
    if isinstance(word, int):
        if not 0 <= word < len(available):
            raise DeviceError(f"{given}: GPU {word} is wanted, {there}; ask for fewer")
        return available[word]
    found = [uuid for uuid in available if uuid.startswith(word)]
    if len(found) != 1:
        raise DeviceError(f"{given}: no single GPU {word!r}, {there}")
    return found[0]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
