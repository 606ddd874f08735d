"""The tasks of an experiment with several models, asked about runs that a worker has left."""

import contextlib
import io
import os
from pathlib import Path

import luigi
import numpy as np
import pytest

from pipefit.errors import ArchiveError, IdentityMismatch, SpecError
from pipefit.records import Ended, MetricBlock, RunState, Validation
from pipefit.store import this_process
from pipelines import TrainAndValidate
from tasks.aggregate import Aggregate, show_results
from tasks.archives import CacheArchive, UntarArchive
from tasks.base import ExperimentTask
from tasks.train import Train
from tasks.trial import database_problem, plan
from tasks.validate import Validate

ROOT = Path(__file__).parent.parent.parent
SHA256 = "3e7c44b505866625e5352d67f01d1a902934d2e835ec7c3493622d2618462ced"
DATA = f"""
collection = "several"

[archives.digits]
url = "{ROOT}/configs/archives/optdigits.tar.gz"
sha256 = "{SHA256}"

[data.train]
builder = "pipefit.data:digits"
archive = "digits"
split = "train"
batch_size = 100

[optimizer]
builder = "keras.optimizers:SGD"

[train]
data = "train"
steps = 100

[validation.test]
data = "train"
[validation.more]
data = "train"
"""
NET = 'builder = "pipefit.training.models:mlp"\nunits = [8]\noutputs = 10\n'
ONE = f'name = "one"\n{DATA}\n[model]\n{NET}'
TWO = f'name = "two"\n{DATA}\n[models.a]\n{NET}\n[models.b]\n{NET}\ntrainable = "x"\n'
STOP = """'train.early_stop={ metric = "test/loss", mode = "min" }'"""


@pytest.fixture
def experiment(environment, tmp_path):
    """A function that gives the parameters of the tasks of an experiment."""

    def parameters(text=TWO, changes=""):
        path = tmp_path / "experiment.toml"
        path.write_text(text, encoding="utf-8")
        return {"config": str(path), "set": changes}

    return parameters


@pytest.fixture
def train(store):
    """A function that leaves what a worker would: runs that have come to their end."""

    def leave(task, *models, step=100, kind=None):
        for model in models:
            order = task.run_orders()[model]
            ended = Ended(kind, order.stop_rules[kind], step, "enough") if kind else None
            writer = store.acquire(order, this_process(), ttl=600)
            writer.begin(-1)
            writer.write_metrics(MetricBlock(1, {"loss": np.ones(step)}))
            writer.commit(step, {"w": np.zeros(10, "float32")}, frozenset({"final"}))
            writer.end(RunState.FINISHED, None, step, "", ended)

    return leave


@pytest.fixture
def validate(store):
    """A function that leaves the validations of a run's newest checkpoint."""

    def leave(run, *names, loss=0.5):
        checkpoint = store.run(run, "several").checkpoint()
        for name in names:
            done = Validation(name, checkpoint.step, {"loss": loss}, 7, checkpoint.id)
            store.commit_validation("several", run, checkpoint, done)

    return leave


def test_a_training_is_complete_when_every_model_is(experiment, train):
    task = Train(**experiment())
    assert [str(target) for target in task.output()] == [
        "checkpoint of step 100 of several/two/a", "checkpoint of step 100 of several/two/b",
    ]  # fmt: skip
    assert not task.complete()
    train(task, "a")
    assert not task.complete()
    train(task, "b")
    assert task.complete() and all(target.exists() for target in task.output())


def test_the_same_model_alone_is_the_same_run(experiment, train):
    several = Train(**experiment())
    train(several, "a", "b")
    alone = Train(**experiment(ONE, "name=two/a"))
    assert alone.complete()
    other = Train(**experiment(ONE, "name=two/b"))
    with pytest.raises(IdentityMismatch, match=r"two/b.*another experiment"):
        other.complete()


def test_a_run_that_a_rule_has_ended_is_complete_for_that_rule_only(experiment, train):
    stopping = Train(**experiment(changes=STOP))
    train(stopping, "a", step=30, kind="early_stop")
    train(stopping, "b")
    assert stopping.complete()
    assert [target.step for target in stopping.output()] == [30, 100]
    validations = [
        Validate(validation="test", model=model, **experiment(changes=STOP)) for model in "ab"
    ]
    assert [task.at for task in validations] == [30, 100]
    assert [str(task.output()) for task in validations] == [
        "validation test at step 30 of several/two/a",
        "validation test at step 100 of several/two/b",
    ]
    assert not Train(**experiment()).complete()
    patient = f"{STOP} train.early_stop.patience=9"
    assert not Train(**experiment(changes=patient)).complete()


def test_the_job_is_complete_when_every_model_is_validated_and_summed_up(
    experiment, train, validate
):
    job = TrainAndValidate(**experiment())
    assert [task.model for task in job.requires()] == ["a", "b"]
    train(job, "a", "b")
    validate("two/a", "test", "more")
    validate("two/b", "test", loss=0.25)
    assert not job.complete()
    first, second = job.aggregates()
    [missing] = [task for task in luigi.task.flatten(second.requires()) if not task.complete()]
    assert (missing.model, missing.validation) == ("b", "more")
    validate("two/b", "more", loss=0.25)
    assert not job.complete()
    assert luigi.build([job], local_scheduler=True, no_lock=True)
    assert job.complete()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for task in job.aggregates():
            show_results(task)
    shown = printed.getvalue()
    assert "several/two/a, 100 steps" in shown and "several/two/b, 100 steps" in shown
    assert "0.2500" in shown and str(second.report) in shown
    first.report.unlink()
    assert not job.complete()


@pytest.mark.parametrize(("text", "model", "known"), [
    (TWO, "", "a, b"), (TWO, "c", "a, b"), (ONE, "a", "only one, which needs no name"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_refused(experiment, text, model, known):
    with pytest.raises(SpecError, match=f"model = '{model}': there is no such model.*{known}"):
        Aggregate(model=model, **experiment(text))


def test_an_archive_that_is_not_unpacked_is_handed_over_as_a_file(experiment):
    packed = Train(**experiment(ONE, "archives.digits.unpack=false"))
    [task] = packed.requires().values()
    assert type(task) is CacheArchive
    with pytest.raises(ArchiveError, match="is not there, or was damaged; run again"):
        _ = task.output().path
    assert luigi.build([task], local_scheduler=True, no_lock=True)
    order = packed.order(packed.spec, uri="", kind="train")
    assert Path(order.folders["digits"]).name == f"{SHA256}.archive"
    assert Path(order.folders["digits"]).is_file()
    assert type(Train(**experiment(ONE)).requires()["digits"]) is UntarArchive


def test_the_plan_is_what_luigi_would_do(experiment, train, validate):
    job = TrainAndValidate(**experiment())
    assert luigi.build([UntarArchive(**archive())], local_scheduler=True, no_lock=True)
    assert list(plan(job, ask=True)) == [
        ("there", f"UntarArchive archive {SHA256}"),
        ("to do", "Train several/two"),
        ("to do", "Validate several/two/a test"),
        ("to do", "Validate several/two/a more"),
        ("to do", "Aggregate several/two/a"),
        ("to do", "Validate several/two/b test"),
        ("to do", "Validate several/two/b more"),
        ("to do", "Aggregate several/two/b"),
        ("to do", "TrainAndValidate several/two"),
    ]
    train(job, "a", "b")
    validate("two/a", "test", "more")
    states = {what: state for state, what in plan(job, ask=True)}
    assert states["Train several/two"] == "there"
    assert states["Validate several/two/a test"] == "there"
    assert states["Validate several/two/b test"] == "to do"
    validate("two/b", "test", "more")
    states = {what: state for state, what in plan(job, ask=True)}
    assert [what for what, state in states.items() if state == "to do"] == [
        "Aggregate several/two/a",
        "Aggregate several/two/b",
        "TrainAndValidate several/two",
    ]
    assert not any("Archive" in what for what in states)  # nobody needs it any more


def archive():
    return {"url": f"{ROOT}/configs/archives/optdigits.tar.gz", "sha256": SHA256}


def test_the_plan_says_what_would_be_refused_and_what_is_not_known(experiment, train):
    other = TrainAndValidate(**experiment())
    train(other, "a")
    job = TrainAndValidate(**experiment(changes="models.a.units=[9]"))
    [(state, what)] = plan(job, ask=True)
    assert state.startswith("refused: run 'two/a' of collection 'several' was made by another")
    assert what == "TrainAndValidate several/two"
    states = {what: state for state, what in plan(job, ask=False)}
    assert states.pop(f"UntarArchive archive {SHA256}") == "to do"
    assert states.pop(f"CacheArchive archive {SHA256}") == "to do"
    assert set(states.values()) == {"unknown"} and len(states) == 8


def test_a_database_that_cannot_be_asked_is_a_reason(environment, monkeypatch):
    assert database_problem() is None
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=200")
    assert "cannot be reached" in database_problem()
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "embedded")
    assert "not running (`pipefit db start` starts it)" in database_problem()
    assert not Path(os.environ["PIPEFIT_HOME"], "mongod").exists()


def test_a_task_tells_what_it_is_about(experiment):
    tasks: list[ExperimentTask] = [
        Train(**experiment()), Validate(validation="test", model="b", **experiment()),
    ]  # fmt: skip
    assert [task.subject for task in tasks] == ["several/two", "several/two/b test"]
