"""Runs that end before their last step on purpose: the numbers are worked out by hand."""

import itertools
from types import SimpleNamespace

import luigi
import numpy as np
import pytest

from pipefit.errors import Interrupted
from pipefit.execution import completed, run_order
from pipelines import TrainAndValidate
from tests.execution.lab_runs import (
    Worker,
    assert_same,
    builder,
    carry_out,
    changed,
    experiment,
)

NAN = "nan"
#: After step k the weight w is k, and the score is SCORES[k].
SCORES = [9.0, 0.5, 0.6, 0.55, 0.61, NAN, 0.7, 0.7, 0.72, 0.1, 0.2, 0.3, 0.9]


def scored(scores=SCORES, stop=None, every=1, **train):
    rule = {} if stop is None else {"early_stop": {"metric": "test/score", "mode": "max", **stop}}
    return experiment(
        train={**train, **rule},
        validation={
            "test": {
                "data": builder("points", n=10, seed=1, batch_size=8),
                "metrics": {"score": builder("score", scores=scores)},
            }
        },
        save={
            "validate_every": every,
            "recent_every": 2,
            "recent_keep": 1,
            "best": {"metric": "test/score", "mode": "max"},
        },
    )


@pytest.mark.parametrize(
    ("stop", "end", "reason"),
    [
        # Better at 1, 2, 4, 6 and 8; after it 9, 10 and 11 are not.
        ({"patience": 3}, 11, "test/score has not improved on 0.72 in the last 3 validations"),
        # 0.61 is not better than 0.6 by more than 0.05, so 3, 4 and 5 (NaN) are waited.
        (
            {"patience": 3, "min_delta": 0.05},
            5,
            "test/score has not improved on 0.6 by more than 0.05 in the last 3 validations",
        ),
        # The smallest is that of step 1, until 9.
        ({"patience": 5, "mode": "min"}, 6, "test/score has not improved on 0.5 in the last 5"),
    ],
    ids=["patience", "min_delta", "min"],
)
def test_it_stops_at_the_step_worked_out_by_hand(store, database_uri, stop, end, reason):
    spec = scored(stop=stop)
    carry_out(spec, database_uri)
    run = store.run("run", "lab")
    status = run.status()
    assert (status.state, status.step) == ("FINISHED", end)
    assert status.ended.kind == "early_stop" and status.ended.step == end
    assert status.ended.reason.startswith(reason)
    checkpoint = run.checkpoint()
    assert checkpoint.step == end and "final" in checkpoint.kinds
    found = run.validations()
    assert found["step"].tolist() == list(range(1, end + 1))
    np.testing.assert_array_equal(found["score"], np.float32(SCORES[1 : end + 1]))
    best = 1 + int(np.nanargmax(np.array(SCORES[1 : end + 1], float)))
    assert any("best" in kinds for kinds in run.checkpoints().query(f"step == {best}")["kinds"])
    assert run.metrics().index.tolist() == list(range(1, end + 1))

    # Again it does nothing; another rule, or none, goes on.
    assert carry_out(spec, database_uri) == []
    assert len(run.attempts()) == 1
    assert completed(store, [run_order(spec)]) == {"run": end}
    assert completed(store, [run_order(scored(stop={**stop, "patience": 30}))]) == {}
    if stop == {"patience": 3}:
        carry_out(scored(stop={"patience": 4}), database_uri)
        assert run.status().ended is None and run.status().step == 12
        assert [attempt.start for attempt in run.attempts()] == [-1, 11]


def test_without_a_rule_an_ended_run_goes_on_as_if_it_had_never_stopped(store, database_uri):
    spec = scored(stop={"patience": 1})
    carry_out(spec, database_uri)
    run = store.run("run", "lab")
    assert run.status().step == 3
    carry_out(scored(), database_uri)
    assert run.status().step == 12 and run.status().ended is None
    carry_out(changed(scored(), name="whole"), database_uri)
    whole = store.run("whole", "lab")
    assert run.metrics()["loss"].equals(whole.metrics()["loss"])
    rest = {k: v for k, v in run.weights().items() if not k.startswith("run/early_stop")}
    assert all(value.tobytes() == rest[name].tobytes() for name, value in whole.weights().items())


def test_a_metric_that_never_is_a_number(store, database_uri):
    carry_out(scored([NAN] * 13, stop={"patience": 2}), database_uri)
    ended = store.run("run", "lab").status().ended
    assert ended.step == 2
    assert ended.reason == "test/score was no number in any of the last 2 validations"


def test_killed_and_stopped_while_it_waits_it_stops_where_it_would_have(store, database_uri):
    spec = scored(stop={"patience": 3})
    carry_out(spec, database_uri)
    whole = store.run("run", "lab")
    assert whole.status().step == 11
    cut = changed(spec, name="cut")
    # Step 9 is the first that is waited for; the checkpoint of step 8 may not be written yet.
    worker = Worker(cut, database_uri, {"LAB_KILL": "9"})
    assert worker.end() == (-9, None)
    run = store.run("cut", "lab")
    with pytest.raises(Interrupted):
        carry_out(cut, database_uri, stop_at=10)
    assert run.status().step == 10
    carry_out(cut, database_uri)
    assert_same(run, whole)
    first, killed, stopped = [attempt.start for attempt in run.attempts()]
    assert (first, stopped) == (-1, 10) and killed <= 8
    assert run.status().ended == whole.status().ended


def test_what_was_observed_of_another_metric_is_forgotten(store, database_uri):
    spec = scored(stop={"patience": 3}, steps=8)
    carry_out(spec, database_uri)
    # The loss falls all the time; the best score so far, 0.72, would never be reached by it.
    other = changed(
        spec,
        train={"steps": 12, "early_stop": {"metric": "test/loss", "mode": "min", "patience": 2}},
    )
    carry_out(other, database_uri)
    assert store.run("run", "lab").status().step == 12


def test_max_time_counts_all_attempts_and_more_of_it_goes_on(store, database_uri, monkeypatch):
    spec = scored(every=4, max_time=3.5)
    # Every call of the inner loop takes one second, whatever it does, and is one step.
    clock = itertools.count()
    calls = SimpleNamespace(perf_counter=lambda: float(next(clock)))
    standing = SimpleNamespace(monotonic=lambda: 0.0, perf_counter=lambda: 0.0)
    monkeypatch.setattr("pipefit.training.loops.loop.time", calls)
    monkeypatch.setattr("pipefit.training.loops.course.time", standing)
    monkeypatch.setattr("pipefit.training.loops.schedule.Pace.limit", 1)
    with pytest.raises(Interrupted):
        carry_out(spec, database_uri, stop_at=2)
    run = store.run("run", "lab")
    assert run.status().step == 2
    carry_out(spec, database_uri)
    assert run.status().state == "FINISHED" and run.status().ended.kind == "max_time"
    assert run.status().step == 4
    assert run.status().ended.reason == "trained for 4 s, max_time is 3.5 s"
    assert carry_out(spec, database_uri) == []

    carry_out(changed(spec, train={"max_time": "1h"}), database_uri)
    assert run.status().step == 12 and run.status().ended is None
    carry_out(changed(spec, name="whole", train={"max_time": "1h"}), database_uri)
    assert run.metrics()["loss"].equals(store.run("whole", "lab").metrics()["loss"])


def test_the_job_validates_and_reports_the_step_where_it_ended(
    store, database_uri, environment, tmp_path
):
    spec = scored(stop={"patience": 1}, every=2)  # better at 2 and 4, and 6 and 8, not at 10
    path = tmp_path / "early.toml"
    path.write_text(spec.to_toml())
    config = luigi.configuration.get_config()
    config.set("execution", "executor", "inline")
    try:
        task = TrainAndValidate(config=str(path))
        assert luigi.build([task], local_scheduler=True, no_lock=True)
        assert task.complete()
    finally:
        config.remove_option("execution", "executor")
    run = store.run("run", "lab")
    assert run.status().step == 10
    assert run.artifact("report.html")
    assert store.summary("lab", "run", 10)["validations"]["test"]["examples"] == 10
    assert [step for _, _, step in store.validated("lab", [("run", "test", 10)])] == [10]
