"""TFRecord files: any record by its index, what they hold, and what is wrong with them."""

import gzip
import shutil

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import SEED

from pipefit.data import examples
from pipefit.data.digests import content_digest
from pipefit.errors import DataError
from pipefit.training.feeding.pipeline import Feed, validation_batches
from pipefit.training.tfrecord import tfrecord

FEATURES = {"images": "float32[2,3]", "labels": "int64[]", "name": "str", "raw": "bytes"}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))


def fields_of(i):
    return {
        "images": np.arange(6 * i, 6 * i + 6, dtype=np.float32).reshape(2, 3),
        "labels": np.int64(i % 4),
        "name": "ä" * (i % 5) + "x",
        "raw": bytes([i % 250 + 1]) * (i % 7 + 1),
    }


def feature(value):
    value = np.asarray(value)
    if value.dtype.kind in "US":
        texts = [v.encode() if isinstance(v, str) else v for v in value.ravel().tolist()]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
    if value.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=value.ravel()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value.ravel()))


def record(fields):
    features = {name: feature(value) for name, value in fields.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, numbers, fields=fields_of):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in numbers:
            writer.write(record(fields(i)))
    return path


@pytest.fixture
def folder(tmp_path):
    """Three files of 5, 0 and 7 records."""
    place = tmp_path / "records"
    place.mkdir()
    write(place / "train-0.tfrecord", range(5))
    write(place / "train-1.tfrecord", [])
    write(place / "train-2.tfrecord", range(5, 12))
    (place / "README").write_text("no records")
    return place


def assert_examples(got, numbers):
    expected = [fields_of(i) for i in numbers]
    for name in FEATURES:
        values = [example[name] for example in expected]
        assert got[name].tolist() == np.array(values).tolist()


class TestReading:
    def test_any_records_in_any_order_of_all_files(self, folder):
        source = tfrecord(folder, features=FEATURES)
        assert len(source) == 12
        numbers = [11, 0, 5, 4, 4, 7]
        got = source.take(np.array(numbers))
        assert_examples(got, numbers)
        kinds = {name: value.dtype.kind for name, value in got.items()}
        assert kinds == {"images": "f", "labels": "i", "name": "U", "raw": "S"}

    def test_batches_are_those_of_any_indexed_source_and_continue_at_once(self, folder):
        feed = Feed(tfrecord(folder, features=FEATURES), seed=SEED, batch_size=4)
        order = examples(seed=SEED, start=10**9, count=12, n=12).reshape(3, 4)
        iterator = feed.iterator(10**9)
        for numbers in order:
            batch = next(iterator)
            assert batch["labels"].numpy().tolist() == [i % 4 for i in numbers]
            assert batch["images"].shape == (4, 2, 3)
            assert batch["raw"].numpy().tolist() == [fields_of(i)["raw"] for i in numbers]

    def test_a_validation_reads_each_once(self, folder):
        batches = validation_batches(tfrecord(folder, features=FEATURES), 5)
        labels = np.concatenate([batch["labels"].numpy() for batch in batches])
        assert labels.tolist() == [i % 4 for i in range(12)]

    @pytest.mark.parametrize("path", [None, "train-?.tfrecord", "train-2.tfrecord", "**/*-2*"])
    def test_files_of_an_archive(self, folder, path):
        source = tfrecord(path, features=FEATURES, archive=folder)
        assert len(source) == (7 if path and "2" in path else 12)

    def test_an_archive_that_is_not_unpacked_is_the_file(self, folder):
        source = tfrecord(features=FEATURES, archive=folder / "train-0.tfrecord")
        assert len(source) == 5

    def test_a_pattern_of_its_own(self, folder):
        assert len(tfrecord(f"{folder}/train-[02].*", features=FEATURES)) == 12

    def test_fields_may_have_other_names_than_features(self, folder):
        source = tfrecord(folder, features={"y": "int64[]"}, names={"y": "labels"})
        assert source.take(np.array([3]))["y"].tolist() == [3]

    @pytest.mark.parametrize(
        ("stored", "declared", "expected"),
        [
            (np.array([1, 200], np.int64), "uint8[2]", np.array([1, 200], np.uint8)),
            (np.array([0, 1], np.int64), "bool[2]", np.array([False, True])),
            (np.array([0.5, 2.0]), "float64[1,2]", np.array([[0.5, 2.0]])),
            (np.float32(0.1), "float16[]", np.float16(0.1)),
            (np.array([7, -1], "<i2").tobytes(), "int16[2]", np.array([7, -1], np.int16)),
            (np.array([0.25], "<f8").tobytes(), "float64[1]", np.array([0.25])),
            (np.array([9], np.uint8).tobytes(), "uint8[]", np.uint8(9)),
        ],
    )
    def test_numbers_of_other_types(self, tmp_path, stored, declared, expected):
        path = write(tmp_path / "a.tfrecord", [0], lambda _: {"v": stored})
        got = tfrecord(path, features={"v": declared}).take(np.zeros(1, np.int64))["v"][0]
        assert got.dtype == expected.dtype and got.tolist() == expected.tolist()


class TestIndex:
    def test_is_found_once_and_kept_while_the_files_stay(self, folder, monkeypatch):
        read = []
        dataset = tf.data.TFRecordDataset

        def counted(path):
            read.append(path)
            return dataset(path)

        monkeypatch.setattr("tensorflow.data.TFRecordDataset", counted)
        for _ in range(2):
            assert len(tfrecord(folder, features=FEATURES)) == 12
        assert len(read) == 3
        write(folder / "train-1.tfrecord", range(12, 15))
        assert len(tfrecord(folder, features=FEATURES)) == 15
        assert len(read) == 6

    def test_the_digest_is_that_of_the_content(self, folder, tmp_path):
        one = content_digest(tfrecord(folder, features=FEATURES))
        moved = shutil.copytree(folder, tmp_path / "elsewhere")
        assert content_digest(tfrecord(moved, features=FEATURES)) == one
        write(moved / "train-2.tfrecord", range(4, 12))
        assert content_digest(tfrecord(moved, features=FEATURES)) != one


class TestWrong:
    @pytest.mark.parametrize(
        ("features", "words"),
        [
            ({"image": "float32[2,3]"}, "no feature 'image', the nearest is 'images'; there is"),
            ({"images": "float32[7]"}, "train-0.tfrecord, record 0.* 6 but output shape: .7."),
            ({"images": "str"}, r"'images' holds numbers \(float_list\), declared is str"),
            ({"labels": "int46[]"}, r"tfrecord: features\.labels = .int46.*unknown dtype"),
            ({"raw": "int32[]"}, r"'raw' has 1 bytes; int32\[\] has 4"),
            ({}, "features must have every field"),
        ],
    )
    def test_features_are_named_at_the_start(self, folder, features, words):
        with pytest.raises(DataError, match=words):
            Feed(tfrecord(folder, features=features), seed=0, batch_size=4)

    def test_a_name_for_no_field(self, folder):
        with pytest.raises(DataError, match="features must have every field"):
            tfrecord(folder, features={"labels": "int64[]"}, names={"label": "labels"})

    def test_a_number_without_an_equal(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [3, 300], lambda i: {"v": np.int64(i)})
        source = tfrecord(path, features={"v": "uint8[]"})
        with pytest.raises(DataError, match=r"feature 'v': cannot be uint8.*300 in row 2"):
            source.take(np.array([0, 1]))

    @pytest.mark.parametrize(
        "fields", [{"labels": np.int64(1)}, {"images": np.zeros(5, np.float32)}]
    )
    def test_a_later_record_is_named_with_its_file(self, folder, fields):
        def others(i):
            return fields if i == 9 else fields_of(i)

        write(folder / "train-2.tfrecord", range(5, 12), others)
        source = tfrecord(folder, features={"images": "float32[2,3]"})
        with pytest.raises(DataError, match=r"Name: .*train-2.tfrecord, record 4, .*images"):
            source.take(np.array([1, 9]))

    def test_no_examples_within(self, tmp_path):
        with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
            writer.write(b"\xffno example")
        with pytest.raises(DataError, match=r"record 0: holds no tf\.train\.Example"):
            tfrecord(tmp_path / "a.tfrecord", features=FEATURES)

    def test_no_records(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [])
        with pytest.raises(DataError, match="no records; at least one"):
            tfrecord(path, features=FEATURES)

    @pytest.mark.parametrize("path", ["nowhere", "*.none", "train-0.tfrecord/x"])
    def test_no_files(self, folder, path):
        with pytest.raises(DataError, match=r"there are no files .*README, train-0\.tfrecord"):
            tfrecord(folder / path, features=FEATURES)

    @pytest.mark.parametrize(("position", "flip"), [(0, 1), (9, 1), (40, 1), (-1, 1), (-1, None)])
    def test_damaged_files_are_found_at_the_start(self, tmp_path, position, flip):
        """In a length, its checksum, a record, its checksum; and a cut off end."""
        path = write(tmp_path / "a.tfrecord", range(3))
        data = bytearray(path.read_bytes())
        if flip is None:
            del data[position:]
        else:
            data[position] ^= flip
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.tfrecord: .*it is damaged, or no TFRecord file"):
            tfrecord(path, features=FEATURES)

    def test_compressed_files_are_refused_with_what_to_do(self, folder):
        path = folder / "train-0.tfrecord"
        path.write_bytes(gzip.compress(path.read_bytes()))
        with pytest.raises(DataError, match=r"train-0.*compressed by gzip.*gunzip"):
            tfrecord(path, features=FEATURES)

    def test_files_that_were_cut_since(self, folder):
        source = tfrecord(folder, features=FEATURES)
        (folder / "train-2.tfrecord").write_bytes(b"")
        with pytest.raises(DataError, match=r"train-2\.tfrecord, record 0: cut off"):
            source.take(np.array([5]))
        (folder / "train-2.tfrecord").unlink()
        with pytest.raises(DataError, match=r"train-2\.tfrecord: cannot be read: No such file"):
            source.take(np.array([5]))
