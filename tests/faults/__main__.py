"""Many rounds, some at once: python -m tests.faults --help."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.bench import ROOT
from tests.faults.plan import plan_of
from tests.faults.tally import Tally
from tests.faults.variants import VARIANTS

_PROGRAM = [sys.executable, "-m", "tests.faults.rounds"]


class Driver:
    """Carries out rounds in processes of their own, `jobs` at once.

    Args:
        folder: for what they leave; the folders of good rounds are removed.
        seed: of all plans.
        jobs: how many at once.
    """

    def __init__(self, folder: Path, seed: int, jobs: int):
        self._folder, self._seed, self._jobs = folder, seed, jobs
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def references(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Make the references of the variants of these rounds."""
        wanted = {VARIANTS.index(plan_of(self._seed, number).variant) for number in numbers}
        return self.outcomes([-index - 1 for index in sorted(wanted)])

    def outcomes(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and outcome of every round, in the order in which they end."""
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        total = 0
        for number in numbers:
            left.put(number)
            total += 1

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not self._stopped:
                    number = left.get_nowait()
                    done.put((number, self._outcome(number)))

        for _ in range(self._jobs):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(total):
            yield done.get()

    def _outcome(self, number: int) -> dict[str, Any]:
        folder = self.folder_of(number)
        words = [str(folder), str(self._seed), str(number), str(self._reference_of(number))]
        process = subprocess.Popen(
            [*_PROGRAM, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with self._lock:
            self._running.add(process)
        assert process.stdout is not None
        output = process.stdout.read()  # its input stays open: its end would end the round
        process.wait()
        with self._lock:
            self._running.discard(process)
        try:
            outcome: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            empty = {"plan": "?", "struck": [], "missed": [], "codes": [], "seconds": 0.0}
            outcome = {**empty, "wrong": {"error": [output]}}
        if not outcome["wrong"]:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _reference_of(self, number: int) -> Path:
        variant = plan_of(self._seed, number).variant if number >= 0 else VARIANTS[-number - 1]
        return self._folder / f"{variant.name}.json".replace(" ", "-")

    def folder_of(self, number: int) -> Path:
        """Where a round leaves what it has."""
        name = f"round-{number:03}" if number >= 0 else f"reference-{-number}"
        return self._folder / name

    def stop(self) -> None:
        """End the rounds that are on their way, and what they have started."""
        self._stopped = True
        with self._lock:
            running = list(self._running)
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)


def soak(driver: Driver, numbers: list[int], tally: Tally) -> None:
    """Carry out rounds, and tell of each when it has ended."""
    for number, outcome in driver.references(numbers):
        print(f"reference: {outcome['plan']}, {outcome['seconds']:.0f} s", flush=True)
        if outcome["wrong"]:
            raise SystemExit(f"no reference could be made: {_details(outcome)}")
        shutil.rmtree(driver.folder_of(number), ignore_errors=True)
    for number, outcome in driver.outcomes(numbers):
        print(tally.add(number, outcome), flush=True)
        if outcome["wrong"]:
            print(f"{_details(outcome)}\n       kept: {driver.folder_of(number)}", flush=True)


def _details(outcome: dict[str, Any], most: int = 5) -> str:
    lines = []
    for key, found in outcome["wrong"].items():
        lines += [f"       {key}: {item}" for item in found[:most]]
        lines += [f"       {key}: and {len(found) - most} more"] if len(found) > most else []
    return "\n".join(lines)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, help="decides all plans; none: a new one")
    parser.add_argument("--only", type=int, nargs="+", help="these rounds alone")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at once")
    words = parser.parse_args()
    seed = random.randrange(10**6) if words.seed is None else words.seed
    numbers = list(range(words.rounds)) if words.only is None else words.only
    folder = Path(tempfile.mkdtemp(prefix="pipefit-soak-"))
    print(f"seed {seed}, {words.jobs} rounds at once, in {folder}", flush=True)
    driver, tally = Driver(folder, seed, words.jobs), Tally()
    try:
        soak(driver, numbers, tally)
    except KeyboardInterrupt:
        print("\nstopped; so far:")
    finally:
        driver.stop()
    print(tally.table())
    for number in sorted(tally.bad):
        print(f"bad: make soak SEED={seed} ROUND={number}")
    if not tally.bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if tally.bad or tally.rounds < len(numbers) else 0


if __name__ == "__main__":
    sys.exit(main())
