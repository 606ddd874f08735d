"""The sums over all rounds, and how they are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

#: What must be 0, by the field of a verdict.
_MUST_BE_NONE = {
    "differs": "rounds whose weights, metrics or validations differ",
    "lost": "documents or files lost",
    "doubled": "documents doubled",
    "orphans": "orphans left after gc",
    "attempts": "attempts that cannot be",
    "running": "processes left running",
    "codes": "exit codes that are not documented",
    "shown": "commands that showed a traceback",
    "hung": "rounds that did not end",
    "error": "rounds that could not be judged",
}
#: Of these the rounds are counted, not what was found in them.
_BY_ROUND = {"differs", "hung", "error"}


class Tally:
    """Counts the outcomes of rounds.

    Attributes:
        rounds: how many there were.
        bad: the numbers of those that are not as they must be.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.bad: list[int] = []
        self._struck: Counter[str] = Counter()
        self._missed = 0
        self._codes: Counter[int] = Counter()
        self._wrong: Counter[str] = Counter()

    def add(self, number: int, outcome: Mapping[str, Any]) -> str:
        """Count a round; returns the line that tells of it."""
        self.rounds += 1
        self._struck.update(outcome["struck"])
        self._missed += len(outcome["missed"])
        self._codes.update(outcome["codes"])
        for key, found in outcome["wrong"].items():
            self._wrong[key] += 1 if key in _BY_ROUND else len(found)
        if outcome["wrong"]:
            self.bad.append(number)
        codes = " ".join(map(str, outcome["codes"]))
        how = "BAD" if outcome["wrong"] else "ok"
        missed = f"; missed {len(outcome['missed'])}" if outcome["missed"] else ""
        told = f"{outcome['plan']}; exits {codes}{missed}"
        return f"{number:4} {how:3} {outcome['seconds']:5.0f} s  {told}"

    def table(self) -> str:
        """All sums."""
        return "\n".join(
            [
                f"{self.rounds:6} rounds",
                f"{self._struck.total():6} faults",
                *(f"{count:10} {kind}" for kind, count in sorted(self._struck.items())),
                f"{self._missed:6} faults whose moment did not come",
                f"{self._codes.total():6} commands, by exit code: "
                + ", ".join(f"{count} x {code}" for code, count in sorted(self._codes.items())),
                *(f"{self._wrong[key]:6} {words}" for key, words in _MUST_BE_NONE.items()),
            ]
        )
