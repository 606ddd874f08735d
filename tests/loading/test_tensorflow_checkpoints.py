"""What TensorFlow saves, in all its formats, has the names and values of its variables."""

import shutil

import numpy as np
import pytest
from test_keras_files import assert_same, expected

from pipefit.errors import LoadError
from pipefit.loading import open_file
from pipefit.loading.object_graph import Node, describe


@pytest.fixture(scope="module")
def bundle():
    from pipefit.training.checkpoints import open_bundle  # loads TensorFlow

    return open_bundle


def by_role(path, bundle):
    """Names and values of each role, and the step."""
    with open_file(path, bundle=bundle) as source:
        infos = source.tensors()
        found = source.read(infos)
        for name, array in found.items():
            assert (infos[name].dtype, infos[name].shape) == (array.dtype.name, array.shape)
        roles = {role: {} for role in ("model", "optimizer", "other")}
        for name, array in found.items():
            roles[infos[name].role][name] = array
        return roles, source.step


@pytest.mark.parametrize("name", ["tf1_adam", "tf1_momentum"])
@pytest.mark.parametrize("version", ["version1", "version2"])
def test_a_saver_of_tensorflow_1_has_its_names_and_slots(saved, bundle, name, version):
    roles, step = by_role(saved / name / version, bundle)
    assert step == 3
    assert_same(roles["model"] | roles["optimizer"] | roles["other"], expected(saved, name))
    assert set(roles["model"]) == {"hidden1/weights", "hidden1/bias"}
    assert set(roles["other"]) == {"global_step", "hidden1/weights/ExponentialMovingAverage"}
    slots = ["Momentum"] if name == "tf1_momentum" else ["Adam", "Adam_1"]
    counters = set() if name == "tf1_momentum" else {"beta1_power", "beta2_power"}
    assert set(roles["optimizer"]) == counters | {
        f"hidden1/{variable}/{slot}" for variable in ("weights", "bias") for slot in slots
    }


@pytest.mark.parametrize(
    "name, step, others",
    [
        ("tf2", 70, {"optimizer/adam/learning_rate", "global_step", "save_counter"}),
        ("export", None, {"seed_generator/seed_generator_state"}),
        ("keras2_new", 2, {"optimizer/learning_rate", "save_counter"}),
        ("keras2_legacy", 2, {"save_counter"}),
        ("keras2_saved_model", 2, {"total", "count"}),
    ],
)
def test_tensorflow_2_calls_variables_by_their_own_names(saved, bundle, name, step, others):
    roles, said = by_role(saved / name, bundle)
    wanted = expected(saved, name)
    assert said == step
    assert_same(
        roles["model"] | roles["optimizer"],
        {own: array for own, array in wanted.items() if own not in others},
    )
    settings = {f"optimizer/adam/{word}" for word in ("beta_1", "beta_2", "decay", "learning_rate")}
    assert set(roles["other"]) - settings == others - settings


def test_variables_of_one_name_are_called_by_their_paths():
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    root = Node(children=[("a", 1), ("b", 2), ("c", 3), ("nowhere", 17)])
    same = [Node(variables=[("w", f"{path}{suffix}")]) for path in ("a", "b")]
    other = Node(variables=[("net/w", f"c{suffix}")], children=[("up", 0)])
    found = describe([root, *same, other])
    assert {key.removesuffix(suffix): named.name for key, named in found.items()} == {
        "a": "a",
        "b": "b",
        "c": "net/w",
    }


def test_the_states_of_two_optimizers_stay_apart():
    def optimizer(number):
        path = f"optimizer{number}/_iterations/.ATTRIBUTES/VARIABLE_VALUE"
        name = f"adam_{number}/iteration"
        return Node([("_iterations", 3 + number), ("_variables", 0)]), Node(
            variables=[(name, path)]
        )

    first, second = optimizer(0), optimizer(1)
    root = Node([("optimizer0", 1), ("optimizer1", 2)])
    found = describe([root, first[0], second[0], first[1], second[1]])
    assert sorted(found.values()) == [
        ("optimizer0/_iterations", "optimizer"),
        ("optimizer1/_iterations", "optimizer"),
    ]


@pytest.mark.parametrize("ending", [".index", ".data-00000-of-00001"])
def test_a_checkpoint_that_is_cut_or_changed_is_refused_in_one_line(
    saved, bundle, tmp_path, ending
):
    shutil.copytree(saved / "tf2", tmp_path / "run")
    path = tmp_path / "run" / f"ckpt-2{ending}"
    whole = path.read_bytes()
    middle = len(whole) // 2
    harmed = [whole[:middle], whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]]
    for data in (*harmed, None):
        path.unlink() if data is None else path.write_bytes(data)
        with (
            pytest.raises(LoadError) as error,
            open_file(tmp_path / "run" / "ckpt-2", bundle=bundle) as source,
        ):
            source.read(source.tensors())
        assert "\n" not in str(error.value)
        assert "ckpt-2" in str(error.value)


def test_only_what_is_asked_for_is_read(saved, bundle, tmp_path):
    """The bytes of the others may be damaged."""
    shutil.copytree(saved / "tf1_adam" / "version2", tmp_path / "run")
    wanted = expected(saved, "tf1_adam")
    path = tmp_path / "run" / "model.ckpt-3.data-00000-of-00001"
    other = wanted["hidden1/bias"].tobytes()
    path.write_bytes(path.read_bytes().replace(other, b"\xff" * len(other)))
    with open_file(tmp_path / "run", member="model.ckpt-3", bundle=bundle) as source:
        found = source.read(["hidden1/weights"])["hidden1/weights"]
        np.testing.assert_array_equal(found, wanted["hidden1/weights"])
        with pytest.raises(LoadError, match="cannot be read as a TensorFlow checkpoint"):
            source.read(["hidden1/bias"])


@pytest.mark.parametrize(
    "old, new, said",
    [
        (b"\x08\x01\x12\x08\x12\x02\x08\x04", b"\x08\x01\x12\x08\x12\x02\x08\x05", "cannot have"),
        (b"\x08\x01\x12\x08\x12\x02\x08\x04", b"\x08\x63\x12\x08\x12\x02\x08\x04", "99"),
    ],
)
def test_an_index_that_does_not_add_up_is_refused_before_tensorflow_sees_it(
    saved, tmp_path, old, new, said
):
    """Another shape, type or size: forged with right checksums, each would end the process."""
    from pipefit.training.bundles import check_index

    index = (saved / "tf1_adam" / "version2" / "model.ckpt-3.index").read_bytes()
    size = (saved / "tf1_adam" / "version2" / "model.ckpt-3.data-00000-of-00001").stat().st_size
    path = tmp_path / "x.index"
    path.write_bytes(index)
    check_index(path, [size])
    with pytest.raises(ValueError, match="lies outside of its data file"):
        check_index(path, [size - 1])
    assert old in index
    path.write_bytes(index.replace(old, new, 1))
    with pytest.raises(ValueError, match=said):
        check_index(path, [size])
