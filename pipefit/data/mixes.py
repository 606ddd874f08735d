"""Several sources in fixed proportions as one. See `mix`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.digests import combined_digest, content_digest
from pipefit.data.fields import Fields, check_fields, described
from pipefit.data.order import Indices, derived_seed, examples
from pipefit.data.sources import Source, field_specs, order_of
from pipefit.errors import DataError
from pipefit.refs import show

#: The proportions hold in every block of so many positions, or the next number they divide.
BLOCK = 100
#: Proportions that need a longer block than this are rounded to it.
LONGEST = 10_000


def mix(sources: Sequence[Source], weights: Sequence[float]) -> Mix:
    """One source that draws from several in fixed proportions.

    In training every block of at least 100 examples has exactly its share from each source,
    permuted. Each source goes through epochs of its own, so a small one is read more often than a
    large one of the same weight. In validation all examples of all sources are read once.

    Args:
        sources: with the same fields.
        weights: how many examples come from each, relative to the others.

    Raises:
        DataError: other fields, or other weights than one positive number for each source.
    """
    return Mix(sources, weights)


class Mix:
    """A source of several, with an order of its own.

    Position p lies in block ``p // size``, whose permutation says which source is read there; how
    often that source is read before, in earlier blocks and in this one, is its own position. So
    each source is read in its own order, and nothing has to be saved, as with `examples`.

    Args:
        sources: see `mix`.
        weights: see `mix`.

    Attributes:
        counts: examples of each source in one block.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]):
        self.counts = block_counts(sources, weights)
        self._sources = tuple(sources)
        self._specs = field_specs(self._sources[0])
        for number, source in enumerate(self._sources[1:], 1):
            found = field_specs(source)
            if found != self._specs:
                raise DataError(
                    f"mix: all sources must have the same fields: sources[{number}] gives "
                    f"{described(found)}, sources[0] gives {described(self._specs)}"
                )
        self._starts = np.cumsum([0, *map(len, self._sources)])
        self._slots = np.cumsum([0, *self.counts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices; those of the first source come first, and so on."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        pieces, places = [], []
        for number in np.unique(owners):
            place = np.flatnonzero(owners == number)
            piece = self._sources[number].take(indices[place] - self._starts[number])
            check_fields(piece, len(place), self._specs, f"mix: sources[{number}]")
            pieces.append(piece)
            places.append(place)
        back = np.argsort(np.concatenate(places))
        return {
            name: np.concatenate([piece[name] for piece in pieces])[back] for name in self._specs
        }

    def order(self, seed: int, start: int, count: int) -> Indices:
        """Which examples stand at the positions start, ..., start + count - 1."""
        size = int(self._slots[-1])
        block = start // size
        end = -(-(start + count) // size)  # the first block that is not needed
        slots = examples(
            seed=derived_seed(seed, 0), start=block * size, count=(end - block) * size, n=size
        )
        owners = np.searchsorted(self._slots, slots, side="right") - 1
        before, owners = np.split(owners, [start - block * size])
        owners = owners[:count]
        order = np.empty(count, np.int64)
        for number, source in enumerate(self._sources):
            places = np.flatnonzero(owners == number)
            read = block * self.counts[number] + np.count_nonzero(before == number)
            own = order_of(
                source, seed=derived_seed(seed, number + 1), start=int(read), count=len(places)
            )
            order[places] = self._starts[number] + own
        return order

    def digest(self) -> str:
        """Of the digests of all sources."""
        return combined_digest(
            {f"{number}": content_digest(source) for number, source in enumerate(self._sources)}
        )

    def close(self) -> None:
        """Close the sources that can be closed."""
        for source in self._sources:
            close: Any = getattr(source, "close", None)
            if close is not None:
                close()


def block_counts(sources: Sequence[Any], weights: Sequence[float]) -> tuple[int, ...]:
    """How many examples of a block come from each source.

    The shortest block of at least `BLOCK` that the weights divide; where that is over `LONGEST`,
    what is left after rounding down goes to the largest remainders.

    >>> block_counts("ab", [0.7, 0.3]), block_counts("abc", [1, 1, 1])
    ((70, 30), (34, 34, 34))

    Raises:
        DataError: other weights than one positive number for each source, or one too small.
    """
    _check_weights(sources, weights)
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    divided = math.lcm(*(share.denominator for share in shares))
    size = divided * math.ceil(BLOCK / divided) if divided <= LONGEST else LONGEST
    counts = [math.floor(share * size) for share in shares]
    remainders = [share * size - count for share, count in zip(shares, counts, strict=True)]
    largest = sorted(range(len(counts)), key=lambda number: -remainders[number])
    for number in largest[: size - sum(counts)]:
        counts[number] += 1
    if 0 in counts:
        number = counts.index(0)
        raise DataError(
            f"mix: weights[{number}] = {show(weights[number])} is too small beside the others: it "
            f"must be at least 1/{LONGEST} of their sum; leave the source out"
        )
    return tuple(counts)


def _check_weights(sources: Sequence[Any], weights: Sequence[float]) -> None:
    if not sources or len(sources) != len(weights):
        raise DataError(
            f"mix: {len(sources)} sources and {len(weights)} weights; give at least one source, "
            "and one weight for each"
        )
    for number, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
            raise DataError(
                f"mix: weights[{number}] = {show(weight)} must be a number greater than 0"
            )
        if math.isinf(weight):
            raise DataError(f"mix: weights[{number}] = {show(weight)} must be finite")
