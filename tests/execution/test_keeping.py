"""Which checkpoints stay, worked out by hand."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipefit.execution.keeping import keep, planned
from pipefit.records import CheckpointInfo


def checkpoints(**kinds: str) -> list[CheckpointInfo]:
    """Checkpoints `s<step>="kind kind"`; the id is the name."""
    now = datetime.now(UTC)
    return [
        CheckpointInfo(name, int(name[1:]), 1, 8, "00", now, frozenset(words.split()))
        for name, words in kinds.items()
    ]


def kept(infos, recent_keep=2, best_step=None):
    decision = keep(infos, recent_keep=recent_keep, best_step=best_step)
    return {name: " ".join(sorted(kinds)) for name, kinds in decision.items()}


def test_permanent_and_final_ones_always_stay():
    infos = checkpoints(s1="permanent", s2="recent", s3="final", s4="recent", s5="recent")
    assert kept(infos) == {"s1": "permanent", "s3": "final", "s4": "recent", "s5": "recent"}


def test_the_last_recent_ones_stay_whatever_the_order_given():
    infos = checkpoints(s30="recent", s10="recent", s40="recent", s20="recent")
    assert kept(infos) == {"s40": "recent", "s30": "recent"}
    assert kept(infos, recent_keep=3) == {"s40": "recent", "s30": "recent", "s20": "recent"}


def test_recent_ones_are_counted_among_themselves():
    infos = checkpoints(s1="recent", s2="recent permanent", s3="best", s4="permanent", s5="recent")
    assert kept(infos, best_step=3) == {
        "s2": "permanent recent",
        "s3": "best",
        "s4": "permanent",
        "s5": "recent",
    }


def test_a_permanent_one_that_is_no_longer_recent_is_only_permanent():
    infos = checkpoints(s1="recent permanent", s2="recent", s3="recent")
    assert kept(infos) == {"s1": "permanent", "s2": "recent", "s3": "recent"}


def test_only_the_best_of_the_best_stays():
    infos = checkpoints(s1="best", s2="best recent", s3="recent", s4="recent")
    assert kept(infos, best_step=1) == {"s1": "best", "s3": "recent", "s4": "recent"}
    assert kept(infos, best_step=2) == {"s2": "best", "s3": "recent", "s4": "recent"}
    assert kept(infos) == {"s3": "recent", "s4": "recent"}


@pytest.mark.parametrize("kinds", ["recent", "best", ""])
def test_the_newest_stays_whatever_it_is(kinds):
    infos = checkpoints(s1="permanent", s2=kinds)
    assert kept(infos, recent_keep=0) == {"s1": "permanent", "s2": kinds}


def test_one_at_which_the_run_was_stopped_stays_until_there_is_a_later_one():
    infos = checkpoints(s1="recent", s2="stopped", s3="recent", s4="stopped")
    assert kept(infos, recent_keep=1) == {"s3": "recent", "s4": "stopped"}
    assert kept(infos[:3], recent_keep=1) == {"s3": "recent"}
    # The run may be rolled back to the one before it, whatever that is.
    assert kept(infos, recent_keep=0) == {"s3": "recent", "s4": "stopped"}
    assert [info.id for info in planned(infos)] == ["s1", "s3"]


def test_of_nothing_nothing_stays():
    assert kept([]) == {}


KINDS = st.frozensets(st.sampled_from(["permanent", "recent", "best", "final", "stopped"]))


@given(
    steps=st.dictionaries(st.integers(1, 50), KINDS, max_size=20),
    recent_keep=st.integers(0, 5),
    best=st.integers(1, 50),
)
def test_keeping_again_changes_nothing(steps, recent_keep, best):
    infos = checkpoints(**{f"s{step}": " ".join(kinds) for step, kinds in steps.items()})
    first = keep(infos, recent_keep=recent_keep, best_step=best)
    left = checkpoints(**{name: " ".join(kinds) for name, kinds in first.items()})
    assert keep(left, recent_keep=recent_keep, best_step=best) == first
