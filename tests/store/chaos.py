"""Processes that want the same runs, killed and stopped at random moments: what may never happen.

python tests/store/chaos.py SECONDS [FOLDER] does it for longer than the tests do.
"""

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

from actors import COLLECTION, ELSEWHERE, PERMANENT, acquire, block, reader, state

from pipefit.errors import LeaseLost, NotFound, RunOwned
from pipefit.records import RunState, fence_at
from pipefit.store import open_store, this_process

NAMES = ("a", "a/b")
TTL = 0.3


class Chaos:
    """Some processes that train and one that reads, in a store of their own.

    What a process has been told to be done it notes, durably as far as the process is concerned, in
    a file of its own.
    """

    def __init__(self, folder, seed=0):
        self.store = open_store((folder / "results").as_uri())
        self.told = folder / "told"
        self.told.mkdir()
        self.kills = self.stops = 0
        self.failed = []
        self._rng = random.Random(seed)
        self._seeds = itertools.count(seed + 1)
        self._alive = {}  # what they do, by pid
        self._stopped = {}  # until when, by pid

    def run(self, seconds, processes=4):
        for _ in range(processes):
            self._start(self._train)
        self._start(self._read)
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                time.sleep(self._rng.random() * 0.15)
                self._continue()
                self._replace()
                self._strike()
        finally:
            for pid in self._alive:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _start(self, deed):
        seed = next(self._seeds)
        pid = os.fork()
        if pid == 0:
            try:
                deed(seed)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        self._alive[pid] = deed

    def _continue(self):
        for pid, until in list(self._stopped.items()):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGCONT)
                del self._stopped[pid]

    def _replace(self):
        """Start others for those that have ended by themselves, which none should."""
        for pid in list(self._alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                deed = self._alive.pop(pid)
                self._stopped.pop(pid, None)
                self.failed.append((deed.__name__, os.waitstatus_to_exitcode(status)))
                self._start(deed)

    def _strike(self):
        victims = [p for p, d in self._alive.items() if d == self._train and p not in self._stopped]
        if not victims:
            return
        pid = self._rng.choice(victims)
        if self._rng.random() < 0.4:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._start(self._alive.pop(pid))
            self.kills += 1
        else:
            os.kill(pid, signal.SIGSTOP)
            self._stopped[pid] = time.monotonic() + self._rng.random() * 3 * TTL
            self.stops += 1

    def _train(self, seed):
        rng = random.Random(seed)
        with (self.told / str(seed)).open("a", buffering=1) as file:
            while True:
                name = rng.choice(NAMES)
                try:
                    owner = rng.choice([ELSEWHERE, this_process()])
                    writer = acquire(self.store, name, owner=owner, ttl=TTL)
                except RunOwned:
                    time.sleep(rng.random() * 0.05)
                    continue
                with contextlib.suppress(LeaseLost):
                    self._attempt(writer, rng, partial(self._note, file, name, writer.fence))

    @staticmethod
    def _note(file, name, fence, what, step):
        file.write(json.dumps([what, name, fence, step]) + "\n")

    @staticmethod
    def _attempt(writer, rng, note):
        committed = writer.checkpoints()
        start = step = committed[0].step if committed else -1
        writer.begin(start)
        note("begun", start)
        for _ in range(rng.randrange(1, 15)):
            first, step = step + 1, step + rng.randrange(1, 5)
            writer.write_metrics(block(first, step, value=float(writer.fence)))
            if rng.random() < 0.5:
                writer.note({"event": step})
            if rng.random() < 0.3:
                writer.describe({"step": step}, {"text": str(step).encode()})
            if rng.random() < 0.6:
                writer.commit(step, state(float(writer.fence)), PERMANENT)
                note("committed", step)
            if rng.random() < 0.2:
                writer.retain({info.id: info.kinds for info in writer.checkpoints()[:3]})
        if rng.random() < 0.5:
            writer.end(RunState.INTERRUPTED, None, step, "the end")

    def _read(self, seed):
        while True:
            for name in NAMES:
                with contextlib.suppress(NotFound):
                    run = reader(self.store, name)
                    run.document(), run.attempts(), run.metrics(), run.checkpoints()
                    run.artifact("text"), run.weights()

    def check(self):
        """Assert what must be so whatever happened."""
        assert self.failed == [], "whoever is succeeded is told so, and nothing else happens"
        texts = [path.read_text() for path in self.told.iterdir()]
        told = [json.loads(line) for text in texts for line in text.splitlines()]
        for name in NAMES:
            self._check(name, [(what, fence, step) for what, of, fence, step in told if of == name])

    def _check(self, name, told):
        begun = [(fence, step) for what, fence, step in told if what == "begun"]
        assert len(dict(begun)) == len(begun), "no fence is given twice"
        committed = collections.defaultdict(lambda: -1)
        for what, fence, step in told:
            if what == "committed":
                committed[fence] = max(committed[fence], step)
        for fence, start in begun:
            before = max((step for f, step in committed.items() if f < fence), default=-1)
            assert start >= before, f"attempt {fence} lost the committed step {before}"
        run = reader(self.store, name)
        assert run.status().step >= max(committed.values())
        table, line = run.metrics(), run.document()["line"]
        assert table.index.tolist() == list(range(len(table)))
        assert [fence_at(line, step) for step in table.index] == table["loss"].tolist()
        assert int(run.weights()["step"]) == fence_at(line, run.status().step)


def main(seconds, folder=None):
    with tempfile.TemporaryDirectory(dir=folder) as made:
        chaos = Chaos(Path(made))
        chaos.run(float(seconds))
        chaos.check()
        runs = chaos.store.runs(COLLECTION)[["name", "attempts", "step"]].values.tolist()
        print(f"{chaos.kills} kills, {chaos.stops} stops, nothing lost; {runs}")


if __name__ == "__main__":
    main(*sys.argv[1:])
