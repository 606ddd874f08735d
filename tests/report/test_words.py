import pytest

from pipefit.report.words import cut, duration, number, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97656, "0.9766"),
        (3.2e-5, "3.2e-05"),
        (0.0, "0.0000"),
        (7, "7"),
        (1e9, "1e+09"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_number_is_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.84, "0.8 s"),
        (42.2, "42 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (18720, "5 h 12 min"),
        (183600, "2 d 3 h"),
    ],
)
def test_a_duration_reads_like_speech(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1.25e6, "1.2 MB"),
        (3e9, "3.0 GB"),
        (5e12, "5000.0 GB"),
    ],
)
def test_a_size_has_a_unit(value, text):
    assert size(value) == text


def test_what_is_cut_shows_it():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"
