import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipefit.records import counts, extend_line
from pipefit.store.frames import metrics_frame

LINES = st.lists(st.integers(-1, 20), max_size=5)
BLOCKS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 25), st.integers(1, 6)), max_size=12, unique=True
)


def record(fence, first, steps, written):
    values = np.full(steps, float(written))
    columns = [{"name": "loss", "dtype": values.dtype.str, "data": values.tobytes()}]
    return {
        "fence": fence,
        "step": first,
        "steps": steps,
        "columns": columns,
        "written": written,
    }


@settings(deadline=None)  # the first call imports pandas
@given(LINES, BLOCKS)
def test_a_table_has_each_step_that_counts_once_as_written_last(starts, blocks):
    line = ()
    for fence, start in enumerate(starts, start=1):
        line = extend_line(line, fence, start)
    expected = {}
    for written, (fence, first, steps) in enumerate(blocks):
        for step in range(first, first + steps):
            if counts(line, fence, step):
                expected[step] = float(written)
    stored = [record(*block, written) for written, block in enumerate(blocks)]

    table = metrics_frame(line, sorted(stored, key=lambda r: r["step"]))
    assert list(table.index) == sorted(expected)
    if expected:
        assert dict(table["loss"]) == expected


def test_a_million_steps_in_small_blocks_are_a_table_at_once():
    steps = np.arange(1, 1_000_001)
    columns = {f"m{i}": (steps * i).astype("<f4" if i % 2 else "<i8") for i in range(10)}
    stored = [
        {
            "fence": 1,
            "step": first + 1,
            "steps": 100,
            "written": first,
            "columns": [
                {
                    "name": name,
                    "dtype": values.dtype.str,
                    "shape": [],
                    "data": values[first : first + 100].tobytes(),
                }
                for name, values in columns.items()
            ],
        }
        for first in range(0, 1_000_000, 100)
    ]
    line = [(1, -1), (2, 999_950)]  # the last block counts in part

    begin = time.process_time()
    table = metrics_frame(line, stored)
    seconds = time.process_time() - begin

    assert seconds < 2.0  # a fifth of a second on a machine that does nothing else
    np.testing.assert_array_equal(table.index, steps[:-50])
    for name, values in columns.items():
        np.testing.assert_array_equal(table[name], values[:-50])
