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
