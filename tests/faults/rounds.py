"""One round, in a process of its own: python -m tests.faults.rounds FOLDER SEED NUMBER REFERENCE.

FOLDER is new and keeps everything. REFERENCE is the file to compare with; with a NUMBER below 0 it
is made, of the variant -NUMBER - 1. The last line of the output is the outcome as JSON. When the
standard input ends, so does the round, with all that it has started.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.faults.bench import Bench
from tests.faults.judge import Verdict, findings, is_documented, judge
from tests.faults.kinds import KINDS
from tests.faults.moments import After, Watch
from tests.faults.plan import Fault, Plan, plan_of, reference_of
from tests.faults.variants import VARIANTS

_TICK = 0.02
#: A command that takes so much longer than that of the reference hangs, and a round is given up.
_HANGS, _HANGS_SECONDS = 5.0, 120.0
_ROUND_SECONDS = 600.0
#: How often the command may have to be typed, besides once for every fault.
_MORE_COMMANDS = 8


class Round:
    """Types the command until it exits with 0, and lets the faults strike at their moments.

        type
        until it has exited with 0:
            end the faults whose time is over
            strike, if the moment of the next fault has come
            type again, if it has exited

    Args:
        plan: what is to happen.
        bench: where.
        expected: seconds that the command takes when it is left alone.
        abandoned: set when nobody waits for the round any more.
    """

    def __init__(self, plan: Plan, bench: Bench, expected: float, abandoned: threading.Event):
        self.verdict = Verdict()
        self.struck: list[str] = []
        self.missed: list[str] = []
        self.codes: list[int] = []
        self._plan, self._bench, self._expected = plan, bench, expected
        self._abandoned = abandoned
        self._left = list(plan.faults)
        self._begin = self._typed = time.monotonic()
        self._watch: Watch | None = None
        self._due = 0.0
        self._ends: list[tuple[float, Fault]] = []
        self._story = (bench.folder / "story.txt").open("w", buffering=1)
        self._tell(str(plan))

    def run(self) -> None:
        """See the class."""
        self._type()
        self._arm()
        while not self._is_over():
            self._end_faults()
            self._strike_if_due()
            time.sleep(_TICK)
        self.missed += [fault.kind for fault in self._left]
        if self._watch:
            self._watch.release()
        self._bench.heal()

    def _type(self) -> None:
        self._bench.type()
        self._typed = time.monotonic()
        self._tell("typed")

    def _is_over(self) -> bool:
        if self._abandoned.is_set():
            raise SystemExit("nobody waits for this round")
        code = self._bench.command.poll()
        if code is None:
            longest = _HANGS * self._expected + _HANGS_SECONDS
            if time.monotonic() - self._typed < longest:
                return False
            self.verdict.hung.append(f"the command, typed {len(self.codes) + 1} times")
            return True
        self._note_end(code)
        if code == 0:
            return True
        late = time.monotonic() - self._begin > _ROUND_SECONDS
        if late or len(self.codes) >= len(self._plan.faults) + _MORE_COMMANDS:
            self.verdict.hung.append(f"typed in vain: exit codes {self.codes}")
            return True
        self._type()
        self._set_due()
        return False

    def _note_end(self, code: int) -> None:
        self._tell(f"exit code {code}")
        self.codes.append(code)
        if not is_documented(code, self._bench.sent):
            self.verdict.codes.append(str(code))
        if "Traceback (most recent call last)" in self._bench.printed:
            self.verdict.shown.append(f"by command {len(self.codes)}")

    def _arm(self) -> None:
        """Wait for the moment of the next fault."""
        self._watch = self._bench.proxy.watch = None
        if self._left and not isinstance(self._left[0].moment, After):
            self._watch = self._bench.proxy.watch = Watch(self._left[0].moment)
        self._set_due()

    def _set_due(self) -> None:
        if self._left and isinstance(moment := self._left[0].moment, After):
            now = time.monotonic()
            rest = max(1.0, self._typed + self._expected - now)
            self._due = now + moment.share * rest

    def _strike_if_due(self) -> None:
        if not self._left:
            return
        fault = self._left[0]
        due = self._watch.reached.is_set() if self._watch else time.monotonic() >= self._due
        kind = KINDS[fault.kind]
        if not due or not self._bench.is_there(kind.needs):
            return
        self._tell(f"{fault}")
        kind.strike(self._bench, fault.amount)
        self.struck.append(fault.kind)
        if kind.recover:
            self._ends.append((time.monotonic() + fault.seconds, fault))
        if self._watch:
            self._watch.release()
        del self._left[0]
        self._arm()

    def _end_faults(self) -> None:
        for end in list(self._ends):
            due, fault = end
            recover = KINDS[fault.kind].recover
            if time.monotonic() >= due and recover:
                recover(self._bench, fault.amount)
                self._ends.remove(end)
                self._tell(f"end of: {fault.kind}")

    def _tell(self, words: str) -> None:
        self._story.write(f"{time.monotonic() - self._begin:7.2f} {words}\n")


def carry_out(
    folder: Path, plan: Plan, reference: Path, abandoned: threading.Event
) -> dict[str, Any]:
    """Carry out a round and judge it; the outcome as plain values."""
    known = json.loads(reference.read_text()) if plan.faults else {"seconds": 0.0}
    folder.mkdir(parents=True)
    begin = time.monotonic()
    with Bench(folder, plan.variant) as bench:
        this = Round(plan, bench, known["seconds"], abandoned)
        typed = time.monotonic()
        this.run()
        seconds = time.monotonic() - typed
        if not plan.faults:
            reference.write_text(json.dumps({**findings(bench, plan.variant), "seconds": seconds}))
        elif not this.verdict.hung:
            judge(bench, plan.variant, known, this.verdict)
    return {
        "plan": str(plan),
        "struck": this.struck,
        "missed": this.missed,
        "codes": this.codes,
        "wrong": this.verdict.wrong,
        "seconds": round(time.monotonic() - begin, 1),
    }


def main(folder: str, seed: str, number: str, reference: str) -> None:
    """See the module."""
    abandoned = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        abandoned.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=listen, daemon=True).start()
    which = int(number)
    plan = plan_of(int(seed), which) if which >= 0 else reference_of(VARIANTS[-which - 1])
    try:
        outcome = carry_out(Path(folder), plan, Path(reference), abandoned)
    except Exception:
        # Ours or not: a round that cannot be judged is a bad one.
        told = traceback.format_exc()
        outcome = {"plan": str(plan), "struck": [], "missed": [], "codes": [], "seconds": 0.0}
        outcome["wrong"] = {"error": [told]}
    (Path(folder) / "outcome.json").write_text(json.dumps(outcome, indent=1))
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
