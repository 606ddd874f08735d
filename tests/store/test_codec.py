import doctest

import numpy as np
import pytest

from pipefit.errors import StoreError
from pipefit.store import codec, documents


def test_the_examples_run():
    result = doctest.testmod(codec)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_dtype_of_a_later_version_is_named():
    with pytest.raises(StoreError, match="dtype F4 cannot be read: known are BOOL"):
        codec.dtype_of("F4")


def test_plain_values_stay_and_numpy_becomes_plain():
    value = {"a": [np.float32(0.5), np.bool_(True), (1, None)], 3: np.arange(2), "t": "text"}

    assert documents.plain(value) == {"a": [0.5, True, [1, None]], "3": [0, 1], "t": "text"}
    assert type(documents.plain(np.float64(1.0))) is float
    for other in (b"bytes", {1, 2}, object()):
        with pytest.raises(StoreError, match="cannot be stored: give numbers"):
            documents.plain({"x": other})
