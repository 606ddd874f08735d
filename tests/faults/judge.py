"""What must be so once the command has exited with 0; see `judge`."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, field
from typing import Any

from pipefit.errors import EXIT_INTERRUPTED
from pipefit.records import NOTHING, Attempt, RunState
from tests.faults.bench import Bench
from tests.faults.books import Books, lost
from tests.faults.results import differences, results_of
from tests.faults.variants import Variant

COLLECTION = "faults"

#: So long may take what was cut off from its scheduler to notice it and end, seconds.
_END_SECONDS = 30.0


@dataclass
class Verdict:
    """What is wrong after a round; all empty if nothing is.

    Attributes:
        differs: results that are not those of the reference.
        lost: documents and files that are missing.
        doubled: documents that are there more often than once.
        orphans: files, bytes and drafts left after the removal of garbage, and what was spooled.
        attempts: what cannot be so about the attempts.
        running: processes that go on.
        codes: exit codes that are not documented.
        shown: tracebacks that people were shown.
        hung: what did not end.
    """

    differs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> dict[str, list[str]]:
        """What is not empty."""
        return {key: found for key, found in asdict(self).items() if found}


def is_documented(code: int, sent: set[signal.Signals]) -> bool:
    """Whether a command that was sent these signals may end so (docs/resume.md).

    40 is for experiments that are wrong, and for what nobody has thought of.
    """
    codes = {0, 30, 35}
    if sent & {signal.SIGTERM, signal.SIGINT}:
        codes.add(EXIT_INTERRUPTED)
    if signal.SIGKILL in sent:
        codes.add(-signal.SIGKILL)
    return code in codes


def findings(bench: Bench, variant: Variant) -> dict[str, Any]:
    """The results of a round, and how many records of which kind count."""
    return {
        "results": {name: results_of(bench.store, COLLECTION, name) for name in variant.runs},
        "counting": dict(Books(bench.uri, COLLECTION).counting),
    }


def judge(bench: Bench, variant: Variant, reference: dict[str, Any], verdict: Verdict) -> None:
    """Compare what is stored with the reference, remove the garbage, and compare again."""
    verdict.running = bench.left_running(_END_SECONDS)
    _compare(bench, variant, reference, verdict)
    for name in variant.runs:
        attempts = bench.store.run(name, COLLECTION).attempts()
        verdict.attempts += [f"{name}: {wrong}" for wrong in _wrong_with(attempts)]
    bench.store.garbage(remove=True, grace=0.0)
    books = Books(bench.uri, COLLECTION)
    left = [str(item) for item in bench.store.garbage(grace=0.0)]
    drafts = [f"{books.drafts} drafts"] if books.drafts else []
    verdict.orphans = [*books.orphans, *left, *drafts, *bench.spooled()]
    _compare(bench, variant, reference, verdict, after=" (after gc)")


def _compare(
    bench: Bench, variant: Variant, reference: dict[str, Any], verdict: Verdict, after: str = ""
) -> None:
    books, found = Books(bench.uri, COLLECTION), findings(bench, variant)
    verdict.lost += [name + after for name in lost(found["counting"], reference["counting"])]
    verdict.lost += [f"file {key}{after}" for key in books.missing]
    verdict.doubled += [name + after for name in lost(reference["counting"], found["counting"])]
    verdict.differs += [d + after for d in differences(found["results"], reference["results"])]


def _wrong_with(attempts: list[Attempt]) -> list[str]:
    wrong = []
    fences = [attempt.fence for attempt in attempts]
    if fences != list(range(1, len(fences) + 1)):
        wrong.append(f"fences {fences}")
    begun = [attempt.start for attempt in attempts if attempt.start != NOTHING]
    if begun != sorted(begun):
        wrong.append(f"starts {begun} go back")
    early = [str(attempt.state) for attempt in attempts[:-1]]
    if not set(early) <= {RunState.INTERRUPTED, RunState.FAILED}:
        wrong.append(f"states {early} before the last")
    # Whoever was killed between the last commit and the farewell is INTERRUPTED, its run FINISHED.
    if attempts[-1].state not in (RunState.FINISHED, RunState.INTERRUPTED):
        wrong.append(f"last state {attempts[-1].state}")
    return wrong
