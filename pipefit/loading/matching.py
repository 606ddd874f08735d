"""Which tensor of which source becomes which variable: see `match`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipefit.errors import LoadError
from pipefit.loading.base import TensorInfo
from pipefit.loading.names import Rules, choose, is_counter, usual
from pipefit.loading.report import (
    Doubled,
    Matched,
    Mismatched,
    Missing,
    Report,
    Section,
    SourceFacts,
    Unexpected,
)
from pipefit.loading.slots import MOMENTUM, Slots

#: So many missing variables are told what they may be called in the source.
_SUGGESTIONS = 20
_FLOATING = frozenset(("bfloat16", "float16", "float32", "float64"))
STEP, POSITION = "run/step", "run/position"


@dataclass(frozen=True)
class Offer:
    """A source with what its table of [[load]] says.

    Attributes:
        facts: of the source.
        tensors: all it has.
        rules: about names.
        mapping: whether names that match nothing exactly are looked for under the usual names of
            TensorFlow 1 and Keras 3.
        optimizer: whether slots, averages and loss scale are taken along.
        step: whether step, position, counters and seeds are.
        allow_missing: regular expressions of variables that no source need have.
        allow_unexpected: of tensors, as the source calls them, that nobody need want.
        allow_mismatch: of variables that need not fit.
        order: of those that claim the same variable, the one with the largest wins.
        where: place of the table, for messages.
    """

    facts: SourceFacts
    tensors: Mapping[str, TensorInfo]
    rules: Rules = field(default_factory=Rules)
    mapping: bool = True
    optimizer: bool = False
    step: bool = False
    allow_missing: Sequence[str] = ()
    allow_unexpected: Sequence[str] = ()
    allow_mismatch: Sequence[str] = ()
    order: int | None = None
    where: str = ""


class _Claim(NamedTuple):
    """A tensor of a source, for a variable."""

    source: int
    own: str
    how: str


def match(wanted: Mapping[str, TensorInfo], offers: Sequence[Offer]) -> Report:
    """Match what sources have to what a training at step 0 has.

    Args:
        wanted: the state of the training, named as `pipefit.loading.names.of_state` does.
        offers: in the order of the tables.

    Returns:
        The report; `Report.check` refuses it unless everything fits.

    Raises:
        LoadError: a rule about names matches nothing, or makes two names one; or the step is
            asked of a source that does not say it.
    """
    return _Matching(wanted, offers).done()


class _Matching:
    def __init__(self, wanted: Mapping[str, TensorInfo], offers: Sequence[Offer]) -> None:
        self._wanted, self._offers = wanted, offers
        self._names: list[dict[str, str]] = []
        self._claimed: list[dict[str, str]] = []
        self._other_momentum: set[str] = set()
        self._used: dict[str, set[str]] = {"missing": set(), "unexpected": set(), "mismatch": set()}
        self.report = Report([offer.facts for offer in offers])

    def done(self) -> Report:
        for number, offer in enumerate(self._offers):
            self._choose(number, offer)
        self._match_model()
        if any(offer.optimizer for offer in self._offers):
            self._match_slots()
        self._match_course()
        self._find_useless()
        report = self.report
        report.shapes = {m.name: _shown(self._wanted[m.name]) for m in report.loads}
        return report

    def _choose(self, number: int, offer: Offer) -> None:
        variables = _of_role(offer.tensors, "model")
        others = {name: info for name, info in offer.tensors.items() if info.role != "model"}
        chosen = choose(variables, offer.rules, offer.where, others=list(others))
        self._names.append(chosen.names)
        self.report.left_out += [(number, own) for own in chosen.left_out]
        asked = [offer.step if _is_course(n, i) else offer.optimizer for n, i in others.items()]
        self.report.not_asked.append(asked.count(False))

    # ---- the variables of the model ----

    def _match_model(self) -> None:
        wanted = {n: info for n, info in self._wanted.items() if info.role == "model"}
        claims: dict[str, list[_Claim]] = {}
        for number, offer in enumerate(self._offers):
            names = self._names[number]
            mapped = _mapped(names, wanted) if offer.mapping else {}
            for own, name in names.items():
                targets = [name] if name in wanted else mapped.get(own, [])
                how = "mapped" if name not in wanted else "exact" if own == name else "renamed"
                if len(targets) == 1:
                    claims.setdefault(targets[0], []).append(_Claim(number, own, how))
                elif targets:
                    self.report.ambiguous.append((number, own, tuple(targets)))
                else:
                    self._unexpected(self.report.model, number, own, name)
        self._settle(self.report.model, wanted, claims)
        self._add_missing(wanted, claims)
        self._claimed = [{} for _ in self._offers]
        for found in self.report.model.matched:
            self._claimed[found.source][found.own] = found.name

    def _add_missing(
        self, wanted: Mapping[str, TensorInfo], claims: Mapping[str, Sequence[_Claim]]
    ) -> None:
        spare = [found.name for found in self.report.model.unexpected]
        spare += [own for _, own in self.report.left_out]
        missing = self.report.model.missing
        for name in wanted:
            if name not in claims:
                # Among thousands of names each search takes a while, and nobody reads them all.
                search = spare if len(missing) < _SUGGESTIONS else []
                near = difflib.get_close_matches(name, search, n=3, cutoff=0.5)
                missing.append(Missing(name, self._allows("missing", name), tuple(near)))

    def _unexpected(self, section: Section, number: int, own: str, name: str) -> None:
        allowed = self._allows("unexpected", own, self._offers[number])
        section.unexpected.append(Unexpected(number, own, name, allowed))

    def _settle(
        self,
        section: Section,
        wanted: Mapping[str, TensorInfo],
        claims: Mapping[str, Sequence[_Claim]],
    ) -> None:
        """Decide what becomes of every variable that is claimed."""
        for name, all_claims in claims.items():
            claim = self._winner(name, all_claims)
            if claim is None:
                owns = tuple(c.own for c in all_claims)
                section.doubled.append(Doubled(name, tuple(c.source for c in all_claims), owns))
                continue
            section.overridden += [(c.source, c.own) for c in all_claims if c != claim]
            self._take(section, name, wanted[name], claim)

    def _winner(self, name: str, claims: Sequence[_Claim]) -> _Claim | None:
        orders = [self._offers[claim.source].order for claim in claims]
        known = [order for order in orders if order is not None]
        if len(claims) == 1:
            return claims[0]
        if len(known) < len(claims) or len(set(known)) < len(claims):
            return None
        return claims[orders.index(max(known))]

    def _take(self, section: Section, name: str, info: TensorInfo, claim: _Claim) -> None:
        has = self._offers[claim.source].tensors[claim.own]
        reason = _difference(has, info)
        if reason is None:
            section.matched.append(Matched(name, *claim))
            return
        allowed = self._allows("mismatch", name)
        if allowed and has.shape == info.shape and {has.dtype, info.dtype} <= _FLOATING:
            section.matched.append(Matched(name, *claim, has.dtype))
            return
        section.mismatched.append(Mismatched(name, claim.source, claim.own, reason, allowed))

    # ---- the optimizers ----

    def _match_slots(self) -> None:
        """Slots follow their variables: those of what is not loaded with its slots stay fresh."""
        asked = {number for number, offer in enumerate(self._offers) if offer.optimizer}
        loaded = {m.name for m in self.report.model.matched if m.source in asked}
        wanted = {n: i for n, i in self._wanted.items() if _is_slot(n, i)}
        known = Slots(_of_role(self._wanted, "model"))
        variables = {name: known.of(name) for name in wanted}
        targets = {slot or name: name for name, slot in variables.items()}
        claims: dict[str, list[_Claim]] = {}
        for number, offer in enumerate(self._offers):
            if offer.optimizer:
                self._claim_slots(number, offer, targets, claims)
        self._settle(self.report.optimizer, wanted, claims)
        stay = {name for name, slot in variables.items() if slot and slot.variable not in loaded}
        stay |= {
            n for n, slot in variables.items() if slot and slot.variable in self._other_momentum
        }
        for name in wanted:
            if name not in claims and name not in stay:
                allowed = self._allows("missing", name)
                self.report.optimizer.missing.append(Missing(name, allowed))

    def _claim_slots(
        self,
        number: int,
        offer: Offer,
        targets: Mapping[Any, str],
        claims: dict[str, list[_Claim]],
    ) -> None:
        slots = Slots(_of_role(offer.tensors, "model"))
        loaded = self._claimed[number]
        for own, info in offer.tensors.items():
            if not _is_slot(own, info):
                continue
            slot = slots.of(own)
            if offer.rules.excludes(own) or (slot and slot.variable not in loaded):
                self.report.left_out.append((number, own))
                continue
            moved = slot._replace(variable=loaded[slot.variable]) if slot else None
            target = targets.get(moved or own)
            if target is not None:
                how = "exact" if target == own else "slot"
                claims.setdefault(target, []).append(_Claim(number, own, how))
            elif moved and moved.kind == MOMENTUM:
                self._refuse_momentum(number, own, moved.variable)
            else:
                self._unexpected(self.report.optimizer, number, own, own)

    def _refuse_momentum(self, number: int, own: str, variable: str) -> None:
        reason = (
            "TensorFlow 1's Momentum adds up gradients, Keras' momentum adds up updates (times the "
            "learning rate, with the other sign): the numbers do not fit"
        )
        allowed = self._allows("mismatch", variable)
        found = Mismatched(variable, number, own, reason, allowed)
        self._other_momentum.add(variable)
        self.report.optimizer.mismatched.append(found)

    # ---- step, position, counters, seeds ----

    def _match_course(self) -> None:
        claims: dict[str, list[_Claim]] = {}
        for number, offer in enumerate(self._offers):
            if not offer.step:
                continue
            if offer.facts.step is None:
                raise LoadError(
                    f"{offer.where}.step = true: {offer.facts.label} does not say at which step "
                    f"it was saved; leave step out"
                )
            # The step itself is a fact of the source, whatever it calls it.
            for name, own in {**self._course_of(offer), STEP: STEP}.items():
                claims.setdefault(name, []).append(_Claim(number, own, "exact"))
        for name, all_claims in claims.items():
            claim = self._winner(name, all_claims)
            if claim is None:
                raise LoadError(
                    f"step = true: several sources would give {name}; ask it of one, or give all "
                    f"of them an order"
                )
            self.report.course.append(Matched(name, *claim))

    def _course_of(self, offer: Offer) -> dict[str, str]:
        """What a source has of all this, as far as it fits: by our name its own."""
        found = {}
        for own, info in offer.tensors.items():
            name = offer.rules.renamed(own)
            wanted = self._wanted.get(name)
            ours = wanted is not None and _is_course(name, wanted) and _is_course(own, info)
            if ours and wanted == info and not offer.rules.excludes(own):
                found[name] = own
        return found

    # ---- what is allowed ----

    def _allows(self, kind: str, name: str, offer: Offer | None = None) -> bool:
        allowed = False
        for each in self._offers if offer is None else [offer]:
            for pattern in getattr(each, f"allow_{kind}"):
                if re.search(pattern, name):
                    self._used[kind].add(f"{each.where} {pattern}")
                    allowed = True
        return allowed

    def _find_useless(self) -> None:
        for kind, used in self._used.items():
            for offer in self._offers:
                for pattern in getattr(offer, f"allow_{kind}"):
                    if f"{offer.where} {pattern}" not in used:
                        self.report.useless.append(
                            f"{offer.where}.allow_{kind} {pattern!r}: nothing of this name is "
                            f"{kind.replace('mismatch', 'mismatched')}; leave it out"
                        )


def _of_role(tensors: Mapping[str, TensorInfo], role: str) -> list[str]:
    return [name for name, info in tensors.items() if info.role == role]


def _is_slot(name: str, info: TensorInfo) -> bool:
    return info.role == "optimizer" and not is_counter(name)


def _is_course(name: str, info: TensorInfo) -> bool:
    return info.role == "other" or is_counter(name)


def _mapped(names: Mapping[str, str], wanted: Collection[str]) -> dict[str, list[str]]:
    """By own name the variables that are usually called so, among those nothing is called like."""
    exact = set(names.values())
    by_usual: dict[str, list[str]] = {}
    for name in wanted:
        if name not in exact:
            by_usual.setdefault(usual(name), []).append(name)
    found = {own: by_usual.get(usual(name)) for own, name in names.items() if name not in wanted}
    return {own: targets for own, targets in found.items() if targets}


def _difference(has: TensorInfo, wants: TensorInfo) -> str | None:
    """Why a tensor does not fit a variable; None if it does."""
    if has.shape != wants.shape:
        told = f"{_shown(has)} in the source, {_shown(wants)} in the model"
        if sorted(has.shape) == sorted(wants.shape):
            return f"{told}: another layout; it is not transposed"
        return told
    if has.dtype != wants.dtype:
        return f"{_shown(has)} in the source, {_shown(wants)} in the model: another dtype"
    return None


def _shown(info: TensorInfo) -> str:
    return f"{info.dtype}{list(info.shape)}"
