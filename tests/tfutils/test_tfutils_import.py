"""`import_tfutils`: experiments of tfutils become runs, of which all readers read everything."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest
from tfutils_dump import Invented, judged

from pipefit.execution.tfutils import open_checkpoint
from pipefit.report.imports import imported_text
from pipefit.store import open_store
from pipefit.transfer.tfutils import import_tfutils


def brought(store, old, **choices):
    """Import with TensorFlow reading the checkpoints."""
    database = old.database()
    return list(
        import_tfutils(store, database, lambda one: open_checkpoint(database, one), **choices)
    )


def test_experiments_become_runs(old, store, last_digits):
    first, second = brought(store, old)

    assert (first.collection, first.name, first.new) == ("digits", "training0", True)
    assert (second.name, second.checkpoints[-1], second.step) == ("training1", 1500, 1500)
    run = store.run("training0", "digits")
    status = run.status()
    assert (str(status.state), status.step) == ("FINISHED", 1000)
    checkpoints = run.checkpoints()
    assert checkpoints["step"].tolist() == list(range(0, 1001, 100))
    assert checkpoints["kinds"].tolist() == ["permanent", "recent"] * 5 + ["permanent"]
    for step, expected in ((1000, (329, 0.48752)), (200, (332, 0.40064))):
        weights = run.weights(step)
        assert weights["run/step"] == step
        assert weights["optimizer/hidden1/weights/Momentum"].shape == (64, 128)
        model = {n.removeprefix("model/"): a for n, a in weights.items() if n.startswith("model/")}
        assert judged(model, last_digits) == expected


def test_series_have_one_value_per_step(old, store):
    brought(store, old)
    for name, first, last in (("training0", 1, 1000), ("training1", 1001, 1500)):
        run = store.run(name, "digits")
        metrics = run.metrics()
        assert metrics.index.tolist() == list(range(first, last + 1))
        assert metrics.columns.tolist() == ["learning_rate", "loss"]
        # The old schedule, 5 % less after every 39 updates. Its graph did not say whether the rate
        # was read before or after the update was counted.
        steps = metrics.index.to_numpy()
        rates = [np.float32(0.05) * 0.95 ** (counted // 39) for counted in (steps - 1, steps)]
        close = [np.isclose(metrics["learning_rate"], rate, rtol=1e-5) for rate in rates]
        assert np.logical_or(*close).all()
        validations = run.validations()
        saved = range(0 if first == 1 else 1020, last + 1, 20)
        assert validations["step"].tolist() == list(saved)
        assert set(validations["set"]) == {"valid0"} and set(validations["examples"]) == {400}
    at = store.run("training0", "digits").validations().set_index("step").loc[1000]
    assert at["top1"] == pytest.approx(0.9175) and at["loss"] == pytest.approx(0.47580287)


def test_where_it_came_from_is_told(old, store):
    brought(store, old)
    run = store.run("training1", "digits")

    told = json.loads(run.artifact("tfutils.json"))
    assert told["params"]["optimizer_params"]["optimizer_kwargs"] == {"momentum": 0.9}
    assert [one["step"] for one in told["checkpoints"]] == [1100, 1200, 1300, 1400, 1500]
    document = run.document()
    assert document["spec"]["tfutils"]["params"] == told["params"]
    assert document["spec"]["tfutils"]["exp_id"] == "training1"
    continued, imported = document["history"]
    assert (continued["event"], continued["exp_id"], continued["step"]) == (
        "continued",
        "training0",
        1000,
    )
    assert (imported["event"], imported["from"]) == ("imported", "tfutils")
    assert run.attempts()[0].start == 1000
    history = store.run("training0", "digits").document()["history"]
    assert history[0]["changes"] == [
        {"key": "params.train_params.num_steps", "old": "500", "new": "1000"}
    ]
    assert history[0]["time"] == datetime(2026, 11, 30, 10, 58, 1, tzinfo=UTC)


@pytest.fixture
def elsewhere(tmp_path):
    return open_store((tmp_path / "folder").as_uri())


def test_it_is_the_same_again_and_in_every_store(old, store, elsewhere):
    """Without TensorFlow: any variables do."""

    def imported(place, **choices):
        return list(import_tfutils(place, old.database(), Invented, **choices))

    assert [one.new for one in imported(store, exp_ids=["training1"])] == [True]
    assert [one.new for one in imported(store)] == [True, False]
    assert [one.new for one in imported(elsewhere)] == [True, True]
    for name in ("training0", "training1"):
        assert elsewhere.run(name, "digits").metrics().equals(store.run(name, "digits").metrics())
        assert elsewhere.import_run(store.export_run("digits", name)) is False
    (again,) = imported(store, exp_ids=["training0"], name="night/one", collection="old")
    assert (again.new, again.collection, again.name) == (True, "old", "night/one")
    assert store.garbage(grace=0.0) == []
    (last,) = imported(store, exp_ids=["training0"], name="night/one", collection="old")
    told = imported_text(last).splitlines()
    assert told[0] == "old/night/one was there already, the same, of experiment training0"
    assert told[-1] == "  left out     the variable text, 11 times: it cannot be stored in a run"
    assert sorted(elsewhere.run("training1", "digits").weights(1500)) == ["model/w", "run/step"]
