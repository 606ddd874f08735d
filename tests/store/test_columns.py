import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipefit.errors import StoreError
from pipefit.records import MetricBlock
from pipefit.store import columns
from pipefit.store.columns import (
    FILE_BYTES,
    LARGE,
    RECORD_BYTES,
    kept_column,
    split_block,
    unpacked,
)

NUMBERS = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    arrays.unicode_string_dtypes(endianness="?"),
    arrays.byte_string_dtypes(),
)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
TEXTS = st.one_of(st.lists(st.text(), min_size=1), st.lists(st.binary(), min_size=1))


def packed_and_unpacked(values, begin=0, end=None):
    steps = len(values)
    end = steps if end is None else end
    packed = kept_column("x", values, steps).packed(begin, end)
    return unpacked(packed.entry, packed.data, end - begin)


def test_the_examples_run():
    result = doctest.testmod(columns)
    assert result.attempted > 0
    assert result.failed == 0


@given(arrays.arrays(NUMBERS, SHAPES))
def test_arrays_come_back_as_they_were(values):
    found = packed_and_unpacked(values)

    assert found.dtype == values.dtype.newbyteorder("<")
    assert found.shape == values.shape
    assert found.tobytes() == values.astype(found.dtype).tobytes()  # NaN is not equal to itself


@given(TEXTS)
def test_texts_come_back_as_they_were(texts):
    assert packed_and_unpacked(texts).tolist() == texts


@pytest.mark.parametrize("text", ["\ud800", "a\0", b"a\0\0", "", b"", "ä" * 300])
def test_texts_that_encodings_and_numpy_would_spoil(text):
    grid = np.array([[text, text * 2], [text * 3, text]], object)

    found = packed_and_unpacked(grid)
    assert found.shape == (2, 2)
    assert found.tolist() == grid.tolist()
    assert packed_and_unpacked(grid, 1).tolist() == [[text * 3, text]]
    assert unpacked(*single(text), 1).tolist() == [text]


def single(value):
    packed = columns.single("x", value)
    return packed.entry, packed.data


@pytest.mark.parametrize("value", [3, 2.5, True, np.float16(0.1), np.int64(2**62)])
def test_single_values_come_back_as_they_were(value):
    (found,) = unpacked(*single(value), 1)
    assert found == value
    assert found.dtype == np.asarray(value).dtype


def test_bfloat16_becomes_a_float_of_the_same_value():
    import ml_dtypes

    (found,) = packed_and_unpacked(np.array([0.1], ml_dtypes.bfloat16))
    assert (found, found.dtype) == (ml_dtypes.bfloat16(0.1), np.float32)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([1j], "complex128"),
        (np.array(["2020"], "M8[D]"), "datetime64"),
        (np.zeros(1, np.longdouble), "float128"),
        (np.zeros(1, [("a", "f4")]), "'a'"),
        ([None], "NoneType"),
        ([{}], "dict"),
        (["a", b"b"], "bytes, str"),
        ([1, "a"], "int, str"),
        ([[1], [1, 2]], "no array"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_kept_is_named(values, named):
    with pytest.raises(StoreError, match=f"value 'x' is .*{named}.*cannot be stored: give numbers"):
        kept_column("x", values, len(values))


@pytest.mark.parametrize("values", [np.float32(1.0), np.ones(2), np.ones((4, 3))])
def test_columns_have_an_axis_of_steps(values):
    with pytest.raises(StoreError, match=r"value 'x' is float.* of shape .*\[steps, ...\]"):
        kept_column("x", values, 3)
    for block in ({"x": values, "y": np.ones(3)}, {"y": np.ones(3), "x": values}):
        with pytest.raises(StoreError, match="the same number of steps"):
            list(split_block(MetricBlock(1, block)))


def test_texts_of_another_length_than_they_say_are_found():
    packed = kept_column("x", ["ab", "c"], 2).packed(0, 2)
    with pytest.raises(ValueError, match="another length"):
        unpacked(packed.entry, packed.data[:-1], 2)


@pytest.mark.parametrize("number", [1, 7, 100_000])
def test_a_block_is_cut_into_records_that_stay_small(number):
    values = np.arange(5000.0) if number < 10 else np.arange(3.0)
    block = MetricBlock(11, {f"metric {i}": values for i in range(number)})
    pieces = list(split_block(block))

    ends = np.cumsum([11, *(piece.steps for piece in pieces)])
    assert [piece.first for piece in pieces] == list(ends[:-1])
    for i in range(min(number, 7)):
        parts = [
            unpacked(piece.columns[i].entry, piece.columns[i].data, piece.steps) for piece in pieces
        ]
        np.testing.assert_array_equal(np.concatenate(parts), values)
    if number < 10:
        for piece in pieces:
            assert sum(len(column.data) for column in piece.columns) <= RECORD_BYTES


def test_large_columns_are_told_from_small_ones_and_cut_into_files_that_stay_small():
    limit = LARGE // 8
    names = {"small": np.ones((40, limit)), "large": np.ones((40, limit + 1))}
    (piece,) = split_block(MetricBlock(1, names))
    assert [column.large for column in piece.columns] == [False, True]

    images = np.arange(40 * 2**18, dtype=np.float32).reshape(40, 512, 512)  # 1 MiB per step
    pieces = list(split_block(MetricBlock(1, {"image": images})))
    assert [piece.steps for piece in pieces] == [16, 16, 8]
    assert all(len(piece.columns[0].data) <= FILE_BYTES for piece in pieces)


def test_one_long_text_makes_the_column_large():
    (piece,) = split_block(MetricBlock(1, {"caption": ["short", "x" * 509, "short"]}))
    assert piece.columns[0].large
    (piece,) = split_block(MetricBlock(1, {"caption": ["short", "x" * 508, "short"]}))
    assert not piece.columns[0].large
