import doctest

import numpy as np
import pytest

from pipefit.errors import StoreError
from pipefit.records import MetricBlock
from pipefit.store import codec, documents


def test_the_examples_run():
    result = doctest.testmod(codec)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("columns", [1, 7, 100_000])
def test_a_block_is_cut_into_records_that_stay_small(columns):
    values = np.arange(5000.0) if columns < 10 else np.arange(3.0)
    block = MetricBlock(11, {f"metric {i}": values for i in range(columns)})
    pieces = list(codec.split_block(block))

    assert [first for first, _, _ in pieces] == list(
        np.cumsum([11, *(steps for _, steps, _ in pieces)])[:-1]
    )
    for name in range(min(columns, 7)):
        parts = [codec.column_values(piece[2][name]) for piece in pieces]
        np.testing.assert_array_equal(np.concatenate(parts), values)
    if columns < 10:
        assert all(sum(len(c["data"]) for c in piece[2]) <= codec.METRICS_BYTES for piece in pieces)


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
