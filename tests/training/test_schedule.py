"""When something is due, by hand and as properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipefit.training import Pace, Schedule
from pipefit.training.loops.schedule import FINAL, PERMANENT, RECENT

INTERVALS = st.integers(0, 30)
SCHEDULES = st.builds(
    Schedule,
    steps=st.integers(1, 200),
    metrics_every=st.integers(1, 30),
    validate_every=INTERVALS,
    checkpoint_every=INTERVALS,
    recent_every=INTERVALS,
)


def is_due(schedule, step):
    return (
        schedule.stores_metrics(step)
        or schedule.validates(step)
        or bool(schedule.checkpoint_kinds(step))
    )


@given(schedule=SCHEDULES, data=st.data())
def test_nothing_is_due_between_a_step_and_its_next_boundary(schedule, data):
    step = data.draw(st.integers(0, schedule.steps - 1))
    boundary = schedule.next_boundary(step)
    assert step < boundary <= schedule.steps
    assert is_due(schedule, boundary)
    assert not any(is_due(schedule, between) for between in range(step + 1, boundary))


@given(schedule=SCHEDULES, step=st.integers(1, 300))
def test_everything_is_due_at_its_multiples_and_the_end(schedule, step):
    every = schedule.checkpoint_every
    kinds = schedule.checkpoint_kinds(step)
    assert (PERMANENT in kinds) == (every > 0 and step % every == 0)
    every = schedule.recent_every
    assert (RECENT in kinds) == (every > 0 and step % every == 0)
    assert (FINAL in kinds) == (step >= schedule.steps)
    every = schedule.validate_every
    assert schedule.validates(step) == (every > 0 and step % every == 0)
    metrics = step % schedule.metrics_every == 0 or step >= schedule.steps
    assert schedule.stores_metrics(step) == metrics


def test_nothing_is_due_before_the_first_step():
    assert not is_due(Schedule(10, 1, 1, 1, 1), 0)


def test_boundaries_by_hand():
    schedule = Schedule(steps=16, metrics_every=100, validate_every=5, recent_every=3)
    boundaries, step = [], 0
    while step < 16:
        step = schedule.next_boundary(step)
        boundaries.append(step)
    assert boundaries == [3, 5, 6, 9, 10, 12, 15, 16]


class TestPace:
    def test_the_first_call_is_one_step_and_does_not_count(self):
        pace = Pace(seconds=0.5)
        assert pace.limit == 1
        pace.measured(1, 30.0)  # compiled
        assert pace.limit == 1

    def test_grows_tenfold_at_most_up_to_what_fits(self):
        pace = Pace(seconds=0.5, most=1000)
        limits = []
        for _ in range(6):
            pace.measured(pace.limit, pace.limit * 0.001)
            limits.append(pace.limit)
        assert limits == [1, 10, 100, 500, 500, 500]

    def test_never_more_than_the_most(self):
        pace = Pace(seconds=0.5, most=50)
        for _ in range(9):
            pace.measured(pace.limit, 0.0)
        assert pace.limit == 50

    @pytest.mark.parametrize("seconds", [0.6, 100.0])
    def test_slow_steps_come_one_by_one(self, seconds):
        pace = Pace(seconds=0.5)
        pace.measured(1, 1.0)
        pace.measured(1, seconds)
        assert pace.limit == 1

    def test_shrinks_at_once(self):
        pace = Pace(seconds=0.5)
        for _ in range(5):
            pace.measured(pace.limit, pace.limit * 0.0005)
        assert pace.limit == 1000
        pace.measured(1000, 50.0)
        assert pace.limit == 10
