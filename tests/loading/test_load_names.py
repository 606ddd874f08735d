"""What rules make of names."""

import pytest

from pipefit.errors import LoadError
from pipefit.loading.names import Rules, choose, of_state, usual
from pipefit.loading.slots import Slots

NAMES = ["net/conv1/weights", "net/conv2/weights", "net/fc/weights", "step"]


def test_names_are_chosen_by_what_the_source_calls_them_and_renamed_in_order():
    rules = Rules(
        strip_prefix="net/",
        rename={r"^conv(\d)/weights$": r"block\1/kernel", "^block": "encoder/block"},
        include=["^net/"],
        exclude=["/fc/"],
    )
    chosen = choose(NAMES, rules)
    assert chosen.names == {
        "net/conv1/weights": "encoder/block1/kernel",
        "net/conv2/weights": "encoder/block2/kernel",
    }
    assert chosen.left_out == ["net/fc/weights", "step"]


@pytest.mark.parametrize(
    "rules, told",
    [
        (Rules(include=["^net/", "^conv1/"]), "include '^conv1/'"),
        (Rules(exclude=["/fcc/"]), "exclude '/fcc/'"),
        (Rules(strip_prefix="model/"), "strip_prefix 'model/'"),
        (Rules(rename={"conv": "c", "^conv": "d"}), "rename '^conv'"),
        # What is left out is not renamed, so this does nothing.
        (Rules(rename={"fc": "head"}, exclude=["fc"]), "rename 'fc'"),
    ],
)
def test_a_rule_that_matches_nothing_is_refused(rules, told):
    with pytest.raises(LoadError) as error:
        choose(NAMES, rules, "load[1]")
    assert str(error.value).startswith(f"load[1]: {told} matches none of the names")
    assert "net/conv1/weights" in str(error.value)


def test_two_tensors_never_get_one_name():
    with pytest.raises(LoadError, match="net/conv1/weights and net/conv2/weights would both be"):
        choose(NAMES, Rules(rename={r"\d": ""}))


@pytest.mark.parametrize(
    "tensorflow, keras",
    [
        ("hidden1/weights", "hidden1/kernel"),
        ("hidden1/biases:0", "hidden1/bias"),
        ("hidden1/W", "hidden1/kernel"),
        ("hidden1/b", "hidden1/bias"),
        ("conv1/BatchNorm/moving_variance", "conv1_bn/moving_variance"),
        ("conv1/BatchNorm/gamma", "conv1/batch_normalization/gamma"),
        ("BatchNorm_1/beta", "batch_normalization_1/beta"),
    ],
)
def test_usual_names_are_the_same(tensorflow, keras):
    assert usual(tensorflow) == usual(keras)


def test_other_names_are_not():
    assert usual("conv1/BatchNorm/beta") != usual("conv1/bias")
    assert usual("batch_normalization_1/beta") != usual("batch_normalization_2/beta")
    assert usual("hidden1/weights/Momentum") != usual("hidden1/kernel")


def test_the_state_of_a_run_has_variables_by_their_paths():
    names = [
        "model/out/kernel", "model/drop/seed_generator/seed_generator_state",
        "optimizer/adam/iteration", "average/out/kernel", "loss_scale/scale", "generator/noise/rng",
        "run/step",
    ]  # fmt: skip
    assert list(of_state(names).values()) == [
        ("out/kernel", "model"),
        ("drop/seed_generator/seed_generator_state", "other"),
        ("optimizer/adam/iteration", "optimizer"),
        ("average/out/kernel", "optimizer"),
        ("loss_scale/scale", "optimizer"),
        ("generator/noise/rng", "other"),
        ("run/step", "other"),
    ]


@pytest.mark.parametrize(
    "name, slot",
    [
        ("optimizer/adam/a_b_kernel_velocity", ("a/b/kernel", "adam/velocity")),
        ("optimizer/adam_3/a_momentum", ("a", "adam/momentum")),
        ("optimizer/head/sgd/a_momentum", ("a", "sgd/momentum")),
        ("average/a", ("a", "average")),
        ("a/b/kernel/Adam", ("a/b/kernel", "adam/momentum")),
        ("train/a/b/kernel/Adam_1", ("a/b/kernel", "adam/velocity")),
        ("a/Momentum", ("a", "Momentum")),
        ("optimizer/a/b/kernel/Momentum", ("a/b/kernel", "Momentum")),
        ("optimizer/adam/iteration", None),
        ("c/Adam", None),
    ],
)
def test_slots_are_known_by_their_variables(name, slot):
    assert Slots(["a", "a/b/kernel"]).of(name) == slot
