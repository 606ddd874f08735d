"""A run that is killed anywhere ends bit for bit where it would have ended."""

import random
import signal
import sys
import time

from tests.pipelines.conftest import LUIGI, kill, same_results, worker_of

# Dropout, batch normalisation, momentum, a schedule, clipping, best: all that has state.
NET = "configs/digits.toml"
STEPS = 400
# Sums are cut up by the number of threads, which is by default that of the cores.
ON_ONE_CORE = (
    sys.executable,
    "-c",
    "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
    "os.execv(sys.argv[1], sys.argv[1:])",
    LUIGI,
)
SHORT = {"train.steps": STEPS, "save.validate_every": 100, "save.recent_every": 25}


def test_more_steps_after_kills_and_sigterm_with_fewer_cores_give_the_bits_of_one_run(job):
    """What else strikes a job, on one and two devices, is in tests/faults."""
    job(NET, name="whole", **SHORT).run("Train")
    struck = job(NET, name="struck", **SHORT)
    struck.run("Train", **{"train.steps": 50})
    rng = random.Random(1)

    for step, victims in ((75, "luigi"), (150, "both")):
        process = struck.start("Train")
        worker = worker_of(process)
        struck.wait_for_step(step, process)
        time.sleep(rng.uniform(0, 0.1))
        kill(*([process] if victims == "luigi" else [process, worker]))
        process.stdout.close()

    process = struck.start("Train")
    struck.wait_for_step(225, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert "continuing after step" in output
    status = struck.reader.status()
    assert status.state == "INTERRUPTED" and "as asked" in status.reason
    assert struck.reader.metrics().index.tolist() == list(range(1, status.step + 1))

    struck.luigi = ON_ONE_CORE
    struck.run("Train")
    same_results(struck.reader, struck.store.run("whole", "jobs"))
    attempts = struck.reader.attempts()
    assert [a.state for a in attempts] == ["FINISHED", *["INTERRUPTED"] * 3, "FINISHED"]
    assert [attempts[i].start for i in (0, 1, 4)] == [-1, 50, status.step]


def test_saved_on_two_devices_continues_on_one_and_the_other_way_round(job):
    moved = job(**{"save.validate_every": 0})
    for steps, devices in ((20, 2), (40, 1), (60, 2)):
        moved.run("Train", **{"train.steps": steps, "model.devices": devices})
    assert moved.reader.metrics().index.tolist() == list(range(1, 61))
    assert [a.start for a in moved.reader.attempts()] == [-1, 20, 40]
