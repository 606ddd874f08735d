"""Several models trained by one worker: each is, bit for bit, what it would be alone."""

import random
import time
from collections import Counter

import pytest

from pipefit.data.order import examples
from pipefit.errors import Interrupted, NotFound, RunOwned, TrainingError
from pipefit.records import Owner, RunOrder
from pipefit.spec import Spec
from tests.execution.lab import TAKEN
from tests.execution.lab_runs import (
    Worker,
    assert_same,
    builder,
    carry_out,
    changed,
    results,
    sgd,
)

NAMES = ("plain", "wide", "own", "grow")
SCHEDULE = {
    "builder": "keras.optimizers.schedules:ExponentialDecay",
    "initial_learning_rate": 0.02,
    "decay_steps": 5,
    "decay_rate": 0.7,
}
MODELS = {
    "plain": builder("net"),
    # Another architecture, on two devices, with a loss, an optimizer and a schedule of its own.
    "wide": builder(
        "wide",
        devices=["cpu:1", "cpu:2"],
        loss=builder("plain"),
        optimizer={"builder": "keras.optimizers:Adam", "learning_rate": SCHEDULE},
    ),
    "own": builder("net", units=7, norm=False, data="other", optimizer=sgd(0.05)),
    "grow": builder("grow", loss=builder("growing"), optimizer=sgd(1.0)),
}
STEPS, BATCH = 24, 8
SAVE = {
    "validate_every": 8,
    "recent_every": 3,
    "recent_keep": 2,
    "metrics_every": 5,
    "best": {"metric": "test/loss", "mode": "min"},
}


def several(name="all", collection="lab", **tables):
    """Four models; three share what is read."""
    return Spec.of_tables(
        {
            "name": name,
            "collection": collection,
            "seed": 3,
            "data": {
                "train": builder("points", n=40, name="shared", batch_size=BATCH),
                "other": builder("points", n=30, seed=1, name="other", batch_size=4),
            },
            "models": MODELS,
            "optimizer": sgd(0.1, momentum=0.9, clip={"global_norm": 1.0}),
            "train": {"data": "train", "steps": STEPS, "accumulate": 2},
            "validation": {
                "test": {
                    "data": builder("points", n=19, seed=2, batch_size=8),
                    "metrics": {"id": builder("number")},
                }
            },
            "save": SAVE,
            **tables,
        }
    )


def runs(store, name="all"):
    return {model: Lazy(store, f"{name}/{model}") for model in NAMES}


class Lazy:
    """A run that may not be there yet."""

    def __init__(self, store, name):
        self._store, self._name = store, name

    def __getattr__(self, attribute):
        return getattr(self._store.run(self._name, "lab"), attribute)


def states(store, name):
    return {model: run.status().state for model, run in runs(store, name).items()}


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
    """The runs of all models, trained together; what was read for it."""
    TAKEN.clear()
    carry_out(several(), shared_uri)
    made = runs(shared_store)
    made["taken"] = {name: [i for batch in taken for i in batch] for name, taken in TAKEN.items()}
    return made


def test_each_example_is_read_once(whole):
    """Three models share a source, one has its own; some batches are read ahead and not used."""
    ahead = 9  # 4 readers, 4 batches kept ready, and the one handed over
    for name, size, n in (("shared", BATCH, 40), ("other", 4, 30)):
        taken = whole["taken"][name]
        assert STEPS * size <= len(taken) <= (STEPS + ahead) * size
        # The readers are threads, so the order in which they are called does not tell.
        expected = examples(seed=3, start=0, count=len(taken), n=n).tolist()
        assert Counter(taken) == Counter(expected)


@pytest.mark.parametrize("model", ["wide", "own"])
def test_every_model_is_what_it_would_be_alone(whole, shared_store, shared_uri, model):
    alone = Spec.of_tables({**several().runs()[model].table(), "collection": "alone"})
    assert alone.name == f"all/{model}" and alone.identity == several().runs()[model].identity
    carry_out(alone, shared_uri)
    assert_same(whole[model], shared_store.run(alone.name, "alone"))
    assert whole[model].checkpoints()["step"].tolist()[-2:] == [21, 24]
    assert whole[model].validations()["step"].tolist() == [8, 16, 24]
    assert whole[model].status().state == "FINISHED"


def test_killed_at_a_random_moment_and_stopped_they_end_as_if_nothing_had_happened(
    whole, shared_store, shared_uri
):
    """One is ahead when they begin; killed, they leave checkpoints of different steps."""
    spec = several("killed")
    made = runs(shared_store, "killed")
    carry_out(
        changed(spec.runs()["own"], save={**SAVE, "recent_every": 5}, train={"steps": 5}),
        shared_uri,
    )
    seconds = random.Random(11).uniform(0, 0.1)
    kill_after(spec, shared_uri, lambda: made["wide"].status().step, 4, seconds)
    with pytest.raises(Interrupted, match=r"stopped at step .* as asked: enough"):
        carry_out(spec, shared_uri, stop_at=7)
    steps = {run.status().step for run in made.values()}
    assert len(steps) == 1 and {run.status().state for run in made.values()} == {"INTERRUPTED"}
    carry_out(spec, shared_uri)
    for model, run in made.items():
        one, other = results(run), results(whole[model])
        if model == "own":  # has a final checkpoint of its first end as well
            del one["checkpoints"], other["checkpoints"]
        assert one == other
        assert run.status().state == "FINISHED" and len(run.attempts()) >= 3
    assert made["own"].attempts()[1].start == 5


def kill_after(spec, uri, step, least, seconds):
    """Let a worker train until this step is saved, and then, a little later, kill it."""
    worker = Worker(spec, uri, {"LAB_SECONDS": "0.05"})
    deadline = time.monotonic() + 60
    while True:
        try:
            if (step() or 0) >= least:
                break
        except NotFound:
            pass
        assert worker.process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(seconds)
    worker.process.kill()
    assert worker.end() == (-9, None)


def test_those_that_fail_fail_alone(whole, shared_store, shared_uri):
    """The loss of one raises in the middle of a call of all; one diverges; one cannot validate."""
    models = {
        "plain": MODELS["plain"],
        "wide": builder("grow", loss=builder("growing", raise_at=10.0), optimizer=sgd(1.0)),
        "own": builder("grow", loss=builder("growing", limit=13.5), optimizer=sgd(1.0)),
        "grow": builder("grow", data="other", loss=builder("growing"), optimizer=sgd(1.0), units=5),
    }
    data = {
        **several().table()["data"],
        "other": builder("stream", n=70, fail_after=66, batch_size=4),
    }
    spec = several("hurt", models=models, data=data)
    with pytest.raises(TrainingError) as raised:
        carry_out(spec, shared_uri)
    first, *_ = str(raised.value).splitlines()
    assert first.startswith("3 of 4 models failed; hurt/")
    message = str(raised.value)
    assert "hurt/wide: ValueError: the loss cannot bear w = 10" in message
    assert "hurt/own: step 15: loss = nan is not finite" in message
    assert "hurt/grow: Stream: reading what follows the first 64 examples failed with" in message
    assert states(shared_store, "hurt") == {
        "plain": "FINISHED", "wide": "FAILED", "own": "FAILED", "grow": "FAILED",
    }  # fmt: skip
    made = runs(shared_store, "hurt")
    assert_same(made["plain"], whole["plain"])
    assert made["own"].metrics().index.tolist() == list(range(1, 16))
    assert [made[model].status().step for model in NAMES] == [24, 9, 12, 16]


def test_a_validation_that_fails_is_the_failure_of_its_model_alone(shared_store, shared_uri):
    validation = {
        "test": {
            "data": builder("points", n=9, batch_size=8),
            "metrics": {"score": builder("score", scores=[0] * 30, raise_at=5.0)},
        }
    }
    fast = builder("grow", loss=builder("growing"), optimizer=sgd(1.0))
    models = {"fast": fast, "slow": {**fast, "optimizer": sgd(0.5)}}
    save = {"validate_every": 3, "recent_every": 3}
    spec = several("unseen", models=models, validation=validation, save=save)
    spec = changed(spec, train={"steps": 9})
    with pytest.raises(TrainingError, match=r"1 of 2 models failed; unseen/fast: .* w = 6"):
        carry_out(spec, shared_uri)
    fast, slow = (shared_store.run(f"unseen/{name}", "lab") for name in ("fast", "slow"))
    assert (fast.status().state, fast.status().step) == ("FAILED", 3)
    assert (slow.status().state, slow.status().step) == ("FINISHED", 9)
    assert slow.validations()["step"].tolist() == [3, 6, 9]
    assert len(slow.attempts()) == 1


def test_a_run_that_somebody_else_owns_keeps_all_from_beginning(shared_store, shared_uri):
    models = {name: MODELS[name] for name in ("plain", "grow")}
    spec = several("taken", models=models)
    grow = spec.runs()["grow"]
    order = RunOrder("lab", grow.name, grow.identity, grow.parts(), grow.to_json(), STEPS)
    writer = shared_store.acquire(order, Owner("elsewhere", "other", 1, 0.0), ttl=60)
    with pytest.raises(RunOwned, match=r"'taken/grow' .* owned by pid 1 on elsewhere"):
        carry_out(spec, shared_uri)
    plain = shared_store.run("taken/plain", "lab").status()
    assert plain.state == "INTERRUPTED" and "'taken/grow'" in plain.reason
    assert shared_store.lease("lab", "taken/plain") is None
    assert shared_store.lease("lab", "taken/grow").fence == writer.fence
