"""`pipefit import-tfutils`, as it is typed."""

import re
import subprocess
import sys

import pytest

from pipefit.errors import IdentityMismatch
from pipefit.records import RunOrder
from pipefit.store import this_process

PIPEFIT = [sys.executable, "-c", "from pipefit.cli import main; main(prog_name='pipefit')"]


def pipefit(environment, *words):
    return subprocess.run(
        [*PIPEFIT, *words], env=environment, capture_output=True, text=True, check=False
    )


def test_what_is_typed_and_what_is_told(old, store, environment):
    """The whole way: list, import, look, and be refused to train on it."""
    secret = old.uri.partition("@")[0].rpartition(":")[2]
    environment = {**environment, "OLD": old.uri}
    listed = pipefit(environment, "import-tfutils", "${OLD}", "--dry-run")
    assert listed.returncode == 0, listed.stderr
    assert "digits/training0 would be imported" in listed.stdout
    assert store.collections() == []

    one = ["--exp-id", "training1", "--name", "old/one"]
    done = pipefit(environment, "import-tfutils", "${OLD}", *one)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "digits/old/one imported, of experiment training1",
        "  training     500 steps",
        "  checkpoints  5, of steps 1100 1200 1300 1400 1500",
        "  validations  25",
    ]
    # What TensorFlow itself says when it starts differs from machine to machine.
    ours = [
        li for li in done.stderr.splitlines() if not re.match(r"[IW]\d{4} |WARNING: All log", li)
    ]
    assert ours == []

    shown = pipefit(environment, "show", "old/one")
    assert "FINISHED" in shown.stdout and "1500/1500 steps" in shown.stdout
    assert "continued: from tfutils, exp_id training0, step 1000" in shown.stdout
    refused = pipefit(environment, "show", "old/one", "--toml")
    assert "was imported from tfutils and has no experiment file" in refused.stderr
    order = RunOrder("digits", "old/one", "1", {"seed": 0}, "{}", 2000, allow_change=["tfutils"])
    with pytest.raises(IdentityMismatch, match=r"imported from tfutils.*\[\[load\]\] from"):
        store.acquire(order, this_process(), ttl=60)

    nothing = pipefit(environment, "import-tfutils", "${OLD}", "--exp-id", "training7")
    assert nothing.returncode == 1 and "its exp_ids are: training0, training1" in nothing.stderr
    for told in (listed, done, shown, refused, nothing):
        assert secret not in told.stdout + told.stderr
