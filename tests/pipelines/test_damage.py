"""Damaged checkpoints, and executors: the numbers stay what they would have been."""

from types import SimpleNamespace

import pytest

from tests.pipelines.conftest import same_results

LONG = {"train.steps": 400}


@pytest.fixture(scope="module")
def whole(shared_job):
    """400 steps in one go."""
    job = shared_job(name="whole", **LONG)
    job.run("Train")
    return job


def damage(job, steps):
    """Flip one bit of the stored checkpoints of these steps, behind everybody's back."""
    checkpoints = job.reader.checkpoints()
    chunks = job.store.connection.database["jobs.checkpoints.chunks"]
    for identifier in checkpoints.loc[checkpoints["step"].isin(steps), "id"]:
        chunk = next(c for c in chunks.find({"n": 0}) if str(c["files_id"]) == identifier)
        data = bytearray(chunk["data"])
        data[-100] ^= 1
        chunks.update_one({"_id": chunk["_id"]}, {"$set": {"data": bytes(data)}})


@pytest.fixture(scope="module")
def continued(shared_job):
    """A job of 300 steps whose newest checkpoint was damaged, and what it then printed."""
    job = shared_job(name="damaged", **LONG)
    job.run("Train", **{"train.steps": 300})
    damage(job, [300])
    return SimpleNamespace(job=job, output=job.run("Train"))


def test_a_damaged_checkpoint_is_named_and_the_one_before_continues_bit_for_bit(whole, continued):
    told = "WARNING: jobs/damaged: the checkpoint of step 300 of run 'damaged' is damaged"
    assert told in continued.output and "falling back to the one before" in continued.output
    assert "INFO: jobs/damaged: continuing after step 200 of 400\n" in continued.output
    reader = continued.job.reader
    assert [attempt.start for attempt in reader.attempts()] == [-1, 200]
    same_results(reader, whole.reader)


@pytest.fixture
def ruined(whole):
    """The job of 400 steps, with all its checkpoints damaged for the time of a test."""
    steps = whole.reader.checkpoints()["step"].tolist()
    damage(whole, steps)
    yield whole
    damage(whole, steps)  # the same bits once more


def test_without_any_whole_checkpoint_nothing_is_trained_from_the_beginning(ruined):
    steps = ruined.reader.checkpoints()["step"].tolist()
    before = ruined.reader.metrics()
    output = ruined.run("Train", code=30, **{"train.steps": 500})

    assert "Traceback" not in output
    assert f"ERROR: run 'whole': none of its {len(steps)} checkpoints can be read" in output
    assert ruined.reader.metrics().equals(before)
    assert ruined.reader.checkpoints()["step"].tolist() == steps
    assert ruined.reader.status().step == 400


def test_validating_a_damaged_checkpoint_is_refused(ruined):
    output = ruined.run("TrainAndValidate", code=30)
    assert "ERROR: the checkpoint of step 400 of run 'whole' is damaged" in output
    assert not ruined.store.validated("jobs", [("whole", "test", 400)])


def test_the_inline_executor_computes_the_same(whole, shared_job, tmp_path):
    config = tmp_path / "luigi.cfg"
    config.write_text("[execution]\nexecutor = inline\n")
    job = shared_job(name="inline", **LONG)
    job.environment = {**job.environment, "LUIGI_CONFIG_PATH": str(config)}
    output = job.run("Train")

    assert "INFO: jobs/inline step 400: test: loss " in output
    same_results(job.reader, whole.reader)
    [attempt] = job.reader.attempts()
    assert "step 400: test: loss" in attempt.log_tail
    assert attempt.owner.pid == job.started[-1].pid
