"""LoadCheckpoint, asked about runs that a worker has left."""

import shlex

import pytest

from pipefit.errors import IdentityMismatch
from pipefit.spec import parse_set, read_spec
from tasks.load import LoadCheckpoint
from tasks.train import Train

CONFIG = "configs/digits_mlp.toml"


@pytest.fixture
def words(environment):
    """The parameters of tasks whose run is loaded from another one."""

    def parameters(**changes):
        changes = {"load": '[{ from = { name = "other" } }]', "name": "mlp", **changes}
        text = " ".join(shlex.quote(f"{key}={value}") for key, value in changes.items())
        return {"config": CONFIG, "set": text}

    return parameters


def test_it_comes_before_the_training_and_after_the_archives(words, store):
    required = Train(**words()).requires()
    assert list(required) == ["digits", "load"]
    assert isinstance(required["load"], LoadCheckpoint)
    assert list(required["load"].requires()) == ["digits"]
    assert "load" not in Train(config=CONFIG).requires()


def test_it_is_complete_once_the_run_has_any_checkpoint(words, make_run):
    task = LoadCheckpoint(**words())
    (target,) = task.output()
    assert not task.complete() and not target.exists()
    spec = read_spec(CONFIG, parse_set(task.set))
    make_run("mlp", spec=spec.to_json(), identity=spec.identity)
    assert task.complete() and target.exists()
    assert str(target) == "a checkpoint of digits/mlp"


def test_an_archive_of_weights_is_needed_only_to_load(words):
    old = {"archives.old.url": "old.tar", "archives.old.sha256": "0" * 64}
    given = words(load='[{ from = { archive = "old" } }]', **old)
    assert list(LoadCheckpoint(**given).requires()) == ["digits", "old"]
    assert list(Train(**given).requires()) == ["digits", "load"]
    # What the data are read from as well is needed by both.
    both = words(load='[{ from = { archive = "digits" } }]')
    assert list(Train(**both).requires()) == ["digits", "load"]


def test_another_experiment_of_the_same_name_is_refused(words, make_run):
    make_run("mlp", identity="another")
    with pytest.raises(IdentityMismatch, match="choose another name"):
        LoadCheckpoint(**words()).complete()
