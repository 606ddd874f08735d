"""What is read: the newest that is whole, whatever was uploaded when, removed or damaged."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from actors import COLLECTION, ELSEWHERE, PERMANENT, damage, reader, started, state

from pipefit.errors import CheckpointCorrupt
from pipefit.records import RunState

#: Reads the newest checkpoint, or that of a step, and stops once in the middle of its bytes.
SLOWLY = f"""
import hashlib, sys
import numpy as np
from pipefit.store import open_store
uri, step = sys.argv[1], int(sys.argv[2]) or None
store = open_store(uri, cache=False) if uri.startswith("mongodb") else open_store(uri)
run = store.run("a", {COLLECTION!r})
real, pieces = hashlib.sha256, []
class Slow:
    def __init__(self, data=b""):
        self.real = real(data)
    def update(self, data):
        self.real.update(data)
        pieces.append(len(data))
        if len(pieces) == 1:
            print("reading", flush=True)
            sys.stdin.readline()
    def __getattr__(self, name):
        return getattr(self.real, name)
hashlib.sha256 = Slow
try:
    weights = run.weights(step)
    print(sorted({{float(v) for v in np.unique(weights["w"])}}), int(weights["step"]))
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def large(value):
    """A state of 10 MB, in more than one piece and chunk, all of one value."""
    return {"w": np.full(2_500_000, value, np.float32), "step": np.asarray(int(value))}


class ReadingContract:
    def test_the_newest_is_by_step_of_the_current_attempt_and_not_by_upload(self, store):
        first = started(store, owner=ELSEWHERE)
        for step in (10, 20, 30):
            first.commit(step, state(step), PERMANENT)
        first.end(RunState.INTERRUPTED, None, 30, "")
        second = started(store, start=10)
        second.commit(10, state(-10.0), PERMANENT)  # uploaded after those of steps 20 and 30

        assert reader(store).checkpoint().step == 10
        assert reader(store).weights()["step"] == -10
        second.commit(20, state(-20.0), PERMANENT)
        assert reader(store).weights()["step"] == -20
        assert [info.step for info in second.checkpoints()] == [20, 10]

    def test_a_damaged_newest_one_is_named_and_the_one_before_is_read(self, store, caplog):
        writer = started(store)
        infos = [writer.commit(step, state(step), PERMANENT) for step in (10, 20, 30)]
        damage(store, infos[2])
        damage(store, infos[1])

        with caplog.at_level(logging.WARNING):
            assert reader(store).weights()["step"] == 10
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2
        for step, line in zip((30, 20), told, strict=True):
            assert line.startswith(f"the checkpoint of step {step} of run 'a' is damaged: ")
            assert line.endswith("; falling back to the one before")

    def test_strictly_read_a_damaged_newest_one_is_an_error_as_is_one_that_was_asked_for(
        self, store, caplog
    ):
        writer = started(store)
        writer.commit(10, state(10.0), PERMANENT)
        damage(store, writer.commit(20, state(20.0), PERMANENT))

        message = "the checkpoint of step 20 of run 'a' is damaged"
        with pytest.raises(CheckpointCorrupt, match=message):
            reader(store).weights(strict=True)
        with pytest.raises(CheckpointCorrupt, match=message):
            reader(store).weights(20)
        assert not caplog.records
        assert reader(store).weights(10, strict=True)["step"] == 10

    def test_if_none_is_whole_that_is_an_error(self, store):
        writer = started(store)
        damage(store, writer.commit(10, state(10.0), PERMANENT))
        with pytest.raises(CheckpointCorrupt, match="the checkpoint of step 10 of run 'a' is dam"):
            reader(store).weights()
        damage(store, writer.commit(20, state(20.0), PERMANENT))
        with pytest.raises(CheckpointCorrupt, match="run 'a': none of its 2 checkpoints can be"):
            reader(store).weights()

    @pytest.mark.parametrize("step", [0, 10])
    def test_what_is_removed_while_another_process_reads_it_slowly_is_never_mixed(
        self, store, address, step
    ):
        writer = started(store)
        writer.commit(10, large(10.0), frozenset({"recent"}))
        command = [sys.executable, "-c", SLOWLY, address, str(step)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as child:
            assert child.stdout.readline() == "reading\n"
            writer.commit(20, large(20.0), frozenset({"recent"}))
            assert [info.step for info in writer.retain({})] == [10]
            told, _ = child.communicate("go on\n", timeout=60)

        whole = ["[10.0] 10\n"] + ["[20.0] 20\n"] * (step == 0)
        gone = "NotFound: run 'a' has no committed checkpoint of step 10; its steps are: 20\n"
        assert told in whole or (step and told == gone)
