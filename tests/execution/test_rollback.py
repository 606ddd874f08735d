"""Runs that go back to their last good checkpoint: where and how often is worked out by hand.

The weight w grows by the learning rate in every step, and the loss is NaN once w is above 6.5. With
checkpoints every 4 steps: w is k - 1 in step k, 7 in step 8: back to 4, w = 4, rate 0.5; then it is
7 in step 11: back to 8, w = 6, rate 0.25; then it is 6.75 in step 12: back to 8, rate 0.125; then
it ends at step 12.
"""

import os
import signal

import pytest

from pipefit.errors import Diverged, Interrupted
from pipefit.store.writer import MongoRunWriter
from tests.execution.lab_runs import (
    Worker,
    assert_same,
    builder,
    carry_out,
    changed,
    experiment,
    results,
    sgd,
)

W = [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.125, 6.25, 6.375]
RATES = [1.0] * 4 + [0.5] * 4 + [0.125] * 4
STORY = [(8, 4, 0.5), (11, 8, 0.5), (12, 8, 0.5)]
LIMITED = builder("growing", limit=6.5)
SAVE = {"recent_every": 4, "recent_keep": 1, "metrics_every": 3, "validate_every": 3}
VALIDATION = {
    "test": {
        "data": builder("points", n=10, seed=1, batch_size=8),
        "metrics": {"w": builder("weight")},
    }
}


def unstable(name="run", rule=None, **tables):
    rule = {"times": 3, "scale": 0.5} if rule is None else rule
    return experiment(
        **{"name": name, "loss": LIMITED, "save": SAVE, "validation": VALIDATION, **tables},
        train={"rollback": rule},
    )


def story(run):
    return [
        (event["from"], event["to"], event["scale"])
        for event in run.document()["history"]
        if event["event"] == "rollback"
    ]


@pytest.fixture(scope="module")
def shared_uri(mongo_uri):
    """The database of this module."""
    from tests.pipelines.conftest import _new_database

    with _new_database(mongo_uri) as uri:
        yield uri


@pytest.fixture(scope="module")
def shared_store(shared_uri):
    from pipefit.store import open_store

    return open_store(shared_uri)


@pytest.fixture(scope="module")
def whole(shared_store, shared_uri):
    """The run that nobody interrupts, and what was logged."""
    lines = carry_out(unstable(), shared_uri)
    run = shared_store.run("run", "lab")
    run.lines = lines
    return run


def test_it_goes_back_with_smaller_rates_as_worked_out_by_hand(whole):
    status = whole.status()
    assert (status.state, status.step, status.reason) == ("FINISHED", 12, None)
    # Each step once, those that were repeated as they were in the end.
    frame = whole.metrics()
    assert frame.index.tolist() == list(range(1, 13))
    assert frame["w"].tolist() == W
    assert frame["learning_rate"].tolist() == RATES
    assert frame["loss"].notna().all()
    validated = whole.validations()
    assert validated["step"].tolist() == [3, 6, 9, 12]
    assert validated["w"].tolist() == [3, 5, 6.125, 6.5]
    assert whole.weights()["model/grown/w"] == 6.5
    assert [attempt.start for attempt in whole.attempts()] == [-1, 4, 8, 8]
    assert [attempt.state for attempt in whole.attempts()] == ["INTERRUPTED"] * 3 + ["FINISHED"]


def test_it_is_told_and_written_to_the_history(whole):
    assert story(whole) == STORY
    first = next(event for event in whole.document()["history"])
    assert first["reason"].startswith("step 8: loss = nan is not finite") and first["fence"] == 1
    told = [line for line in whole.lines if "going back to step" in line]
    assert "going back to step 4 with 0.5 times the learning rates (rollback 1 of 3)" in told[0]
    assert "going back to step 8 with 0.125 times the learning rates (rollback 3 of 3)" in told[2]


def kill_before():
    """Prepares a worker: it dies when it is about to note its first rollback."""
    MongoRunWriter.note = lambda self, event: os.kill(os.getpid(), signal.SIGKILL)


def kill_after():
    """Prepares a worker: it dies as soon as that is noted."""
    note = MongoRunWriter.note

    def then_die(self, event):
        note(self, event)
        os.kill(os.getpid(), signal.SIGKILL)

    MongoRunWriter.note = then_die


@pytest.mark.parametrize("prepare", [kill_before, kill_after])
def test_killed_just_before_or_after_it_is_decided_it_ends_the_same(
    whole, shared_store, shared_uri, prepare
):
    spec = unstable(prepare.__name__)
    assert Worker(spec, shared_uri, prepare=prepare).end() == (-9, None)
    run = shared_store.run(spec.name, "lab")
    assert story(run) == ([] if prepare is kill_before else STORY[:1])
    carry_out(spec, shared_uri)
    assert_same(run, whole)
    assert story(run) == STORY


def test_where_it_was_asked_to_stop_it_does_not_go_back_to(whole, shared_store, shared_uri):
    """The checkpoint at which it was stopped would not be there otherwise."""
    spec = unstable("stopped")
    with pytest.raises(Interrupted):
        carry_out(spec, shared_uri, stop_at=6)
    run = shared_store.run("stopped", "lab")
    assert run.checkpoints()[["step", "kinds"]].to_dict("list") == {
        "step": [4, 6],
        "kinds": ["recent", "stopped"],
    }
    carry_out(spec, shared_uri)
    assert story(run) == STORY
    assert_same(run, whole)


def test_without_a_checkpoint_it_begins_anew(shared_store, shared_uri):
    """In step 8 w is 7: back to the beginning, rate 0.5; in step 12 it is 5.5."""
    spec = unstable("anew", save={}, validation={})
    carry_out(spec, shared_uri)
    run = shared_store.run("anew", "lab")
    assert story(run) == [(8, 0, 0.5)]
    assert run.metrics()["w"].tolist() == [k / 2 for k in range(12)]
    calm = unstable("calm", save={}, validation={}, optimizer=sgd(0.5))
    carry_out(calm, shared_uri)
    assert results(run) == results(shared_store.run("calm", "lab"))


def test_after_so_many_times_it_fails_and_more_of_them_go_on(whole, shared_store, shared_uri):
    spec = unstable("short", {"times": 2, "scale": 0.5})
    with pytest.raises(Diverged, match=r"^step 12: loss = nan is not finite"):
        carry_out(spec, shared_uri)
    run = shared_store.run("short", "lab")
    assert run.status().state == "FAILED" and run.status().reason.startswith("step 12: loss = nan")
    assert story(run) == STORY[:2]
    assert run.metrics()["w"].tolist() == [*W[:9], 6.25, 6.5, 6.75]
    with pytest.raises(Diverged):
        carry_out(spec, shared_uri)
    assert story(run) == STORY[:2]
    carry_out(changed(spec, train={"rollback": {"times": 3, "scale": 0.5}}), shared_uri)
    assert_same(run, whole)


def test_of_several_models_only_the_one_that_diverges_goes_back(whole, shared_store, shared_uri):
    models = {
        "hot": builder("grow", loss=LIMITED, optimizer=sgd(1.0)),
        "cold": builder("grow", loss=LIMITED, optimizer=sgd(0.5)),
    }
    alone = unstable()
    tables = {**alone.table(), "name": "two", "models": models}
    del tables["model"]
    spec = type(alone).of_tables(tables)
    carry_out(spec, shared_uri)
    hot, cold = (shared_store.run(f"two/{name}", "lab") for name in models)
    assert_same(hot, whole)
    assert story(hot) == STORY and story(cold) == []
    assert len(cold.attempts()) == 1 and cold.status().state == "FINISHED"
    assert cold.metrics()["w"].tolist() == [k / 2 for k in range(12)]
    # The other one did not wait for it.
    assert cold.attempts()[0].ended < hot.attempts()[1].started
