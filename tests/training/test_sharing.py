"""Arrays become tensors without a copy, where TensorFlow allows that."""

import gc

import numpy as np
import pytest

from pipefit.data import Arrays
from pipefit.training.feeding.sharing import shared

NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"


@pytest.mark.parametrize("dtype", NUMBERS.split())
def test_arrays_of_a_source_are_shared(dtype):
    array = Arrays(x=np.arange(12).reshape(3, 4).astype(dtype)).fields["x"]
    tensor = shared(array)
    assert tensor.numpy().tolist() == array.tolist()
    array[1, 2] = 0
    assert tensor[1, 2].numpy() == 0


@pytest.mark.parametrize(
    "array",
    [
        np.arange(13.0)[1:],
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0, dtype=">f8"),
        np.array(["a", "long"]),
        np.array([b"a", b"long"]),
        np.frombuffer(bytes(64), np.float32),
    ],
)
def test_what_cannot_be_shared_is_copied(array):
    found = shared(array).numpy()
    texts = array.dtype.kind in "SU"
    expected = [v if isinstance(v, bytes) else v.encode() for v in array] if texts else array
    assert found.tolist() == list(expected) if texts else (found == array).all()


def test_the_memory_lives_as_long_as_the_tensor():
    tensor = shared(Arrays(x=np.full(1_000_000, 7.0)).fields["x"])
    gc.collect()
    others = [np.zeros(1_000_000) for _ in range(4)]
    assert (tensor.numpy() == 7).all() and len(others) == 4
