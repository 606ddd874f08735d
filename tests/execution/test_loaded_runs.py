"""Runs that begin with weights of others: what is taken, what is fresh, and that it is exact."""

import json
import os
import signal

import numpy as np
import pytest

import pipefit
from pipefit.errors import IdentityMismatch, LoadError, NotFound
from pipefit.execution import InlineExecutor
from pipefit.records import RunState
from pipefit.spec import Spec
from pipefit.store import open_store
from tests.execution.lab_runs import (
    Worker,
    assert_same,
    builder,
    carry_out,
    changed,
    experiment,
    order,
    results,
)
from tests.pipelines.conftest import _new_database

VALIDATION = {"test": {"data": builder("points", n=10, seed=1, batch_size=8), "metrics": {}}}
SAVE = {"checkpoint_every": 4, "metrics_every": 3, "validate_every": 4,
        "best": {"metric": "test/loss", "mode": "min"}}  # fmt: skip
DECAY = {"builder": "keras.optimizers.schedules:ExponentialDecay",
         "initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5}  # fmt: skip
ADAM = {"builder": "keras.optimizers:Adam", "learning_rate": DECAY}


def run_of(name, source=None, seed=0, steps=12, model="net", units=4, **rules):
    tables = {"load": [{"from": source, **rules}]} if source else {}
    spec = experiment(
        name=name, seed=seed, model=builder(model, units=units), loss=builder("plain"),
        optimizer=ADAM, save=SAVE, validation=VALIDATION, **tables,
    )  # fmt: skip
    return changed(spec, train={"metrics": {}, "steps": steps, "average": 0.5})


def load(spec, uri):
    """Do what LoadCheckpoint does; what was logged."""
    lines = []

    def see(event):
        lines.append(event.values.get("message", ""))

    InlineExecutor().run(order(spec, uri, kind="load"), see, lambda: None)
    return lines


def named(state, start):
    return {name: value for name, value in state.items() if name.startswith(start)}


def equal(one, other):
    assert one.keys() == other.keys() and one
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.fixture(scope="module")
def uri(mongo_uri):
    """A database with two trained runs: "a", and "b" of another seed."""
    with _new_database(mongo_uri) as uri:
        carry_out(run_of("a"), uri)
        carry_out(run_of("b", seed=5, steps=4), uri)
        yield uri


@pytest.fixture(scope="module")
def lab(uri):
    store = open_store(uri)
    return lambda name: store.run(name, "lab")


@pytest.fixture(scope="module")
def warm(uri, lab):
    """A run that began with weights of "a": its specification, and its status before training."""
    spec = run_of("warm", {"name": "a", "step": 8}, seed=1)
    with pytest.raises(LoadError, match=r"run 'warm' has \[\[load\]\], and nothing is loaded yet"):
        carry_out(spec, uri)
    lines = load(spec, uri)
    assert any("loaded 8 variables (0 stay as they are" in line for line in lines)
    status = lab("warm").status()
    assert load(spec, uri) == []  # it is there
    lines = carry_out(spec, uri)
    assert any("[[load]] was applied at its start" in line for line in lines)
    return spec, status


def test_a_warm_start_has_the_weights_and_nothing_else(lab, warm):
    state, before = lab("warm").weights(0), lab("a").weights(8)
    seeds = [name for name in state if name.endswith("seed_generator_state")]
    model = {name: v for name, v in named(state, "model/").items() if name not in seeds}
    equal(model, {name: before[name] for name in model})
    averaged = {f"model/{name[8:]}": value for name, value in named(state, "average/").items()}
    equal(averaged, {name: before[name] for name in averaged})
    assert all(not value.any() for value in named(state, "optimizer/").values())
    assert state["run/step"] == state["run/position"] == 0
    assert (state[seeds[0]] != before[seeds[0]]).any()  # of its own seed
    rates = [lab(name).metrics()["learning_rate"][1] for name in ("warm", "a")]
    assert rates[0] == rates[1]  # schedules begin anew


def test_a_warm_start_is_told_in_the_database(lab, warm):
    run, (_, status) = lab("warm"), warm
    assert (status.state, status.step) == (RunState.INTERRUPTED, 0)
    assert "ready to be trained" in status.reason
    event = next(e for e in run.document()["history"] if e["event"] == "load")
    assert event["steps"] == [8] and event["loaded"] == 8 and "lab/a at step 8" in event["from"][0]
    told = json.loads(run.artifact("load.json"))
    assert told["sources"][0]["digest"] == lab("a").checkpoint(8).sha256
    assert "hidden/kernel float32[4, 4]" in run.artifact("load.txt").decode()


def test_step_and_optimizer_continue_the_other_run_exactly(uri, lab):
    """A after 8 steps, loaded into B, which goes on to 12: as A trained to 12."""
    spec = run_of("continued", {"name": "a", "step": 8}, optimizer=True, step=True)
    load(spec, uri)
    continued = lab("continued")
    assert continued.checkpoints()["step"].tolist() == [8]
    equal(continued.weights(8), lab("a").weights(8))
    carry_out(spec, uri)

    equal(continued.weights(12), lab("a").weights(12))
    ours, theirs = (run.metrics()["loss"].loc[9:] for run in (continued, lab("a")))
    assert ours.index.tolist() == [9, 10, 11, 12] and ours.equals(theirs)


def test_the_step_alone_takes_the_schedule_along(uri, lab):
    spec = run_of("stepped", {"name": "a", "step": 8}, step=True)
    load(spec, uri)
    state, before = lab("stepped").weights(8), lab("a").weights(8)
    assert state["optimizer/adam/iteration"] == state["run/step"] == 8
    assert state["run/position"] == before["run/position"] == 64
    assert not state["optimizer/adam/hidden_kernel_momentum"].any()
    assert lab("stepped").status().state is RunState.INTERRUPTED
    only = run_of("only", {"name": "a", "step": 8}, step=True, steps=8)
    load(only, uri)
    carry_out(only, uri)  # there is nothing to do
    assert lab("only").status().state is RunState.FINISHED and len(lab("only").attempts()) == 1
    with pytest.raises(LoadError, match=r"train\.steps = 5: step = true continues after step 8 of"):
        load(run_of("short", {"name": "a", "step": 8}, step=True, steps=5), uri)


def test_the_encoder_of_one_run_and_the_head_of_another(uri, lab):
    spec = run_of("both", {"name": "a"}, include=["^(hidden|norm)/"], optimizer=True)
    head = {"from": {"name": "b", "step": "best"}, "include": ["^out/"], "optimizer": True}
    spec = changed(spec, load=[*spec.table()["load"], head])
    load(spec, uri)
    state, a, b = lab("both").weights(0), lab("a").weights(), lab("b").weights()
    for name, value in state.items():
        of_model = name.startswith(("model/", "optimizer/", "average/"))
        if of_model and not name.endswith(("iteration", "seed_generator_state")):
            np.testing.assert_array_equal(value, (b if "out" in name else a)[name])
    assert state["optimizer/adam/iteration"] == 0


def test_what_does_not_fit_leaves_nothing_behind(uri, lab):
    wide = run_of("wide", {"name": "a"}, units=6)
    with pytest.raises(LoadError) as error:
        load(wide, uri)
    text = str(error.value)
    assert text.startswith("[[load]] of run 'wide' does not fit: 7 mismatched;")
    assert "hidden/kernel: float32[4, 4] in the source, float32[4, 6] in the model" in text
    assert not open_store(uri).statuses("lab", ["wide"])
    lines = []
    with pytest.raises(LoadError):
        InlineExecutor().run(order(wide, uri, kind="describe"), lines.append, lambda: None)
    told = [event.values["text"] for event in lines if event.kind == "text"]
    assert "mismatched: hidden/kernel" in told[1] and "matched: out/bias float32[2]" in told[1]

    wide = changed(
        wide, load=[{**wide.table()["load"][0], "allow_mismatch": ["^(hidden|norm|out/k)"]}]
    )
    load(wide, uri)
    np.testing.assert_array_equal(
        lab("wide").weights()["model/out/bias"], lab("a").weights()["model/out/bias"]
    )


@pytest.mark.parametrize(
    "source, told",
    [
        ({"name": "aa"}, "no run 'aa' in collection 'lab'"),
        ({"name": "a", "collection": "lub"}, "its collections are: lab"),
        ({"name": "a", "step": 5}, "its steps are: 4, 8, 12"),
        ({"name": "a", "step": {"metric": "test/accuracy", "mode": "max"}}, "there are test/loss"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told(uri, source, told):
    with pytest.raises(LoadError) as error:
        load(run_of("none", source), uri)
    assert told in str(error.value)


def test_a_checkpoint_is_found_by_its_metric(uri, lab):
    losses = lab("a").validations().set_index("step")["loss"]
    for mode, wanted in (("min", losses.idxmin()), ("max", losses.idxmax())):
        spec = run_of(f"found-{mode}", {"name": "a", "step": {"metric": "test/loss", "mode": mode}})
        load(spec, uri)
        told = json.loads(lab(spec.name).artifact("load.json"))
        assert told["sources"][0]["step"] == wanted


def test_models_and_weights_come_to_python_by_one_call(uri, lab):
    model = pipefit.load_model("a", 8, collection="lab", uri=uri)
    before = lab("a").weights(8)
    for variable in model.variables:
        np.testing.assert_array_equal(variable.numpy(), before[f"model/{variable.path}"])
    assert model(np.zeros((2, 4), "float32"))["logits"].shape == (2, 2)
    newest = pipefit.load_model(lab("a"))
    equal({"v": newest.variables[0].numpy()}, {"v": lab("a").weights()["model/hidden/kernel"]})
    with pytest.raises(NotFound, match="run 'c': say in which collection it is; there are"):
        pipefit.load_model("c", uri=uri)

    found = pipefit.load_weights(lab("a"), step=8, rename={"^hidden": "enc"}, exclude="^norm/")
    assert sorted(found) == ["enc/bias", "enc/kernel", "out/bias", "out/kernel"]
    equal({"v": found["enc/kernel"]}, {"v": before["model/hidden/kernel"]})
    table = {"name": "a", "collection": "lab", "database": uri, "step": 8}
    equal(pipefit.load_weights(table, include="^out/"), named(found, "out/"))


def test_of_several_models_each_has_its_own_sources(uri, lab):
    tables = run_of("pair", {"name": "a", "step": 8}, steps=2).table()
    net = tables.pop("model")
    tables["models"] = {"x": net, "y": {**net, "load": []}}
    runs = pipefit.fit(Spec.of_tables(tables), uri=uri)

    assert [run.checkpoints()["step"].tolist() for run in runs.values()] == [[0, 2], [2]]
    for name in ("model/hidden/kernel", "model/norm/moving_mean"):
        equal({"v": runs["x"].weights(0)[name]}, {"v": lab("a").weights(8)[name]})


def test_other_rates_of_groups_are_used_and_written_down(uri, lab):
    """Changed after 4 steps: the output stands still from then on."""

    def why():
        return None

    groups = [{"match": "^out/", "scale": 0.5}]
    sgd = {"builder": "keras.optimizers:SGD", "learning_rate": 0.1}
    spec = changed(run_of("rates", steps=4), optimizer={**sgd, "groups": groups})
    carry_out(spec, uri)
    new = [{"match": "^out/", "scale": 0.0}, {"match": "^hidden/", "scale": 2.0}]
    spec = changed(spec, optimizer={**sgd, "groups": new}, train={"steps": 8})
    with pytest.raises(IdentityMismatch, match=r"optimizer\.groups"):
        carry_out(spec, uri)
    again = order(spec, uri, allow_change=("optimizer.groups",))
    InlineExecutor().run(again, lambda event: None, why)

    rates = lab("rates").metrics()
    assert np.allclose(rates["learning_rate/^out/"], [0.05] * 4 + [0.0] * 4)
    assert np.allclose(rates["learning_rate/^hidden/"].loc[5:], 0.2)
    (entry,) = lab("rates").document()["history"]
    (change,) = entry["changes"]
    assert change["key"] == "optimizer.groups"
    assert (json.loads(change["old"]), json.loads(change["new"])) == (groups, new)
    before, after = (lab("rates").weights(step) for step in (4, 8))
    equal(named(before, "model/out/"), named(after, "model/out/"))
    assert (before["model/hidden/kernel"] != after["model/hidden/kernel"]).any()

    lines = []
    late = changed(spec, load=[{"from": {"name": "a"}}], train={"steps": 9})
    again = order(late, uri, allow_change=("load",))
    InlineExecutor().run(again, lambda event: lines.append(event.values.get("message", "")), why)
    assert any("[[load]] is not applied: the run had begun without it" in line for line in lines)


def kill_before_the_commit():
    from pipefit.store.writer import MongoRunWriter

    MongoRunWriter.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)


def kill_after_the_commit():
    from pipefit.store.writer import MongoRunWriter

    MongoRunWriter.end = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)


def kill_at_a_checkpoint():
    from pipefit.store.writer import MongoRunWriter

    commit = MongoRunWriter.commit

    def killed(self, step, *rest):
        if step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, step, *rest)

    MongoRunWriter.commit = killed


def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(uri, lab, warm):
    spec = changed(warm[0], name="killed")
    first = Worker(spec, uri, prepare=kill_before_the_commit, kind="load")
    assert first.end() == (-signal.SIGKILL, None)
    assert lab("killed").status().step is None
    second = Worker(spec, uri, prepare=kill_after_the_commit, kind="load")
    assert second.end() == (-signal.SIGKILL, None)
    assert lab("killed").status().step == 0 and lab("killed").artifact("load.json")
    third = Worker(spec, uri, prepare=kill_at_a_checkpoint)
    assert third.end() == (-signal.SIGKILL, None)
    carry_out(spec, uri)

    assert_same(lab("warm"), lab("killed"))
    assert results(lab("killed"))["checkpoints"]["step"][0] == 0
