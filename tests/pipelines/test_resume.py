"""A run that is killed anywhere ends bit for bit where it would have ended."""

import random
import signal
import sys
import time

import pytest

from tests.pipelines.conftest import LUIGI, kill, same_results, worker_of

# Dropout, batch normalisation, momentum, a schedule, clipping, best: all that has state.
NET = "configs/digits.toml"
STEPS = 600
# Sums are cut up by the number of threads, which is by default that of the cores.
ON_ONE_CORE = (
    sys.executable,
    "-c",
    "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    "os.execv(sys.argv[1], sys.argv[1:])",
    LUIGI,
)
SHORT = {"train.steps": STEPS, "save.checkpoint_every": 200, "save.recent_every": 25}


@pytest.mark.parametrize("devices", [1, 2])
def test_killed_trainer_luigi_and_both_then_bit_equal_to_an_uninterrupted_run(job, devices):
    changes = {**SHORT, "model.devices": devices}
    job(NET, name="whole", **changes).run("Train")
    killed = job(NET, name="killed", **changes)
    rng = random.Random(devices)

    for step, victims in ((25, "trainer"), (150, "luigi"), (300, "both")):
        process = killed.start("Train")
        worker = worker_of(process)
        killed.wait_for_step(step, process)
        time.sleep(rng.uniform(0, 0.1))
        if victims == "trainer":
            kill(worker)
            assert process.wait(timeout=60) == 30
        elif victims == "luigi":
            kill(process)
        else:
            kill(process, worker)
        process.stdout.close()
    output = killed.run("Train")

    assert "continuing after step" in output
    same_results(killed.reader, killed.store.run("whole", "jobs"))
    states = [attempt.state for attempt in killed.reader.attempts()]
    assert states == ["INTERRUPTED", "INTERRUPTED", "INTERRUPTED", "FINISHED"]


def test_more_steps_continue_a_finished_run_even_with_fewer_cores(job):
    job(NET, name="whole", **{**SHORT, "train.steps": 300}).run("Train")
    longer = job(NET, name="longer", **SHORT)
    longer.run("Train", **{"train.steps": 150})
    longer.luigi = ON_ONE_CORE
    longer.run("Train", **{"train.steps": 300})
    same_results(longer.reader, longer.store.run("whole", "jobs"))
    assert [a.start for a in longer.reader.attempts()] == [-1, 150]


def test_saved_on_two_devices_continues_on_one_and_the_other_way_round(job):
    moved = job(NET, **{**SHORT, "save.validate_every": 0})
    moved.changes.pop("save.best", None)
    for steps, devices in ((50, 2), (100, 1), (150, 2)):
        moved.run("Train", **{"train.steps": steps, "model.devices": devices})
    assert moved.reader.metrics().index.tolist() == list(range(1, 151))
    assert [a.start for a in moved.reader.attempts()] == [-1, 50, 100]


def test_sigterm_checkpoints_the_current_step_and_exits_75(job):
    whole = job(name="whole", **{"train.steps": 3000})
    whole.run("Train")
    stopped = job(name="stopped", **{"train.steps": 3000})
    process = stopped.start("Train")
    stopped.wait_for_step(100, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    status = stopped.reader.status()
    assert status.state == "INTERRUPTED" and "as asked" in status.reason
    assert stopped.reader.metrics().index.tolist() == list(range(1, status.step + 1))
    stopped.run("Train")
    same_results(stopped.reader, stopped.store.run("whole", "jobs"))
