"""Runs that were rewound, or carried elsewhere, and are trained on: the same, bit for bit."""

import pytest

from pipefit.records import RunState
from pipefit.store import open_store
from pipefit.transfer import export_runs, import_runs
from tests.execution.lab_runs import (
    assert_same,
    builder,
    carry_out,
    changed,
    experiment,
    results,
)
from tests.pipelines.conftest import _new_database

SAVE = {"checkpoint_every": 4, "metrics_every": 3, "validate_every": 3}
VALIDATION = {
    "test": {
        "data": builder("points", n=10, seed=1, batch_size=8),
        "metrics": {"w": builder("weight")},
    }
}


def rewound(uri, spec, step):
    """What the run left behind the first time, and what it leaves after a rewind."""
    carry_out(spec, uri)
    store = open_store(uri)
    run = store.run(spec.name, "lab")
    before = results(run)
    store.rewind("lab", spec.name, step)
    assert run.status().state is RunState.INTERRUPTED and len(run.metrics()) == step
    carry_out(spec, uri)
    return run, before


def test_it_ends_as_it_ended_before(database_uri):
    spec = experiment(save=SAVE, validation=VALIDATION, model=builder("net"), loss=builder("plain"))
    spec = changed(spec, train={"metrics": {}})
    spec = changed(spec, validation={"test": {**VALIDATION["test"], "metrics": {}}})
    run, before = rewound(database_uri, spec, 4)

    assert results(run) == before
    assert results(run.line(1)) == before
    assert [attempt.start for attempt in run.attempts()] == [-1, 4]


def test_what_it_was_rolled_back_to_before_that_step_stays(database_uri):
    """See test_rollback: it goes back from 8 to 4, from 11 to 8, and from 12 to 8."""
    spec = experiment(save=SAVE, validation=VALIDATION, loss=builder("growing", limit=6.5))
    spec = changed(spec, train={"rollback": {"times": 3, "scale": 0.5}})
    run, before = rewound(database_uri, spec, 8)

    assert results(run) == before
    assert [attempt.start for attempt in run.attempts()] == [-1, 4, 8, 8, 8]


def test_a_run_that_ended_early_goes_on_to_its_end_again(database_uri):
    rule = {"metric": "test/w", "mode": "min", "patience": 1}
    spec = experiment(save=SAVE, validation=VALIDATION)
    spec = changed(spec, train={"early_stop": rule})
    run, before = rewound(database_uri, spec, 4)

    assert run.status().ended.step == run.status().step < 12
    assert results(run) == before


@pytest.mark.parametrize("kind", ["another database", "a folder"])
def test_a_run_that_was_carried_elsewhere_ends_as_it_would_have(
    database_uri, mongo_uri, tmp_path, kind
):
    spec = experiment(save=SAVE, validation=VALIDATION)
    spec = changed(spec, model=builder("net"), loss=builder("plain"), train={"metrics": {}})
    spec = changed(spec, validation={"test": {**VALIDATION["test"], "metrics": {}}})
    carry_out(changed(spec, train={"steps": 6}), database_uri)
    store = open_store(database_uri)
    export_runs(store, tmp_path / "a.tar", "lab")
    with _new_database(mongo_uri) as other_uri:
        uri = other_uri if kind == "another database" else (tmp_path / "store").as_uri()
        import_runs(open_store(uri), tmp_path / "a.tar")
        for place in (database_uri, uri):
            carry_out(spec, place)
        runs = [open_store(place).run("run", "lab") for place in (database_uri, uri)]

        assert [a.start for a in runs[1].attempts()] == [-1, 6]
        assert_same(*runs)
