"""Data that end, fail or do not fit end the run with their cause; a few batches may be repeated."""

import time

import pytest

from pipefit.errors import DataError, PipefitError
from pipefit.spec import Spec
from tests.execution.lab_runs import builder, carry_out, experiment

BAD = {
    # Input; what is told; the step that is saved.
    "ends early": (
        builder("stream", n=44),
        "Stream: ended after 44 examples, which are 5 steps; let it begin again at its end",
        4,
    ),
    "fails": (
        builder("stream", fail_after=30),
        "Stream: reading what follows the first 24 examples failed with OSError: photo 30 cannot",
        2,
    ),
    "has fields of different lengths": (builder("uneven"), "x has 8, labels has 7", None),
}


@pytest.mark.parametrize("what", BAD)
def test_an_input_that(what, store, database_uri):
    source, told, saved = BAD[what]
    spec = experiment(data={"train": {**source, "batch_size": 8}}, save={"recent_every": 2})
    begin = time.monotonic()
    with pytest.raises(DataError) as raised:
        carry_out(spec, database_uri)
    assert time.monotonic() - begin < 30
    assert told in str(raised.value).splitlines()[0]
    status = store.statuses("lab", ["run"]).get("run")
    if saved is None:
        assert status is None
    else:
        assert status.state == "FAILED" and told in status.reason and status.step == saved
        frame = store.run("run", "lab").metrics()
        assert saved <= len(frame) and frame.index.tolist() == list(range(1, len(frame) + 1))


def test_an_input_that_ends_early_ends_all_models_that_read_it(store, database_uri):
    tables = experiment(data={"train": builder("stream", n=20, batch_size=8)}).table()
    tables["models"] = {"one": tables.pop("model"), "two": builder("grow", units=2)}
    with pytest.raises(PipefitError) as raised:
        carry_out(Spec.of_tables(tables), database_uri)
    told = "Stream: ended after 20 examples, which are 2 steps; let it begin again at its end"
    assert f"2 of 2 models failed; run/one: {told}" in str(raised.value)
    statuses = store.statuses("lab", ["run/one", "run/two"])
    assert {(s.state, s.reason[: len(told)]) for s in statuses.values()} == {("FAILED", told)}


def test_overfitting_repeats_the_first_batches(store, database_uri):
    metrics = {"id": builder("number"), "w": builder("weight")}
    spec = experiment(train={"overfit": 3, "metrics": metrics}, save={"recent_every": 5})
    free = experiment(name="free", train={"metrics": metrics})
    assert spec.identity != free.identity
    carry_out(spec, database_uri)
    carry_out(free, database_uri)
    few, all_ = (store.run(name, "lab").metrics() for name in ("run", "free"))
    first = few["id"].tolist()[:3]
    assert few["id"].tolist() == first * 4
    assert all_["id"].tolist()[:3] == first and len(set(all_["id"])) > 5
    # It learns them by heart, and continues in the middle of them.
    longer = experiment(train={"overfit": 3, "metrics": metrics, "steps": 16})
    carry_out(longer, database_uri)
    assert store.run("run", "lab").metrics()["id"].tolist() == (first * 6)[:16]
