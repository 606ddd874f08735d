"""What was, or would be, loaded, and what not: see `Report`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipefit.errors import LoadError

#: Lines of one kind in the message of an error; a report has them all.
_IN_ERROR = 20


@dataclass(frozen=True)
class Matched:
    """A variable that is loaded.

    Attributes:
        name: of the variable, or of the part of the training's state.
        source: number of the source.
        own: what the source calls it.
        how: "exact" if the source calls it so, "renamed" by rules of the user, "mapped" by the
            default mapping between TensorFlow 1 and Keras 3, or "slot" of a variable.
        converted: the dtype that it had, if it was allowed to be another one.
    """

    name: str
    source: int
    own: str
    how: str
    converted: str | None = None


@dataclass(frozen=True)
class Missing:
    """A variable that no source has; `allowed` ones stay as they are initialised."""

    name: str
    allowed: bool
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unexpected:
    """A tensor that is none of the model's; `name` after renaming."""

    source: int
    own: str
    name: str
    allowed: bool


@dataclass(frozen=True)
class Mismatched:
    """A tensor that does not fit; the variable of an `allowed` one stays as it is initialised."""

    name: str
    source: int
    own: str
    reason: str
    allowed: bool


@dataclass(frozen=True)
class Doubled:
    """A variable that several tensors would be loaded into: `owns` of `sources`."""

    name: str
    sources: tuple[int, ...]
    owns: tuple[str, ...]


@dataclass
class Section:
    """What came of one kind of variables.

    Attributes:
        overridden: by the `order` of the tables: source and own name of what was not taken.
    """

    matched: list[Matched] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    unexpected: list[Unexpected] = field(default_factory=list)
    mismatched: list[Mismatched] = field(default_factory=list)
    doubled: list[Doubled] = field(default_factory=list)
    overridden: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class SourceFacts:
    """A source, for people: where it was, at which step, and what was asked of it."""

    label: str
    step: int | None
    digest: str | None
    asked: Mapping[str, Any]


@dataclass
class Report:
    """What was, or would be, loaded.

    Attributes:
        sources: numbered from 0 in the order of the tables.
        model: the variables of the model.
        optimizer: slots, averages and loss scale, if they were asked for.
        course: step, position, counters and seeds, if they were asked for.
        ambiguous: source and own name of a tensor, and the variables that usually are called so.
        left_out: source and own name of what include and exclude leave out.
        not_asked: of every source, how many parts of a training's state nobody asked for.
        useless: rules that allow something which is not there.
        shapes: by name of a variable its dtype and shape.
    """

    sources: list[SourceFacts]
    model: Section = field(default_factory=Section)
    optimizer: Section = field(default_factory=Section)
    course: list[Matched] = field(default_factory=list)
    ambiguous: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    left_out: list[tuple[int, str]] = field(default_factory=list)
    not_asked: list[int] = field(default_factory=list)
    useless: list[str] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)

    @property
    def loads(self) -> list[Matched]:
        """All that is to be read."""
        return [*self.model.matched, *self.optimizer.matched, *self.course]

    def check(self, what: str = "[[load]]") -> None:
        """Refuse what does not fit.

        Args:
            what: is being loaded, for the message.

        Raises:
            LoadError: listing everything that is missing, unexpected or different.
        """
        found = list(self._problems())
        if not found:
            self._refuse_idle(what)
            return
        counts: dict[str, int] = {}
        for kind, _ in found:
            counts[kind] = counts.get(kind, 0) + 1
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        lines = [line for kind in counts for line in _of_kind(kind, found)]
        raise LoadError(
            f"{what} does not fit: {told}; rename or exclude by name, or allow by name "
            f"(allow_missing, allow_unexpected, allow_mismatch)\n" + "\n".join(lines)
        )

    def _refuse_idle(self, what: str) -> None:
        busy = {match.source for match in self.loads}
        for section in (self.model, self.optimizer):
            busy |= {source for source, _ in section.overridden}
        for number, source in enumerate(self.sources):
            if number not in busy:
                raise LoadError(
                    f"{what} takes nothing from {source.label}, as all of it is left out or "
                    f"allowed not to fit; leave its table out, or correct its rules"
                )

    def _problems(self) -> Iterator[tuple[str, str]]:
        for rule in self.useless:
            yield "without effect", rule
        for ambiguous in self.ambiguous:
            yield "ambiguous", self._ambiguous(*ambiguous)
        for title, section in (("", self.model), ("optimizer: ", self.optimizer)):
            for doubled in section.doubled:
                yield "claimed twice", f"{title}{self._twice(doubled)}"
            for missing in section.missing:
                if not missing.allowed:
                    yield "missing", f"{title}{_missing_text(missing)}"
            for mismatched in section.mismatched:
                if not mismatched.allowed:
                    yield "mismatched", f"{title}{self._mismatch(mismatched)}"
            for unexpected in section.unexpected:
                if not unexpected.allowed:
                    yield "unexpected", f"{title}{self._unexpected(unexpected)}"

    # ---- as text ----

    def text(self) -> str:
        """For people: all of it, the model's variables first."""
        lines = []
        for number, source in enumerate(self.sources):
            at = "" if source.step is None else f", step {source.step}"
            lines.append(f"source {number}: {source.label}{at}")
            if source.digest:
                lines.append(f"  sha256 {source.digest}")
            lines += [f"  {key} = {value!r}" for key, value in source.asked.items()]
        lines += self._section("the model", self.model)
        if any(vars(self.optimizer).values()):
            lines += self._section("the optimizers", self.optimizer)
        if self.course:
            lines += ["", f"step, position, counters, seeds: {len(self.course)} taken along"]
            lines += [f"  {self._match(match)}" for match in self.course]
        lines += self._rest()
        return "\n".join(lines) + "\n"

    def _section(self, title: str, section: Section) -> list[str]:
        kinds = {
            "matched": [self._match(m) for m in section.matched],
            "missing": [f"{_missing_text(m)}{_allowed(m.allowed)}" for m in section.missing],
            "mismatched": [f"{self._mismatch(m)}{_allowed(m.allowed)}" for m in section.mismatched],
            "unexpected": [f"{self._unexpected(u)}{_left(u.allowed)}" for u in section.unexpected],
            "claimed twice": [self._twice(d) for d in section.doubled],
            "not taken because of order": [f"{o} of source {n}" for n, o in section.overridden],
        }
        counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items() if found)
        lines = ["", f"{title}: {counts or 'nothing'}"]
        for kind, found in kinds.items():
            lines += [f"  {kind}: {line}" for line in found]
        return lines

    def _rest(self) -> list[str]:
        lines = [f"  ambiguous: {self._ambiguous(*found)}" for found in self.ambiguous]
        if self.left_out:
            lines += ["", "left out by include and exclude:"]
            lines += [f"  {own} of source {number}" for number, own in self.left_out]
        for number, count in enumerate(self.not_asked):
            if count:
                lines += [
                    "",
                    f"source {number} also has {count} tensors of the training's state that "
                    "nobody asked for (optimizer = true, step = true)",
                ]
        return lines

    def _match(self, match: Matched) -> str:
        source = f" (source {match.source})" if len(self.sources) > 1 else ""
        converted = f", converted from {match.converted}" if match.converted else ""
        how = "" if match.how in ("exact", "renamed", "slot") else f", {match.how} by default"
        own = "" if match.own == match.name else f" <- {match.own}"
        return f"{match.name} {self.shapes.get(match.name, '')}{own}{source}{how}{converted}"

    def _unexpected(self, found: Unexpected) -> str:
        renamed = "" if found.name == found.own else f" (as {found.name})"
        return f"{found.own}{renamed} of {self.sources[found.source].label}"

    def _mismatch(self, found: Mismatched) -> str:
        own = "" if found.own == found.name else f" <- {found.own}"
        return f"{found.name}{own}: {found.reason}"

    def _ambiguous(self, number: int, own: str, names: Sequence[str]) -> str:
        return f"{own} of {self.sources[number].label} may be {' or '.join(names)}; rename it"

    def _twice(self, found: Doubled) -> str:
        pairs = zip(found.owns, found.sources, strict=True)
        claims = " and ".join(f"{own} of {self.sources[number].label}" for own, number in pairs)
        several = len(set(found.sources)) > 1
        hint = "; exclude one, or give both an order" if several else "; exclude or rename one"
        return f"{found.name} by {claims}{hint}"

    # ---- as data ----

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "sources": [asdict(source) for source in self.sources],
            "model": asdict(self.model),
            "optimizer": asdict(self.optimizer),
            "course": [asdict(match) for match in self.course],
            "left_out": [list(pair) for pair in self.left_out],
            "not_asked": self.not_asked,
        }

    def summary(self) -> dict[str, Any]:
        """A few plain values, for the history of a run."""
        steps = [source.step for source in self.sources if source.step is not None]
        return {
            "from": [source.label for source in self.sources],
            **({"steps": steps} if steps else {}),
            "loaded": len(self.model.matched),
            "fresh": len(self.model.missing) + len(self.model.mismatched),
            "slots": len(self.optimizer.matched),
        }


def _of_kind(kind: str, found: Sequence[tuple[str, str]]) -> Iterable[str]:
    lines = [text for known, text in found if known == kind]
    yield from (f"  {kind}: {line}" for line in lines[:_IN_ERROR])
    if len(lines) > _IN_ERROR:
        yield f"  {kind}: and {len(lines) - _IN_ERROR} more"


def _missing_text(missing: Missing) -> str:
    close = f"; the nearest: {', '.join(missing.nearest)}" if missing.nearest else ""
    return f"{missing.name}{close}"


def _allowed(allowed: bool) -> str:
    return " (allowed: stays as it is initialised)" if allowed else ""


def _left(allowed: bool) -> str:
    return " (allowed: not used)" if allowed else ""
