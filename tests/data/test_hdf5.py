"""HDF5 files: rows are read as they are asked for."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from pipefit.data import FieldSpec, content_digest, field_specs, hdf5
from pipefit.errors import DataError

N = 500
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 8, 6, 3), np.uint8)
LABELS = np.random.default_rng(1).integers(0, 10, N)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))


@pytest.fixture(params=["contiguous", "chunked", "compressed"])
def path(request, tmp_path):
    options = {
        "contiguous": {},
        "chunked": {"chunks": (1, 8, 6, 3)},
        "compressed": {"chunks": (7, 8, 6, 3), "compression": "gzip", "shuffle": True},
    }
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("images", data=IMAGES, **options[request.param])
        file["labels"] = LABELS
    return tmp_path / "data.h5"


@pytest.mark.parametrize(
    "indices",
    [[0], [N - 1], [3, 4, 5, 6], [9, 2, 400, 3, 2, 2], [7] * 5, list(range(N))[::-1]],
    ids=["first", "last", "neighbours", "unsorted", "one again", "backwards"],
)
def test_rows_come_as_asked_for(path, indices):
    source = hdf5(path)
    assert len(source) == N
    fields = source.take(np.array(indices))
    assert fields.keys() == {"images", "labels"}
    assert fields["images"].dtype == np.uint8
    assert (fields["images"] == IMAGES[indices]).all()
    assert (fields["labels"] == LABELS[indices]).all()
    source.close()


def test_several_threads_read_at_once(path):
    source = hdf5(path)
    orders = [np.random.default_rng(i).permutation(N)[:50] for i in range(100)]
    with ThreadPoolExecutor(6) as pool:
        for order, fields in zip(orders, pool.map(source.take, orders), strict=True):
            assert (fields["images"] == IMAGES[order]).all()


def write(tmp_path, **datasets):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file[name.replace("__", "/")] = data
    return path


def test_only_the_rows_asked_for_are_read(tmp_path):
    """The others cannot be: their chunks are damaged."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=LABELS[:, None], chunks=(10, 1), fletcher32=True)
        offset = data.id.get_chunk_info(3).byte_offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"damaged!")
    source = hdf5(path)
    assert (source.take(np.array([29, 40]))["x"][:, 0] == LABELS[[29, 40]]).all()
    with pytest.raises(DataError, match=r"data\.h5: field 'x': rows 5 to 33 cannot be read: "):
        source.take(np.array([33, 5]))


def test_datasets_in_groups_and_other_names(tmp_path):
    path = write(tmp_path, train__x=np.zeros((3, 2)), test__x=np.ones((2, 2)), test__y=[1, 2])
    source = hdf5("data.h5", datasets={"points": "test/x", "labels": "/test/y"}, archive=tmp_path)
    assert field_specs(source)["points"] == FieldSpec((2,), np.dtype(float))
    assert source.take(np.array([1]))["labels"].tolist() == [2]
    with pytest.raises(
        DataError, match=r"no datasets at the top .* there is test/x, test/y, train"
    ):
        hdf5(path)
    with pytest.raises(DataError, match="no dataset 'test/z', the nearest is 'test/y'"):
        hdf5(path, datasets={"labels": "test/z"})
    with pytest.raises(DataError, match="no dataset 'test'"):
        hdf5(path, datasets={"labels": "test"})


def test_some_datasets_by_name(tmp_path):
    path = write(tmp_path, x=[1, 2], y=[3.0, 4.0], other=[1, 2, 3])
    assert hdf5(path, datasets=["x", "y"]).take(np.array([0])).keys() == {"x", "y"}
    with pytest.raises(DataError, match="no dataset 'z'"):
        hdf5(path, datasets=["z"])


def test_texts_bytes_truths_and_foreign_byte_orders(tmp_path):
    path = write(
        tmp_path,
        text=["ä", "longer", ""],
        data=np.array([b"a", b"bc", b"d"]),
        truth=np.array([True, False, True]),
        big=np.array([1, 2, 3], ">f4"),
    )
    fields = hdf5(path).take(np.array([2, 0]))
    assert fields["text"].tolist() == ["", "ä"]
    assert fields["data"].tolist() == [b"d", b"a"]
    assert fields["truth"].tolist() == [True, True]
    assert fields["big"].dtype == np.dtype("=f4") and fields["big"].tolist() == [3, 1]
    assert field_specs(hdf5(path))["text"] == FieldSpec((), np.dtype("U"))


def test_bytes_of_several_lengths(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=[b"a", b"longer", b""], dtype=h5py.string_dtype("ascii"))
    source = hdf5(tmp_path / "data.h5")
    assert source.take(np.array([1, 2, 0]))["x"].tolist() == [b"longer", b"", b"a"]
    assert field_specs(source)["x"] == FieldSpec((), np.dtype("S"))


def test_text_that_is_not_utf8(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=[b"\xff"], dtype=h5py.string_dtype("utf-8"))
    with pytest.raises(DataError, match="field 'x': a text is not UTF-8"):
        hdf5(tmp_path / "data.h5").take(np.array([0]))


def test_unequal_lengths_name_both(tmp_path):
    path = write(tmp_path, images=np.zeros((10, 2)), labels=np.zeros(9))
    with pytest.raises(DataError, match=r"hdf5: .*data\.h5: .*images has 10, labels has 9"):
        hdf5(path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (np.zeros(3, [("a", "i4"), ("b", "f4")]), "dataset 'x' holds"),
        (1.5, "'x' is a single value"),
        (np.zeros((0, 2)), "no examples in x"),
    ],
    ids=["compound", "single", "empty"],
)
def test_what_is_no_array_of_examples(tmp_path, data, problem):
    with pytest.raises(DataError, match=rf"hdf5: .*{problem}"):
        hdf5(write(tmp_path, x=data))


def test_no_hdf5_file(tmp_path):
    (tmp_path / "data.h5").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"hdf5: cannot read .*data\.h5"):
        hdf5(tmp_path / "data.h5")
    with pytest.raises(DataError, match="there is no file"):
        hdf5(tmp_path / "absent.h5")


def test_after_closing_the_error_is_ours(tmp_path):
    source = hdf5(write(tmp_path, x=[1, 2]))
    source.close()
    with pytest.raises(DataError, match="rows 1 to 1 cannot be read"):
        source.take(np.array([1]))


def test_the_digest_is_the_sha256_of_the_file(tmp_path):
    path = write(tmp_path, x=[1, 2])
    assert content_digest(hdf5(path)) == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
