import doctest
from datetime import UTC, datetime

import numpy as np

from pipefit.report import table
from pipefit.report.table import text_table, validations_table


def test_the_example_of_the_module_holds():
    assert doctest.testmod(table).failed == 0


def test_numbers_are_right_aligned_with_equal_decimals_and_text_left():
    text = text_table(["run", "steps", "loss"], [["a", 5, 0.5], ["long-name", 12345, 12.25]])
    assert text.splitlines() == [
        "run        steps    loss",
        "---------  -----  ------",
        "a              5   0.500",
        "long-name  12345  12.250",
    ]


def test_numpy_numbers_dates_and_missing_values_have_a_place():
    moment = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    rows = [[np.int64(3), np.float32(0.5), moment, True], [None, float("nan"), None, None]]
    lines = text_table(["a", "b", "c", "d"], rows).splitlines()
    assert lines[2].split() == [
        "3",
        "0.5000",
        *moment.astimezone().strftime("%Y-%m-%d %H:%M").split(),
        "True",
    ]
    assert lines[3].split() == ["nan"]


def test_text_cannot_steer_the_terminal_or_break_a_line():
    line = text_table(["reason"], [["\x1b[2Jgone\nsecond\tthird"]]).splitlines()[2]
    assert line == "?[2Jgone second third"


def test_a_narrow_terminal_shortens_text_and_keeps_numbers():
    rows = [["a-name-of-some-length", "a reason that is quite long", 12345]]
    lines = text_table(["name", "reason", "steps"], rows, width=40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[2].endswith("12345") and "…" in lines[2]


def test_a_very_narrow_terminal_gets_one_line_per_value():
    rows = [["mlp", 0.5, 1], ["cnn", None, 2]]
    text = text_table(["name", "accuracy", "steps"], rows, width=15)
    assert text.split("\n\n")[0].splitlines() == [
        "name      mlp",
        "accuracy  0.5000",
        "steps     1",
    ]
    assert "accuracy" not in text.split("\n\n")[1]


def test_no_rows_still_give_headers():
    assert text_table(["name", "steps"], []).splitlines()[0] == "name  steps"


def test_validations_have_one_column_per_metric_and_blanks_where_a_set_lacks_it():
    rows = [
        {"set": "test", "step": 10, "examples": 297, "checkpoint": None, "accuracy": 0.5},
        {
            "set": "other",
            "step": 10,
            "examples": 5,
            "seconds": 1.0,
            "loss": 2.0,
            "accuracy": float("nan"),
        },
    ]
    lines = validations_table(rows).splitlines()
    assert lines[0].split() == ["step", "set", "accuracy", "loss", "examples"]
    assert lines[2].split() == ["10", "test", "0.5000", "297"]
    assert lines[3].split() == ["10", "other", "2.0000", "5"]
    assert validations_table([]).splitlines()[0].split() == ["step", "set", "examples"]
