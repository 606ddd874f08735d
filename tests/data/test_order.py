"""The order of examples: permutations that are a pure function of seed and position."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipefit.data import examples

SEEDS = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, epoch=st.integers(0, 10**9), n=st.integers(1, 400))
def test_every_aligned_epoch_holds_each_example_once(seed, epoch, n):
    order = examples(seed=seed, start=epoch * n, count=n, n=n)
    assert sorted(order.tolist()) == list(range(n))


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    n=st.integers(1, 100),
    start=st.integers(0, 10**12),
    skip=st.integers(0, 150),
    count=st.integers(0, 150),
)
def test_a_slice_is_the_slice_of_the_whole(seed, n, start, skip, count):
    whole = examples(seed=seed, start=start, count=skip + count, n=n)
    part = examples(seed=seed, start=start + skip, count=count, n=n)
    assert part.dtype == np.int64
    assert part.shape == (count,)
    assert part.tolist() == whole[skip:].tolist()


@pytest.mark.parametrize(
    ("seed", "start", "n", "expected"),
    [
        (0, 0, 5, [1, 4, 3, 2, 0, 4, 0, 1, 3, 2, 1, 2]),
        (0, 100, 64, [2, 22, 13, 42, 36, 63, 1, 37, 14, 47]),
        (7, 0, 1797, [1143, 255, 615, 329, 492, 190, 35, 201, 144, 1192]),
        (1, 10**12, 1437, [1232, 524, 1030, 960, 336, 719]),
        (2**63, 3, 1000003, [353876, 333529, 967185, 943208, 477572, 542671, 463580, 431288]),
    ],
)
def test_the_order_of_stored_runs_never_changes(seed, start, n, expected):
    """Whoever changes these numbers breaks the continuation of every run in every database."""
    assert examples(seed=seed, start=start, count=len(expected), n=n).tolist() == expected


def test_seeds_and_epochs_differ():
    rows = [examples(seed=s, start=e * 50, count=50, n=50) for s in range(20) for e in range(20)]
    assert len({row.tobytes() for row in rows}) == len(rows)


@pytest.mark.parametrize("n", [5, 20, 64])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_example_is_equally_likely_at_every_place(n, seed):
    epochs = 4000
    order = examples(seed=seed, start=0, count=epochs * n, n=n).reshape(epochs, n)
    counts = np.stack([np.bincount(order[:, place], minlength=n) for place in range(n)])
    expected = epochs / n
    # Rows and columns both add up to `epochs`: chi-squared of (n - 1)**2 after this correction.
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n
    assert_plausible(statistic, (n - 1) ** 2)


@pytest.mark.parametrize("n", [5, 20, 64])
def test_every_pair_of_neighbours_is_equally_likely(n):
    epochs = 10000
    order = examples(seed=3, start=0, count=epochs * n, n=n).reshape(epochs, n)
    counts = np.bincount(order[:, 0] * n + order[:, 1], minlength=n * n).reshape(n, n)
    assert (np.diag(counts) == 0).all()
    pairs = counts[~np.eye(n, dtype=bool)]
    expected = epochs / pairs.size
    assert_plausible(((pairs - expected) ** 2 / expected).sum(), pairs.size - 1)


def test_all_permutations_of_five_occur_equally_often():
    order = examples(seed=0, start=0, count=60000 * 5, n=5).reshape(-1, 5)
    _, counts = np.unique(order @ 5 ** np.arange(5), return_counts=True)
    assert counts.size == 120
    assert_plausible(((counts - 500) ** 2 / 500).sum(), 119)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"start": -1}, {"count": -1}, {"n": 0}, {"n": -5}])
def test_what_makes_no_sense_is_refused_with_all_values(wrong):
    values = {"seed": 0, "start": 0, "count": 1, "n": 10, **wrong}
    with pytest.raises(ValueError, match="must not be negative") as refused:
        examples(**values)
    for name, value in values.items():
        assert f"{name}={value}" in str(refused.value)


def test_an_epoch_far_away_costs_no_more_than_the_first():
    order = examples(seed=0, start=10**15, count=1000, n=10**12)
    assert len(set(order.tolist())) == 1000
    assert order.min() >= 0
    assert order.max() < 10**12


def assert_plausible(statistic: float, freedom: int) -> None:
    """Within four standard deviations of a chi-squared distribution (the seeds are fixed)."""
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)
