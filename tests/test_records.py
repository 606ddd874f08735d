import doctest
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipefit import records
from pipefit.records import (
    NOTHING,
    Best,
    Ended,
    LineEntry,
    RunOrder,
    RunState,
    RunStatus,
    check_collection_name,
    check_run_name,
    counts,
    extend_line,
    fence_at,
    final_step,
    intervals,
)

# A life of a run: per attempt, where it starts among the steps there are, how many steps it makes.
LIVES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8)), max_size=12)


def played(life):
    """The line, all records (fence, step) written, and the ones a person would say are left."""
    line, written, left = (), set(), {}
    for fence, (where, made) in enumerate(life, start=1):
        steps = [NOTHING, *sorted(left)]
        start = steps[round(where * (len(steps) - 1))]
        line = extend_line(line, fence, start)
        left = {step: owner for step, owner in left.items() if step <= start}
        for step in range(start + 1, start + 1 + made):
            written.add((fence, step))
            left[step] = fence
    return line, written, left


@given(LIVES)
def test_exactly_the_records_that_were_not_made_again_count(life):
    line, written, left = played(life)

    assert {record for record in written if counts(line, *record)} == {
        (fence, step) for step, fence in left.items()
    }


@given(LIVES, st.integers(-1, 100))
def test_one_attempt_at_most_counts_at_a_step(life, step):
    line, _, left = played(life)
    counting = [fence for fence, _ in line if counts(line, fence, step)]

    assert counting == ([] if fence_at(line, step) is None else [fence_at(line, step)])
    if step in left:
        assert counting == [left[step]]


@given(LIVES)
def test_the_line_is_ordered_and_has_no_idle_entries(life):
    line, _, _ = played(life)

    for before, after in itertools.pairwise(line):
        assert before.fence < after.fence
        assert before.start < after.start
    assert all(lower < upper for _, lower, upper in intervals(line))


def test_a_run_that_never_commits_keeps_a_short_line():
    line = ()
    for fence in range(1, 1000):
        line = extend_line(line, fence, NOTHING)

    assert line == (LineEntry(999, NOTHING),)


def test_what_a_stale_owner_writes_does_not_count():
    line = extend_line(extend_line((), 1, NOTHING), 2, 150)

    assert not counts(line, fence=1, step=151)
    assert not counts(line, fence=3, step=151)
    assert counts(line, fence=2, step=10**9)


def test_nothing_counts_before_the_beginning():
    assert fence_at((), 0) is None
    assert not counts((), 1, 0)
    assert not counts(extend_line((), 1, NOTHING), 1, NOTHING)


@pytest.mark.parametrize("fence", [1, 2])
def test_the_fence_must_grow(fence):
    with pytest.raises(ValueError, match=f"fence {fence} must be larger than 2"):
        extend_line([(2, NOTHING)], fence, 10)


@pytest.mark.parametrize("name", ["a", "digits-mlp", "sweep/lr-0.1", "a.b/..c"])
def test_names_of_runs(name):
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "./a", "a b", "a\n", "é", "x" * 201]
)
def test_names_that_no_run_has(name):
    with pytest.raises(ValueError, match="cannot name a run: use 1 to 200"):
        check_run_name(name)


def test_names_of_collections():
    assert check_collection_name("digits_2-x") == "digits_2-x"
    for name in ("", "a.b", "a/b", "a$", "x" * 65, "a\n"):
        with pytest.raises(ValueError, match="cannot name a collection: use 1 to 64"):
            check_collection_name(name)


@pytest.mark.parametrize(
    ("mode", "value", "improved"),
    [
        ("max", 0.6, True),
        ("max", 0.5, False),
        ("max", 0.4, False),
        ("max", math.nan, False),
        ("min", 0.4, True),
        ("min", 0.5, False),
        ("min", math.nan, False),
    ],
)
def test_the_best_is_replaced_by_something_better_only(mode, value, improved):
    assert Best("test/accuracy", mode, 0.5, 10).improved_by(value) is improved


def test_the_examples_run():
    result = doctest.testmod(records)
    assert result.attempted > 0
    assert result.failed == 0


EARLY = Ended("early_stop", '{"patience": 5}', 300, "no better test/accuracy for 5 validations")


@pytest.mark.parametrize(
    ("ended", "rules", "steps", "final"),
    [
        (None, {"early_stop": EARLY.rule}, 500, 500),
        (EARLY, {"early_stop": EARLY.rule, "max_time": "60.0"}, 500, 300),
        (EARLY, {"early_stop": EARLY.rule}, 300, 300),
        (EARLY, {"early_stop": EARLY.rule}, 200, 200),
        (EARLY, {"early_stop": '{"patience": 9}'}, 500, 500),
        (EARLY, {"max_time": EARLY.rule}, 500, 500),
        (EARLY, {}, 500, 500),
    ],
)
def test_a_run_is_complete_where_a_rule_that_still_holds_has_ended_it(ended, rules, steps, final):
    status = RunStatus("a", "digits", "1", RunState.FINISHED, 300, ended=ended)
    order = RunOrder("digits", "a", "1", {}, "{}", steps, stop_rules=rules)

    assert final_step(status, order) == final


def test_a_run_that_is_not_there_has_all_steps_before_it():
    assert final_step(None, RunOrder("digits", "a", "1", {}, "{}", 500)) == 500
