"""Damaged and hostile files: one line that names the file, soon, with little memory."""

import io
import json
import resource
import stat
import tarfile
import time
import zipfile

import h5py
import numpy as np
import pytest
from numpy.lib import format as npy
from safetensors.numpy import save_file

from pipefit.errors import LoadError
from pipefit.loading import apart, filesource, open_file


def refusal(path, names=None):
    """What is said to whoever reads the file; it must be one line, with the file's name."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    with pytest.raises(LoadError) as error, open_file(path) as source:
        source.read(source.tensors() if names is None else names)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 1500
    assert path.name in text
    assert time.monotonic() - begin < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
    return text


# ---- safetensors ----


def safetensors(path, header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape=(4,)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 16), "b": entry(8, 16, (2,))},  # overlap
        {"a": entry(0, 4_000_000_000, (1_000_000_000,))},  # beyond the file
        {"a": entry(0, 16, (2**40, 2**40))},  # a shape of another size
        {"a": entry(0, 16, (-4,))},
        {"a": entry(0, 8, (2,))},  # less than there is
        b'{"a": ',
        b"{" + b"[" * 100_000,
    ],
)
def test_a_header_of_safetensors_that_lies(tmp_path, header):
    assert "not a whole safetensors file" in refusal(safetensors(tmp_path / "x", header))


def test_a_safetensors_file_that_is_cut(tmp_path):
    save_file({"x": np.ones(1000, np.float32)}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for size in (len(data) - 1, 200, 20):
        (tmp_path / "x").write_bytes(data[:size])
        assert "not a whole safetensors file" in refusal(tmp_path / "x")


@pytest.mark.parametrize(
    "text",
    [
        '{"weight_map": {"x": "../other"}}',
        '{"weight_map": {"x": "/etc/passwd"}}',
        '{"weight_map": 3}',
        "{" + '"a": {' * 100_000,
        '{"weight_map": {"x": "model", "y": "model"}}',
    ],
)
def test_an_index_of_safetensors_that_leads_outside_or_lies(tmp_path, text):
    save_file({"x": np.ones(2)}, tmp_path / "model")
    path = tmp_path / "x.safetensors.index.json"
    path.write_text(text)
    assert "not a whole index" in refusal(path)


# ---- .npz ----


def npz(path, shape, data, method=zipfile.ZIP_STORED):
    header = io.BytesIO()
    description = {"shape": shape, "fortran_order": False, "descr": "<f4"}
    npy.write_array_header_1_0(header, description)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", header.getvalue() + data)
    return path


@pytest.mark.parametrize("shape", [(2**40,), (2**31, 2**31), (5,), (3,), (-4,)])
def test_a_header_in_npz_that_lies(tmp_path, shape):
    assert "'x.npy'" in refusal(npz(tmp_path / "x.npz", shape, b"\0" * 16))


def test_an_npz_file_that_is_cut_or_changed(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(1000))
    data = (tmp_path / "x.npz").read_bytes()
    for damaged in (data[:-1], data[:500], data[:1000] + b"\xff" + data[1001:]):
        (tmp_path / "x.npz").write_bytes(damaged)
        refusal(tmp_path / "x.npz")


def test_what_is_small_only_because_it_is_compressed_is_not_expanded(tmp_path, monkeypatch):
    monkeypatch.setattr(filesource, "_FREE", 2**20)
    count = 2**23
    path = npz(tmp_path / "x.npz", (count,), bytes(4 * count), method=zipfile.ZIP_DEFLATED)
    assert "more than 200 times as much is refused" in refusal(path)


# ---- HDF5 ----


@pytest.fixture
def weights(tmp_path):
    """A file as Keras 3 lays it out; what is wrong with it is added by the test."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.ones(4, np.float32)
    path = tmp_path / "x.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_group("layers/dense/vars")["0"] = np.ones((2, 2), np.float32)
    return path


def external_link(file, other):
    file["layers/dense/vars/1"] = h5py.ExternalLink(other, "/secret")


def soft_link(file, other):
    file["layers/dense_1"] = h5py.SoftLink("/layers/dense")


def external_data(file, other):
    external = [(other, 0, 16)]
    file["layers/dense/vars"].create_dataset("1", (4,), "f4", external=external)


def virtual_dataset(file, other):
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(other, "secret", (4,))
    file["layers/dense/vars"].create_virtual_dataset("1", layout)


def a_group_in_itself(file, other):
    file["layers/dense/inner"] = file["layers"]
    file["layers/dense/outer"] = file["layers"]


def a_shape_without_values(file, other):
    file["layers/dense/vars"].create_dataset("1", (2**44,), "f4", chunks=(2**20,))


@pytest.mark.parametrize(
    "harm, said",
    [
        (external_link, "/layers/dense/vars/1 is a link"),
        (soft_link, "/layers/dense_1 is a link"),
        (external_data, "/layers/dense/vars/1 lies in other files"),
        (virtual_dataset, "/layers/dense/vars/1 lies in other files"),
        (a_group_in_itself, "has several names"),
        (a_shape_without_values, "more than 200 times as much is refused"),
    ],
)
def test_hdf5_is_not_left_nor_believed(weights, tmp_path, harm, said):
    with h5py.File(weights, "r+") as file:
        harm(file, str(tmp_path / "other.h5"))
    assert said in refusal(weights)


def test_an_hdf5_file_that_is_cut(weights):
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "not a whole HDF5 file: " in refusal(weights)


def test_an_hdf5_file_that_keeps_its_library_busy_forever(saved, tmp_path, monkeypatch):
    """A text that is its own successor in the heap of texts."""
    monkeypatch.setattr(apart, "OPENING_SECONDS", 1)
    data = bytearray((saved / "sequential.weights.h5").read_bytes())
    heap = data.index(b"GCOL") + 16
    assert data[heap : heap + 2] == b"\1\0"
    # The length of the first text: the library then looks for the next one where it is already.
    data[heap + 8 : heap + 16] = (2**64 - 16).to_bytes(8, "little")
    path = tmp_path / "busy.weights.h5"
    path.write_bytes(data)
    assert "cannot bear it (its process ended with SIGXCPU)" in refusal(path)


def test_a_failure_of_the_process_itself_is_told(weights, monkeypatch):
    monkeypatch.setattr(apart, "OPENING_SECONDS", "soon")
    assert "exit code 1: TypeError" in refusal(weights)


# ---- archives ----


def keras(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


CONFIG = json.dumps({"class_name": "Sequential", "config": {"name": "net", "layers": []}})


def link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    "members, said",
    [
        ({"config.json": CONFIG, "model.weights.h5": b"", "../x": b""}, "has '..' in its name"),
        ({"config.json": CONFIG, link("model.weights.h5"): b"/etc/passwd"}, "symbolic link"),
        ({"config.json": CONFIG, "metadata.json": "{}"}, "it has no model.weights.h5"),
        ({"config.json": "[" * 10**6, "model.weights.h5": b""}, "do not describe a model"),
        ({"config.json": "[]", "model.weights.h5": b""}, "do not describe a model"),
        ({"config.json": CONFIG, "model.weights.h5": b"words"}, "not a whole HDF5 file"),
    ],
)
def test_keras_files_that_lead_outside_or_lack_what_they_need(tmp_path, members, said):
    assert said in refusal(keras(tmp_path / "x.keras", members))


def test_archives_that_are_cut(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(5000))
    for mode in ("w", "w:gz"):
        with tarfile.open(tmp_path / "x.tar", mode) as tar:
            tar.add(tmp_path / "x.npz", "x.npz")
        data = (tmp_path / "x.tar").read_bytes()
        (tmp_path / "x.tar").write_bytes(data[: len(data) // 2])
        assert "cannot be opened" in refusal(tmp_path / "x.tar")
