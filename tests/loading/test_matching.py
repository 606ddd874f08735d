"""What sources have, matched to what a model has: all or nothing, unless allowed by name."""

import pytest

from pipefit.errors import LoadError
from pipefit.loading import TensorInfo
from pipefit.loading.matching import Offer, match
from pipefit.loading.names import Rules
from pipefit.loading.report import SourceFacts

SEED = "drop/seed_generator/seed_generator_state"


def info(*shape, dtype="float32", role="model"):
    return TensorInfo(dtype, shape, role)


def slot(*shape):
    return info(*shape, role="optimizer")


MODEL = {
    "enc/kernel": info(4, 3),
    "enc/bias": info(3),
    "head/kernel": info(3, 2),
    "head/bias": info(2),
}
STATE = {
    **MODEL,
    SEED: info(2, dtype="int64", role="other"),
    "optimizer/adam/iteration": info(dtype="int64", role="optimizer"),
    **{
        f"optimizer/adam/{name.replace('/', '_')}_{kind}": slot(*variable.shape)
        for name, variable in MODEL.items()
        for kind in ("momentum", "velocity")
    },
    "run/step": info(dtype="int64", role="other"),
    "run/position": info(dtype="int64", role="other"),
}


def offer(tensors, number=0, label="A", step=None, **details):
    rules = {k: details.pop(k) for k in list(details) if k in Rules.__dataclass_fields__}
    return Offer(
        SourceFacts(label, step, None, {}), tensors, Rules(**rules), where=f"load[{number}]",
        **details,
    )  # fmt: skip


def only(state, start):
    return {name: found for name, found in state.items() if name.startswith(start)}


def pairs(matches):
    return {m.name: (m.source, m.own, m.how) for m in matches}


def refused(report):
    with pytest.raises(LoadError) as error:
        report.check()
    return str(error.value)


def test_a_state_fits_itself_and_only_the_model_is_taken():
    report = match(STATE, [offer(STATE)])
    report.check()
    assert pairs(report.loads) == {name: (0, name, "exact") for name in MODEL}
    assert report.not_asked == [len(STATE) - len(MODEL)]


def test_everything_wrong_is_listed_at_once():
    tensors = {
        "enc/kernell": info(4, 3),
        "enc/bias": info(3, dtype="float64"),
        "head/kernel": info(2, 3),
        "head/bias": info(7),
        "extra": info(1),
    }
    text = refused(match(STATE, [offer(tensors)]))
    assert text.startswith("[[load]] does not fit: 1 missing, 3 mismatched, 2 unexpected; rename")
    assert "missing: enc/kernel; the nearest: enc/kernell" in text
    assert "head/kernel: float32[2, 3] in the source, float32[3, 2] in the model: another " in text
    assert "not transposed" in text
    assert "enc/bias: float64[3] in the source, float32[3] in the model: another dtype" in text
    assert "head/bias: float32[7] in the source, float32[2] in the model\n" in text
    assert "unexpected: extra of A" in text


def test_what_is_allowed_by_name_stays_as_it_is_or_is_converted():
    tensors = {
        "enc/kernel": info(4, 3, dtype="float64"),
        "enc/bias": info(3),
        "head/kernel": info(3, 7),
        "extra": info(1),
    }
    allowed = {"allow_missing": ["^head/bias"], "allow_unexpected": ["extra"]}
    report = match(STATE, [offer(tensors, allow_mismatch=["^head/", "^enc/k"], **allowed)])
    report.check()
    assert {m.name: m.converted for m in report.loads} == {
        "enc/kernel": "float64",
        "enc/bias": None,
    }
    text = report.text()
    assert "missing: head/bias (allowed: stays as it is initialised)" in text
    assert "enc/kernel float32[4, 3], converted from float64" in text
    assert "unexpected: extra of A (allowed: not used)" in text


def test_allowing_what_is_not_there_is_refused():
    allowed = {"allow_missing": ["^head"], "allow_unexpected": ["x"], "allow_mismatch": ["enc"]}
    text = refused(match(STATE, [offer(STATE, **allowed)]))
    assert text.startswith("[[load]] does not fit: 3 without effect")
    assert "load[0].allow_missing '^head': nothing of this name is missing; leave it out" in text


def test_a_source_of_which_nothing_is_taken_is_refused():
    allowed = {"allow_missing": ["."], "allow_unexpected": ["."]}
    report = match(STATE, [offer({"other/kernel": info(4, 3)}, **allowed)])
    assert refused(report).startswith("[[load]] takes nothing from A, as all of it is left out")


def test_the_names_of_tensorflow_1_are_found_and_told():
    tensors = {
        "enc/weights": info(4, 3), "enc/biases": info(3),
        "head/W": info(3, 2), "head/b": info(2),
    }  # fmt: skip
    report = match(STATE, [offer(tensors)])
    report.check()
    assert pairs(report.loads)["enc/kernel"] == (0, "enc/weights", "mapped")
    assert "head/bias float32[2] <- head/b, mapped by default" in report.text()
    assert "4 missing, 4 unexpected" in refused(match(STATE, [offer(tensors, mapping=False)]))


def test_a_name_that_may_be_two_variables_is_refused():
    wanted = {"a_bn/gamma": info(3), "a/bn/gamma": info(3)}
    text = refused(match(wanted, [offer({"a/BatchNorm/gamma": info(3)})]))
    assert "ambiguous: a/BatchNorm/gamma of A may be a_bn/gamma or a/bn/gamma; rename it" in text
    one = {"a/kernel": info(3)}
    text = refused(match(one, [offer({"a/weights": info(3), "a/W": info(3)})]))
    assert "a/kernel by a/weights of A and a/W of A; exclude or rename one" in text


def test_several_sources_share_a_model_and_a_variable_has_one_source():
    encoder = offer(STATE, include=["^enc/"])
    head = offer(STATE, 1, "B", include=["^head/"])
    report = match(STATE, [encoder, head])
    report.check()
    assert {m.name: m.source for m in report.loads} == {
        "enc/kernel": 0, "enc/bias": 0, "head/kernel": 1, "head/bias": 1,
    }  # fmt: skip

    both = offer(STATE, 1, "B")
    text = refused(match(STATE, [encoder, both]))
    assert "enc/kernel by enc/kernel of A and enc/kernel of B; exclude one, or give both an" in text
    report = match(STATE, [offer(STATE, include=["^enc/"], order=2), offer(STATE, 1, order=1)])
    report.check()
    assert {m.name: m.source for m in report.loads}["enc/bias"] == 0
    assert report.model.overridden == [(1, "enc/kernel"), (1, "enc/bias")]


def test_slots_follow_their_variables_and_are_strict():
    tensors = {
        name.replace("enc/", "old/enc/").replace("adam/enc_", "adam/old_enc_"): found
        for name, found in STATE.items()
    }
    whole = offer(tensors, optimizer=True, rename={"^old/": ""})
    report = match(STATE, [whole])
    report.check()
    assert pairs(report.optimizer.matched)["optimizer/adam/enc_kernel_velocity"] == (
        0, "optimizer/adam/old_enc_kernel_velocity", "slot",
    )  # fmt: skip
    # The counter belongs to the step.
    assert "optimizer/adam/iteration" not in pairs(report.loads)

    part = offer(tensors, optimizer=True, rename={"^old/": ""}, include=["enc"],
                 allow_missing=["^head/"])  # fmt: skip
    report = match(STATE, [part])
    report.check()
    assert len(report.optimizer.matched) == 4
    del tensors["optimizer/adam/old_enc_bias_velocity"]
    tensors["optimizer/adam/old_enc_bias_other"] = slot(3)
    text = refused(match(STATE, [whole]))
    assert "missing: optimizer: optimizer/adam/enc_bias_velocity" in text
    assert "unexpected: optimizer: optimizer/adam/old_enc_bias_other of A" in text


def test_slots_are_asked_of_some_sources_only():
    encoder = offer(STATE, include=["^enc/"], optimizer=True)
    report = match(STATE, [encoder, offer(STATE, 1, "B", include=["^head/"])])
    report.check()
    assert len(report.optimizer.matched) == 4
    assert all("/enc_" in m.name and m.source == 0 for m in report.optimizer.matched)


def test_the_slots_of_tensorflow_1_are_taken_if_they_mean_the_same():
    variables = {"enc/weights": info(4, 3), "enc/bias": info(3)}
    powers = {"beta1_power": slot(), "beta2_power": slot()}
    adam = {f"{name}/{kind}": slot(*found.shape) for name, found in variables.items()
            for kind in ("Adam", "Adam_1")}  # fmt: skip
    given = {"optimizer": True, "allow_missing": ["^head/"]}
    report = match(STATE, [offer({**variables, **powers, **adam}, **given)])
    report.check()
    assert pairs(report.optimizer.matched)["optimizer/adam/enc_kernel_velocity"][1] == (
        "enc/weights/Adam_1"
    )
    momentum = {f"{name}/Momentum": slot(*found.shape) for name, found in variables.items()}
    text = refused(match(STATE, [offer({**variables, **momentum}, **given)]))
    assert "optimizer: enc/kernel <- enc/weights/Momentum: TensorFlow 1's Momentum adds up" in text


def test_the_step_takes_position_counters_and_seeds_along():
    report = match(STATE, [offer(STATE, step=50)])
    assert report.course == []
    report = match(STATE, [_with_step(STATE)])
    report.check()
    assert {m.name for m in report.course} == {
        SEED, "optimizer/adam/iteration", "run/step", "run/position",
    }  # fmt: skip


def _with_step(tensors, number=0, step=50, **details):
    facts = SourceFacts("A", step, None, {})
    return Offer(facts, tensors, step=True, where=f"load[{number}]", **details)


def test_a_step_that_nobody_knows_or_two_know_is_refused():
    with pytest.raises(LoadError, match=r"load\[0\].step = true: A does not say at which step"):
        match(STATE, [_with_step(MODEL, step=None)])
    with pytest.raises(LoadError, match="step = true: several sources would give"):
        match(STATE, [_with_step(STATE), _with_step(STATE, 1)])
    report = match(STATE, [_with_step(STATE, order=1), _with_step(STATE, 1, order=2)])
    assert {m.source for m in report.course} == {1}
