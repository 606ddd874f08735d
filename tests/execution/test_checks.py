"""When a run counts as complete, before anything is paid for."""

import numpy as np
import pytest

from pipefit.errors import IdentityMismatch, StoreError
from pipefit.execution.checks import completed, last_steps, reached
from pipefit.records import Ended, RunOrder, RunState
from pipefit.store import this_process

RULE = '{"metric":"test/accuracy","patience":5}'


def order(name="a", *, steps=500, identity="1", rules=None, **others):
    return RunOrder(
        "digits", name, identity, {"seed": identity}, "{}", steps, stop_rules=rules or {}, **others
    )


def trained(store, asked, *steps, ended=None, **others):
    """A run that has committed these steps and ended at the last one."""
    writer = store.acquire(asked, this_process(), ttl=60.0)
    writer.begin(-1)
    for step in steps:
        writer.commit(step, {"step": np.asarray(step)}, frozenset({"permanent"}))
    writer.end(RunState.FINISHED, None, steps[-1] if steps else None, "", ended)


def early(step=300):
    return Ended("early_stop", RULE, step, "no better test/accuracy for 5 validations")


def test_a_run_is_complete_when_the_checkpoint_of_its_last_step_is_there(store):
    assert not reached(store, order())
    trained(store, order(), 100, 500)

    assert reached(store, order())
    assert reached(store, order(steps=100))
    assert not reached(store, order(steps=900))


def test_a_run_that_a_rule_has_ended_is_complete_as_long_as_the_rule_is_the_same(store):
    rules = {"early_stop": RULE, "max_time": "60.0"}
    trained(store, order(rules=rules), 100, 300, ended=early())

    assert completed(store, [order(rules=rules)]) == {"a": 300}
    assert completed(store, [order(rules={"early_stop": RULE}, steps=900)]) == {"a": 300}
    assert completed(store, [order(rules=rules, steps=100)]) == {"a": 100}
    for others in ({}, {"max_time": "60.0"}, {"early_stop": RULE.replace("5", "9")}):
        assert not reached(store, order(rules=others))


def test_an_end_whose_checkpoint_is_gone_is_no_end(store):
    rules = {"early_stop": RULE}
    trained(store, order(rules=rules), 100, ended=early())

    assert not reached(store, order(rules=rules))


def test_many_runs_are_asked_for_at_once_and_end_each_at_its_own_step(store):
    rules = {"early_stop": RULE}
    trained(store, order("a", rules=rules), 300, ended=early())
    trained(store, order("b", rules=rules), 500)
    trained(store, order("c", rules=rules), 100)
    orders = [order(name, rules=rules) for name in "abcd"]

    assert completed(store, orders) == {"a": 300, "b": 500}
    assert last_steps(store, orders) == {"a": 300, "b": 500, "c": 500, "d": 500}
    assert last_steps(store, [order("a")]) == {"a": 500}


def test_a_run_beyond_its_end_says_what_to_do(store):
    trained(store, order(), 300)
    with pytest.raises(StoreError, match=r"train.steps = 200: .* is beyond it, at step 300"):
        reached(store, order(steps=200))


def test_other_data_do_not_matter_to_whoever_has_not_read_them(store):
    trained(store, order(data_digest="abc"), 500)

    assert reached(store, order())
    with pytest.raises(IdentityMismatch, match="seed"):
        reached(store, order(identity="2"))
    assert not reached(store, order(identity="2", allow_change=("seed",)))
