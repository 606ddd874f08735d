"""Which faults a round has: a function of the seed and the number of the round."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.faults.kinds import KINDS
from tests.faults.moments import MESSAGES, OF_LUIGI, ONCE, After, At, Moment
from tests.faults.variants import VARIANTS, Variant

#: Of how many messages of a name one is chosen.
_MANY = 12


@dataclass(frozen=True)
class Fault:
    """One of a round.

    Attributes:
        kind: a key of `KINDS`.
        moment: when it strikes.
        seconds: until it ends, if its kind ends.
        amount: see `Kind`.
    """

    kind: str
    moment: Moment
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} {self.moment}{lasting}"


@dataclass(frozen=True)
class Plan:
    """A round; without faults it makes the reference of its variant."""

    number: int
    variant: Variant
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.variant.name}: {', '.join(map(str, self.faults)) or 'left alone'}"


def plan_of(seed: int, number: int) -> Plan:
    """The plan of a round: variants and first kinds take turns, all else is drawn."""
    rng = random.Random(f"{seed}/{number}")
    names = list(KINDS)
    random.Random(seed).shuffle(names)
    # One more turn after every full one, or a kind would always meet the same variant.
    first = names[number % len(names)]
    variant = VARIANTS[(number + number // len(names)) % len(VARIANTS)]
    kinds = [first, *rng.choices(names, k=rng.randrange(3))]
    return Plan(number, variant, tuple(_fault(kind, rng) for kind in kinds))


def reference_of(variant: Variant) -> Plan:
    """The plan of a variant that is left alone."""
    return Plan(-1, variant, ())


def _fault(name: str, rng: random.Random) -> Fault:
    kind = KINDS[name]
    seconds = rng.uniform(*rng.choice(kind.lasts))
    low, high = kind.amount
    # Small amounts as often as large ones.
    amount = low * (high / low) ** rng.random() if low else 0.0
    return Fault(name, _moment(kind.needs == "trainer", rng), seconds, amount)


def _moment(of_trainer: bool, rng: random.Random) -> Moment:
    if rng.random() < 0.4:
        return After(rng.random())
    message = rng.choice([name for name in MESSAGES if not (of_trainer and name in OF_LUIGI)])
    count = 1 if message in ONCE else rng.randrange(1, _MANY + 1)
    return At(message, count, rng.random() < 0.5)
