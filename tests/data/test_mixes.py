"""Mixes: exact proportions, an order that is a pure function of seed and position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipefit.data import Arrays, content_digest, examples, mix
from pipefit.data.mixes import block_counts
from pipefit.data.order import derived_seed
from pipefit.errors import DataError


def source(number, length):
    """A source whose examples say where they are from."""
    return Arrays(origin=np.full(length, number), x=np.arange(length, dtype=np.float32))


def drawn(mixed, seed, start, count):
    """From which source the examples come, and which ones they are."""
    fields = mixed.take(mixed.order(seed, start, count))
    return fields["origin"], fields["x"]


class TestOrder:
    @pytest.mark.parametrize(
        ("weights", "counts"),
        [
            ([0.7, 0.3], (70, 30)),
            ([3, 1], (75, 25)),
            ([1, 1, 1], (34, 34, 34)),
            ([0.1, 0.2, 0.3], (17, 34, 51)),
            ([1e-3, 1], (1, 1000)),
            ([0.123456789, 0.876543211], (1235, 8765)),
            ([1], (100,)),
        ],
    )
    def test_every_block_has_exactly_its_shares(self, weights, counts):
        sources = [source(i, 10 + i) for i in range(len(weights))]
        mixed = mix(sources, weights)
        assert mixed.counts == counts
        size = sum(counts)
        for block in (0, 1, 12345):
            origin, _ = drawn(mixed, seed=3, start=block * size, count=size)
            assert tuple(np.bincount(origin)) == counts

    def test_each_source_goes_through_whole_epochs_of_its_own(self):
        mixed = mix([source(0, 7), source(1, 50)], [0.8, 0.2])
        origin, x = drawn(mixed, seed=5, start=0, count=5000)
        for number, length in ((0, 7), (1, 50)):
            own = x[origin == number].astype(int)
            whole = own[: len(own) // length * length].reshape(-1, length)
            assert (np.sort(whole, axis=1) == np.arange(length)).all()
            seed = derived_seed(5, number + 1)
            assert own.tolist() == examples(seed=seed, start=0, count=len(own), n=length).tolist()

    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**63 - 1),
        start=st.integers(0, 10**10),
        skip=st.integers(0, 250),
        count=st.integers(0, 250),
    )
    def test_a_slice_is_the_slice_of_the_whole(self, seed, start, skip, count):
        mixed = mix([source(0, 5), source(1, 90), source(2, 1)], [0.5, 0.4, 0.1])
        whole = mixed.order(seed, start, skip + count)
        part = mixed.order(seed, start + skip, count)
        assert part.dtype == np.int64 and part.shape == (count,)
        assert part.tolist() == whole[skip:].tolist()

    def test_of_stored_runs_never_changes(self):
        mixed = mix([source(0, 5), source(1, 90)], [0.7, 0.3])
        assert mixed.order(0, 0, 12).tolist() == FIRST
        assert mixed.order(7, 10**9, 12).tolist() == LATER

    def test_sources_of_one_length_are_in_different_orders(self):
        mixed = mix([source(0, 100), source(1, 100)], [1, 1])
        origin, x = drawn(mixed, seed=0, start=0, count=200)
        assert x[origin == 0].tolist() != x[origin == 1].tolist()
        assert sorted(x[origin == 0]) == sorted(x[origin == 1]) == list(range(100))

    def test_seeds_differ(self):
        mixed = mix([source(0, 10), source(1, 10)], [1, 1])
        assert mixed.order(0, 0, 50).tolist() != mixed.order(1, 0, 50).tolist()

    def test_the_sources_do_not_take_turns(self):
        origin, _ = drawn(mix([source(0, 10), source(1, 10)], [1, 1]), seed=0, start=0, count=10000)
        same = (origin[1:] == origin[:-1]).mean()
        assert 0.47 < same < 0.52

    def test_far_away_costs_no_more(self):
        mixed = mix([source(0, 10), source(1, 10)], [1, 2])
        assert mixed.order(0, 10**15, 1000).shape == (1000,)

    def test_a_mix_of_mixes_keeps_the_inner_shares(self):
        inner = mix([source(0, 10), source(1, 10)], [0.9, 0.1])
        mixed = mix([inner, source(2, 10)], [0.5, 0.5])
        origin, _ = drawn(mixed, seed=0, start=0, count=20_000)
        assert np.bincount(origin).tolist() == [9000, 1000, 10000]


FIRST = [2, 4, 1, 3, 31, 0, 4, 1, 3, 0, 2, 1]
LATER = [4, 13, 29, 0, 57, 2, 3, 1, 1, 2, 4, 3]


class TestTake:
    MIXED = mix([source(0, 3), source(1, 4), source(2, 2)], [1, 1, 1])

    def test_all_examples_one_after_the_other(self):
        fields = self.MIXED.take(np.arange(9))
        assert len(self.MIXED) == 9
        assert fields["origin"].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
        assert fields["x"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]
        assert fields["x"].dtype == np.float32

    def test_any_examples_in_any_order(self):
        fields = self.MIXED.take(np.array([8, 0, 3, 8, 2]))
        assert fields["origin"].tolist() == [2, 0, 1, 2, 0]
        assert fields["x"].tolist() == [1, 0, 0, 1, 2]

    def test_texts_of_several_lengths(self):
        mixed = mix([Arrays(name=["a"]), Arrays(name=["longer"])], [1, 1])
        assert mixed.take(np.array([1, 0]))["name"].tolist() == ["longer", "a"]

    def test_a_source_that_changes_is_named(self):
        class Moody(Arrays):
            def take(self, indices):
                return {**super().take(indices), **({"more": indices} if 1 in indices else {})}

        mixed = mix([Arrays(x=[1, 2]), Moody(x=[1, 2])], [1, 1])
        with pytest.raises(DataError, match=r"mix: sources\[1\]: examples differ from the first"):
            mixed.take(np.array([0, 3]))


class TestErrors:
    @pytest.mark.parametrize(
        ("sources", "weights", "problem"),
        [
            ([source(0, 3)], [], "1 sources and 0 weights"),
            ([], [], "0 sources and 0 weights"),
            ([source(0, 3)], [0], r"weights\[0\] = 0 must be a number greater than 0"),
            ([source(0, 3)], [-1.0], r"weights\[0\] = -1.0 must be"),
            ([source(0, 3)], [float("nan")], r"weights\[0\] = nan must be"),
            ([source(0, 3)], [float("inf")], "must be finite"),
            ([source(0, 3)], [True], r"weights\[0\] = true must be"),
            ([source(0, 3)], ["1"], r'weights\[0\] = "1" must be'),
            ([source(0, 3), source(1, 3)], [1, 1e-9], r"weights\[1\] = 1e-09 is too small"),
            ([source(0, 3), "second"], [1, 1], "'second' is not a data source"),
        ],
    )
    def test_sources_and_weights(self, sources, weights, problem):
        with pytest.raises(DataError, match=problem):
            mix(sources, weights)

    @pytest.mark.parametrize(
        "other",
        [
            Arrays(x=np.zeros(3, np.float64)),
            Arrays(y=np.zeros(3, np.float32)),
            Arrays(x=np.zeros((3, 1), np.float32)),
        ],
    )
    def test_sources_of_other_fields_are_refused_with_both(self, other):
        with pytest.raises(DataError, match=r"sources\[1\] gives .*, sources\[0\] gives x float32"):
            mix([Arrays(x=np.zeros(3, np.float32)), other], [1, 1])


def test_shares_add_up():
    for weights in ([0.3333, 0.3333, 0.3334], [1 / 3, 1 / 7, 1 / 11], [5, 3, 2.5, 1e-3]):
        counts = block_counts(weights, weights)
        exact = np.array(weights) / sum(weights) * sum(counts)
        assert np.abs(counts - exact).max() <= 1


def test_the_digest_is_of_all_sources():
    one, two = source(0, 3), source(1, 3)
    digest = content_digest(mix([one, two], [1, 1]))
    assert digest.startswith("sha256:")
    assert digest != content_digest(mix([two, one], [1, 1]))

    class Sampled:
        def __len__(self):
            return 3

        def take(self, indices):
            return one.take(indices)

    assert content_digest(mix([one, Sampled()], [1, 1])).startswith("sampled:")


def test_closing_closes_the_sources():
    class Closing(Arrays):
        closed = False

        def close(self):
            self.closed = True

    inner = Closing(x=[1])
    mix([Arrays(x=[1]), inner], [1, 1]).close()
    assert inner.closed
