"""Which devices a model gets: what CUDA_VISIBLE_DEVICES leaves, what an experiment asks for."""

import pytest

from pipefit.errors import DeviceError
from pipefit.execution.devices import Placement, gpus, place, place_all, restrict

GPUS = ["GPU-aa11", "GPU-bb22", "GPU-bc33"]


def gpu(*uuids: str) -> Placement:
    return Placement("gpu", len(uuids), uuids)


def cpu(count: int) -> Placement:
    return Placement("cpu", count)


@pytest.mark.parametrize(
    ("devices", "available", "expected"),
    [
        (None, GPUS, gpu("GPU-aa11")),
        (None, [], cpu(1)),
        ("all", GPUS, gpu(*GPUS)),
        ("all", [], cpu(1)),
        (2, GPUS, gpu("GPU-aa11", "GPU-bb22")),
        (2, [], cpu(2)),
        ([2, 0], GPUS, gpu("GPU-bc33", "GPU-aa11")),
        ((0, 1), [], cpu(2)),
        ([5, 7, 9], [], cpu(3)),
        ("GPU-bb22", GPUS, gpu("GPU-bb22")),
        (["GPU-bc", 0], GPUS, gpu("GPU-bc33", "GPU-aa11")),
        ("cpu:0", GPUS, cpu(1)),
        ("cpu:0", [], cpu(1)),
        (["cpu:0", "cpu:1"], GPUS, cpu(2)),
    ],
)
def test_what_is_asked_for_becomes_devices_of_this_machine(devices, available, expected):
    assert place(devices, available) == expected


@pytest.mark.parametrize(
    ("devices", "available", "words"),
    [
        (4, GPUS, "GPU 3 is wanted, this machine has 3: GPU-aa11, GPU-bb22, GPU-bc33"),
        ([0, 3], GPUS, "GPU 3 is wanted, this machine has 3"),
        ([-1], GPUS, "GPU -1 is wanted"),
        ("GPU-b", GPUS, "no single GPU 'GPU-b'"),
        ("GPU-zz", GPUS, "no single GPU 'GPU-zz'"),
        ("GPU-aa11", [], "no single GPU 'GPU-aa11', this machine has 0: none"),
        ([0, "cpu:0"], GPUS, "GPUs and CPUs cannot be mixed"),
        (0, GPUS, "at least one device"),
        ([], [], "at least one device"),
        ([1, 1], GPUS, "each once"),
        (["cpu:0", "cpu:0"], [], "each once"),
        ([0, "GPU-aa11"], GPUS, "two of these are the same GPU"),
    ],
)
def test_what_cannot_be_given_is_refused(devices, available, words):
    with pytest.raises(DeviceError) as refused:
        place(devices, available)
    assert str(refused.value).startswith(f"model.devices = {devices!r}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("devices", "available", "placement", "indices"),
    [
        ({"a": None, "b": None}, GPUS, gpu("GPU-aa11"), {"a": [0], "b": [0]}),
        ({"a": None, "b": None}, [], cpu(1), {"a": [0], "b": [0]}),
        ({"a": [2], "b": [0, 2]}, GPUS, gpu("GPU-bc33", "GPU-aa11"), {"a": [0], "b": [1, 0]}),
        ({"a": 1, "b": "GPU-bb"}, GPUS, gpu("GPU-aa11", "GPU-bb22"), {"a": [0], "b": [1]}),
        ({"a": [0, 1], "b": [2, 3], "c": [3]}, [], cpu(4), {"a": [0, 1], "b": [2, 3], "c": [3]}),
        ({"a": "cpu:7", "b": ["cpu:0", "cpu:7"]}, GPUS, cpu(2), {"a": [0], "b": [1, 0]}),
        ({"a": "all", "b": 1}, GPUS, gpu(*GPUS), {"a": [0, 1, 2], "b": [0]}),
        ({"": 2}, [], cpu(2), {"": [0, 1]}),
    ],
)
def test_models_of_one_process_share_the_devices_they_both_name(
    devices, available, placement, indices
):
    assert place_all(devices, available) == (placement, indices)


def test_what_one_of_several_models_cannot_have_is_refused_by_its_name():
    with pytest.raises(DeviceError, match=r"^models\.b\.devices = \[5\]: GPU 5 is wanted"):
        place_all({"a": 1, "b": [5]}, GPUS)
    with pytest.raises(
        DeviceError, match=r"models\.a\.devices on the GPU, models\.b\.devices on t"
    ):
        place_all({"a": None, "b": "cpu:0"}, GPUS)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, GPUS),
        ("", []),
        ("-1", []),
        ("2,0", ["GPU-bc33", "GPU-aa11"]),
        (" 1 , 2 ", ["GPU-bb22", "GPU-bc33"]),
        ("GPU-bb22", ["GPU-bb22"]),
        ("GPU-bc,0", ["GPU-bc33", "GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),
        ("0,-1,1", ["GPU-aa11"]),
        ("GPU-zz,0", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible, expected):
    assert restrict(GPUS, visible) == expected


def test_the_gpus_of_this_machine_are_those_left_by_the_environment():
    assert gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpus({"CUDA_VISIBLE_DEVICES": "0"}) == gpus({})[:1]


def test_a_process_sees_its_gpus_only():
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2", "HOME": "/home/x"}
    gpu("GPU-bb22", "GPU-aa11").apply(environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "GPU-bb22,GPU-aa11", "HOME": "/home/x"}


def test_a_process_on_cpus_sees_no_gpu():
    environment: dict[str, str] = {}
    cpu(2).apply(environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "-1"}
