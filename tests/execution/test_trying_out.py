"""A fast dev run refuses at once what a run would refuse at its first validation."""

import pytest

from pipefit.errors import Diverged, SpecError
from pipefit.execution import InlineExecutor
from pipefit.spec import Spec
from pipefit.training import Experiment
from tests.execution.lab_runs import builder, changed, experiment, order

SET = {"data": builder("points", batch_size=8)}
SPEC = experiment(validation={"test": SET})


class Mine(Experiment):
    """Its targets, which it may make metrics, are not in the file."""


RULE = {"metric": "test/mine/x", "mode": "max"}


def try_out(spec):
    InlineExecutor().run(order(spec, "", kind="fast_dev_run"), lambda event: None, lambda: None)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"validation": {"test": {**SET, "outputs": ["logit"]}}}, "has no output 'logit'; it has"),
        (
            {"save": {"best": RULE}},
            "save.best.metric = 'test/mine/x': no such metric is validated; there are",
        ),
        (
            {"train": {"early_stop": {**RULE, "patience": 3}}},
            "train.early_stop.metric = 'test/mine/x': no such metric is validated; there are",
        ),
    ],
)
def test_it_is_refused(tables, told):
    spec = changed(SPEC, experiment="tests.execution.test_trying_out:Mine", **tables)
    with pytest.raises(SpecError) as refused:
        try_out(spec)
    assert told in str(refused.value)


def test_a_first_loss_that_is_no_number_is_refused_for_the_model_that_has_it():
    tables = SPEC.table()
    model = tables.pop("model")
    tables["models"] = {"a": model, "b": {**model, "loss": builder("growing", limit=-1.0)}}
    with pytest.raises(Diverged, match=r"^run/b: the loss of the first step is nan; look at the"):
        try_out(Spec.of_tables(tables))
