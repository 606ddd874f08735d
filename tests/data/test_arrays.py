"""Arrays in memory: where they lie, labels that are NaN, and npz files."""

import gc
import hashlib
import os
import struct
import tracemalloc

import numpy as np
import pytest

from pipefit.data import Arrays, content_digest, field_specs, npz
from pipefit.errors import DataError


class TestMemory:
    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "complex64"])
    def test_begins_where_tensorflow_can_share_it(self, dtype):
        given = np.arange(12).reshape(3, 4).astype(dtype)
        kept = Arrays(x=given).fields["x"]
        assert kept.ctypes.data % 64 == 0
        assert kept.flags.c_contiguous and kept.flags.writeable
        assert kept.dtype == given.dtype and (kept == given).all()

    @pytest.mark.parametrize(
        "given",
        [
            np.arange(12.0).reshape(3, 4).T,
            np.arange(12, dtype=">i4"),
            np.frombuffer(b"01234567", np.uint8),
            np.arange(20)[::2],
        ],
        ids=["transposed", "big-endian", "read-only", "strided"],
    )
    def test_numbers_stay_what_they_were(self, given):
        kept = Arrays(x=given).fields["x"]
        assert (kept == given).all() and kept.shape == given.shape
        assert kept.dtype.isnative and kept.ctypes.data % 64 == 0

    def test_what_is_fit_is_not_copied(self):
        first = Arrays(x=np.arange(12))
        assert Arrays(x=first.fields["x"]).fields["x"] is first.fields["x"]

    def test_empty_examples(self):
        assert Arrays(x=np.zeros((3, 0))).take(np.array([1]))["x"].shape == (1, 0)

    def test_a_file_is_in_memory_once(self, tmp_path):
        array = np.ones((8, 2**20), np.float32)
        np.savez(tmp_path / "a.npz", x=array, y=array)
        del array
        gc.collect()
        tracemalloc.start()
        source = npz(tmp_path / "a.npz")
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        size = sum(value.nbytes for value in source.fields.values())
        assert now < size * 1.01 and peak < size * 1.6


class TestLabels:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_nan_is_refused_with_its_place(self, dtype):
        labels = np.array([0, 1, np.nan, 2, np.nan], dtype)
        with pytest.raises(
            DataError, match=r"'labels' is NaN for 2 of 5 examples, first for .* 2;"
        ):
            Arrays(x=np.zeros(5), labels=labels)

    def test_some_of_several_labels_may_be_nan(self):
        source = Arrays(labels=np.array([[0.0, np.nan], [1.0, 2.0]]), x=[np.nan, 1])
        assert np.isnan(source.take(np.array([0]))["labels"]).tolist() == [[False, True]]


class TestNpz:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "data.npz"
        np.savez(path, x=np.arange(6.0).reshape(3, 2), labels=[0, 1, 1], names=["a", "bb", "c"])
        return path

    def test_all_arrays(self, path):
        source = npz(str(path))
        assert len(source) == 3
        assert {k: v.tolist() for k, v in source.take(np.array([2, 0])).items()} == {
            "x": [[4.0, 5.0], [0.0, 1.0]],
            "labels": [1, 0],
            "names": ["c", "a"],
        }

    def test_some_arrays_and_other_names(self, path):
        assert list(npz(path, arrays=["labels"]).fields) == ["labels"]
        assert npz(path, arrays={"points": "x"}).fields["points"].shape == (3, 2)

    def test_in_an_archive(self, path):
        assert len(npz("data.npz", archive=path.parent)) == 3

    @pytest.mark.parametrize("arrays", [["lables"], {"labels": "lables"}])
    def test_a_missing_array(self, path, arrays):
        with pytest.raises(DataError, match="no array 'lables', the nearest is 'labels'; there is"):
            npz(path, arrays=arrays)

    def test_names_must_be_a_list_or_a_table(self, path):
        with pytest.raises(DataError, match='arrays = "x" must be a list or a table of names'):
            npz(path, arrays="x")

    def test_unequal_lengths_name_the_file(self, tmp_path):
        np.savez(tmp_path / "a.npz", images=np.zeros(10), labels=np.zeros(9))
        with pytest.raises(DataError, match=r"a\.npz: .*images has 10, labels has 9"):
            npz(tmp_path / "a.npz")

    def test_python_objects_are_not_run(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "trapped"),)

        np.savez(tmp_path / "a.npz", x=np.array([Trap()], object))
        with pytest.raises(DataError, match=r"cannot read .*a\.npz: Object arrays"):
            npz(tmp_path / "a.npz")
        assert not (tmp_path / "trapped").exists()

    @pytest.mark.parametrize("data", [b"", b"nothing of the kind", b"PK\x03\x04 cut off"])
    def test_no_npz_file(self, tmp_path, data):
        (tmp_path / "a.npz").write_bytes(data)
        with pytest.raises(DataError, match=r"npz: cannot read .*a\.npz"):
            npz(tmp_path / "a.npz")

    def test_a_single_array(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(DataError, match="holds a single array"):
            npz(tmp_path / "a.npy")

    def test_no_file(self, path):
        with pytest.raises(DataError, match=r"no file .*absent\.npz; in .* there is: data\.npz"):
            npz(path.parent / "absent.npz")
        with pytest.raises(DataError, match=r"is a folder; .*: data\.npz"):
            npz(archive=path.parent)
        with pytest.raises(DataError, match=r'says no place; give path = "\.\.\.", or archive'):
            npz()
        with pytest.raises(DataError, match="must be relative: it is looked up in the archive"):
            npz(path, archive=path.parent)


class TestDigest:
    def test_depends_on_names_dtypes_shapes_and_numbers(self):
        variants = [
            {"x": np.arange(6, dtype=np.int64)},
            {"y": np.arange(6, dtype=np.int64)},
            {"x": np.arange(6, dtype=np.uint64)},
            {"x": np.arange(6, dtype=np.int64).reshape(3, 2)},
            {"x": np.array([0, 1, 2, 3, 5, 4])},
            {"x": np.arange(6), "y": np.arange(6)},
            {"x": ["a", "b"]},
            {"x": [b"a", b"b"]},
            {"x": ["ab", ""]},
        ]
        digests = {content_digest(Arrays(**fields)) for fields in variants}
        assert len(digests) == len(variants)
        assert all(digest.startswith("sha256:") and len(digest) == 71 for digest in digests)

    def test_is_the_same_for_the_same_content(self):
        first = Arrays(x=np.arange(6.0).reshape(2, 3), name=["a", "b"])
        wider = np.array(["a", "b"], dtype="U20")
        second = Arrays(name=wider, x=np.arange(6, dtype=">f8").reshape(2, 3))
        assert first.digest() == second.digest() == content_digest(first)

    def test_never_changes(self):
        """It is stored with every run: another one refuses its continuation."""
        source = Arrays(x=np.arange(4, dtype=np.float32).reshape(2, 2), name=["ä", ""])
        assert field_specs(source)["x"].shape == (2,)
        written = b"name\nU (2,)\n2\n\xc3\xa40\nx\n<f4 (2, 2)\n" + struct.pack("<4f", 0, 1, 2, 3)
        assert source.digest() == f"sha256:{hashlib.sha256(written).hexdigest()}"
