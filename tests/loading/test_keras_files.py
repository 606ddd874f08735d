"""Variables in files of Keras 3 and 2 have the values, and the names, that they have in Keras."""

import shutil
import zipfile

import h5py
import numpy as np
import pytest

from pipefit.errors import LoadError
from pipefit.loading import open_file

SLOTS = {"m": "momentum", "v": "velocity"}


def expected(saved, name):
    with np.load(saved / f"{name}.npz") as file:
        return {renamed(own): file[own] for own in file}


def renamed(name):
    """The name of a slot of Keras 2 in the words of Keras 3; other names stay."""
    parts = name.split("/")
    for slot, kind in SLOTS.items():
        if parts[0] == "Adam" and slot in (parts[1], parts[-1]):
            variable = [part for part in parts[1:] if part != slot]
            return f"optimizer/adam/{'_'.join(variable)}_{kind}"
    counters = {"iteration": "optimizer/iteration", "Adam/iter": "optimizer/adam/iteration"}
    return counters.get(name, name)


def contents(path):
    with open_file(path) as source:
        return source.step, source.tensors(), source.read(source.tensors())


def assert_same(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize(
    "name, step",
    [
        ("sequential.keras", 2),  # convolution, batch normalisation, Dense; with slots of Adam
        ("unpacked", 2),  # the same, saved as a folder
        ("keras2_new.h5", 2),
        ("keras2_legacy.h5", 2),
        ("keras2_weights.h5", None),
    ],
)
def test_every_variable_has_its_name_and_value(saved, name, step):
    said, infos, found = contents(saved / name)
    assert_same(found, expected(saved, name))
    assert said == step
    for own, info in infos.items():
        assert (info.dtype, info.shape) == (found[own].dtype.name, found[own].shape)
    roles = {own: info.role for own, info in infos.items()}
    settings = [own for own, role in roles.items() if role == "other"]
    assert all(own.endswith("/learning_rate") for own in settings)
    assert [own for own in roles if roles[own] == "optimizer"] == [
        own for own in roles if own.startswith("optimizer/") and own not in settings
    ]


def test_layers_of_most_kinds_and_layers_in_layers_have_the_paths_of_keras(saved):
    _, infos, found = contents(saved / "zoo.keras")
    model = {name: found[name] for name, info in infos.items() if info.role == "model"}
    assert_same(model, expected(saved, "zoo.keras"))


def test_the_keras_files_of_keras_2_have_its_names(saved):
    _, infos, found = contents(saved / "keras2.keras")
    model = {name: found[name] for name, info in infos.items() if info.role == "model"}
    assert_same(model, expected(saved, "keras2.keras"))
    assert {name for name in infos if name not in model} == {
        "metrics/mean/vars/0",
        "metrics/mean/vars/1",
    }


def test_a_file_of_weights_alone_says_layers_but_not_the_model_and_no_slots(saved):
    step, infos, found = contents(saved / "sequential.weights.h5")
    wanted = expected(saved, "sequential.weights.h5")
    model = {name: found[name] for name, info in infos.items() if info.role == "model"}
    of_net = {name: array for name, array in wanted.items() if name.startswith("net/")}
    assert_same(model, {name.removeprefix("net/"): array for name, array in of_net.items()})
    assert step == 2
    np.testing.assert_array_equal(
        found["optimizer/adam/2"], wanted["optimizer/adam/net_conv_kernel_momentum"]
    )


def test_without_names_of_layers_they_are_counted_by_class(saved, tmp_path):
    path = tmp_path / "old.weights.h5"
    shutil.copy(saved / "sequential.weights.h5", path)
    with h5py.File(path, "r+") as file:
        named = []
        file.visititems(lambda path, thing: named.append(path) if "name" in thing.attrs else None)
        for place in named:
            del file[place].attrs["name"]
    with open_file(path) as source:
        names = [name for name, info in source.tensors().items() if info.role == "model"]
    assert {name.partition("/")[0] for name in names} == {
        "conv2d",
        "batch_normalization",
        "dense",
        "dense_1",
    }


def test_variables_of_own_classes_have_numbers_where_the_file_has_no_names(saved):
    _, _, found = contents(saved / "subclassed.keras")
    wanted = expected(saved, "subclassed.keras")
    numbered = {
        "mine/0": wanted.pop("mine/scale"),
        "mine/dense_a/0": wanted.pop("mine/dense_a/kernel"),
        "mine/dense_a/1": wanted.pop("mine/dense_a/bias"),
    }
    assert_same(found, wanted | numbered)


def test_bfloat16_stays_what_it_is(saved):
    _, infos, found = contents(saved / "bfloat16.weights.h5")
    assert {info.dtype for info in infos.values()} == {"bfloat16"}
    assert_same(
        {name: array.astype(np.float32) for name, array in found.items()},
        expected(saved, "bfloat16.weights.h5"),
    )


def test_a_keras_file_that_was_zipped_again_is_read(saved, tmp_path):
    path = tmp_path / "compressed"  # kinds are told by what is in a file
    with (
        zipfile.ZipFile(saved / "sequential.keras") as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    _, _, found = contents(path)
    assert_same(found, expected(saved, "sequential.keras"))


def test_what_is_not_there_is_an_error_that_names_what_is_near(saved):
    with open_file(saved / "sequential.keras") as source:
        with pytest.raises(LoadError, match="no tensor 'net/conv/kernels'; it has net/conv/kernel"):
            source.read(["net/conv/kernels"])
        assert source.read(["net/conv/bias"])["net/conv/bias"].shape == (2,)
    with pytest.raises(LoadError, match=r"sequential\.keras was closed"):
        source.read(["net/conv/bias"])
