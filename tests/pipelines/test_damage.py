"""Damaged checkpoints, and executors: the numbers stay what they would have been."""

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


def test_a_damaged_checkpoint_is_named_and_the_one_before_continues_bit_for_bit(whole, shared_job):
    job = shared_job(name="damaged", **LONG)
    job.run("Train", **{"train.steps": 300})
    damage(job, [300])
    output = job.run("Train")

    told = "WARNING: jobs/damaged: the checkpoint of step 300 of run 'damaged' is damaged"
    assert told in output and "falling back to the one before" in output
    assert "INFO: jobs/damaged: continuing after step 200 of 400\n" in output
    assert [attempt.start for attempt in job.reader.attempts()] == [-1, 200]
    same_results(job.reader, whole.reader)


def test_without_any_whole_checkpoint_nothing_is_trained_from_the_beginning(shared_job):
    job = shared_job(name="damaged", **LONG)
    steps = job.reader.checkpoints()["step"].tolist()
    damage(job, steps)
    before = job.reader.metrics()
    output = job.run("Train", code=30, **{"train.steps": 500})

    assert "Traceback" not in output
    assert f"ERROR: run 'damaged': none of its {len(steps)} checkpoints can be read" in output
    assert job.reader.metrics().equals(before)
    assert job.reader.checkpoints()["step"].tolist() == steps
    assert job.reader.status().step == 400


def test_validating_a_damaged_checkpoint_is_refused(shared_job):
    job = shared_job(name="damaged", **LONG)
    output = job.run("TrainAndValidate", code=30)
    assert "ERROR: the checkpoint of step 400 of run 'damaged' is damaged" in output
    assert not job.store.validated("jobs", [("damaged", "test", 400)])


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
