"""Data sources: arrays in memory, what is checked of any source, and the digits."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from pipefit.data import Arrays, FieldSpec, check_fields, digits, field_specs
from pipefit.errors import DataError

ARCHIVE = Path(__file__).parents[2] / "configs" / "archives" / "optdigits.tar.gz"


class Source:
    """A source whose `take` is given."""

    def __init__(self, take, length=3):
        self.take = take
        self.length = length

    def __len__(self):
        return self.length


class TestArrays:
    def test_gives_the_examples_of_the_indices_in_their_order(self):
        source = Arrays(x=np.arange(8.0).reshape(4, 2), labels=[10, 11, 12, 13])
        taken = source.take(np.array([3, 0, 3]))
        assert len(source) == 4
        assert taken["x"].tolist() == [[6, 7], [0, 1], [6, 7]]
        assert taken["labels"].tolist() == [13, 10, 13]

    def test_unequal_lengths_name_both(self):
        with pytest.raises(DataError, match=r"images has 10, labels has 9") as error:
            Arrays(images=np.zeros((10, 2)), labels=np.zeros(9))
        assert "the same number of examples" in str(error.value)

    def test_a_scalar_has_no_examples(self):
        with pytest.raises(DataError, match="x has 3, y has 0"):
            Arrays(x=np.zeros(3), y=1.0)

    def test_no_fields(self):
        with pytest.raises(DataError, match="no fields"):
            Arrays()

    def test_no_examples(self):
        with pytest.raises(DataError, match="no examples in x, y"):
            Arrays(x=np.zeros((0, 3)), y=[])


class TestFieldSpecs:
    def test_are_those_of_one_example(self):
        source = Arrays(x=np.zeros((3, 2), np.float32), labels=np.zeros(3, np.int64))
        assert field_specs(source) == {
            "x": FieldSpec((2,), np.dtype(np.float32)),
            "labels": FieldSpec((), np.dtype(np.int64)),
        }

    def test_of_texts_have_no_length(self):
        short, long = Arrays(name=["a"]), Arrays(name=["a long one"])
        assert field_specs(short) == field_specs(long)
        assert field_specs(short) != field_specs(Arrays(name=[b"a"]))

    @pytest.mark.parametrize("thing", [object(), [1, 2], Arrays])
    def test_something_else_is_no_source(self, thing):
        with pytest.raises(DataError, match=r"is not a data source: it needs __len__\(\) and take"):
            field_specs(thing)

    def test_an_empty_source(self):
        with pytest.raises(DataError, match="Source has no examples"):
            field_specs(Source(lambda i: {"x": i}, length=0))

    @pytest.mark.parametrize("given", [None, [], {}, np.zeros(1)])
    def test_take_must_return_a_dict(self, given):
        with pytest.raises(DataError, match=r"Source: take\(\) must return a dict of arrays"):
            field_specs(Source(lambda i: given))

    def test_objects_are_refused(self):
        with pytest.raises(DataError, match="field 'x' holds Python objects"):
            field_specs(Source(lambda i: {"x": np.array([{}], object)}))

    @pytest.mark.parametrize("value", [np.zeros(2), np.float32(1)])
    def test_the_first_dimension_is_the_number_of_examples(self, value):
        with pytest.raises(DataError, match=r"field 'x' has shape .* for 1 examples; .* must be 1"):
            field_specs(Source(lambda i: {"x": value}))


class TestCheckFields:
    DECLARED = field_specs(Arrays(x=np.zeros((1, 2), np.float32), n=["a"]))

    def test_accepts_what_was_declared(self):
        fields = {"x": np.ones((3, 2), np.float32), "n": np.array(["abc", "d", ""])}
        assert check_fields(fields, 3, self.DECLARED, "S") == self.DECLARED

    @pytest.mark.parametrize(
        ("change", "got"),
        [
            ({"x": np.ones((3, 4), np.float32)}, r"x float32\[4\]"),
            ({"x": np.ones((3, 2), np.float64)}, r"x float64\[2\]"),
            ({"n": np.array([b"a", b"b", b"c"])}, "n bytes"),
            ({"more": np.ones(3)}, r"more float64\[\]"),
        ],
    )
    def test_says_what_came_and_what_was_expected(self, change, got):
        fields = {"x": np.ones((3, 2), np.float32), "n": np.array(["a", "b", "c"]), **change}
        with pytest.raises(DataError, match=got) as error:
            check_fields(fields, 3, self.DECLARED, "Photos")
        assert str(error.value).startswith("Photos: examples differ from the first one")
        assert "the first has x float32[2]" in str(error.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The unpacked archive of the digits."""
    folder = tmp_path_factory.mktemp("digits")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


class TestDigits:
    @pytest.mark.parametrize(
        ("split", "rows", "counts"),
        [
            ("train", 1437, [143, 146, 142, 146, 144, 145, 144, 143, 141, 143]),
            ("test", 360, [35, 36, 35, 37, 37, 37, 37, 36, 33, 37]),
        ],
    )
    def test_rows_shapes_and_labels(self, folder, split, rows, counts):
        source = digits(folder, split)
        images, labels = source.fields["images"], source.fields["labels"]
        assert len(source) == rows
        assert (images.shape, images.dtype) == ((rows, 8, 8, 1), np.float32)
        assert (labels.shape, labels.dtype) == ((rows,), np.int64)
        assert images.min() == 0 and images.max() == 1
        assert (images * 16 == np.round(images * 16)).all()
        assert np.bincount(labels).tolist() == counts

    def test_another_split(self, folder):
        with pytest.raises(DataError, match="split = 'valid': allowed are 'train', 'test'"):
            digits(folder, "valid")

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(DataError, match=r"cannot read .*optdigits\.csv"):
            digits(tmp_path, "train")

    @pytest.mark.parametrize("text", ["1,2,3\n", "a,b\n", ("17," + "0," * 63 + "1\n") * 1797])
    def test_a_file_with_something_else(self, tmp_path, text):
        (tmp_path / "optdigits.csv").write_text(text)
        with pytest.raises(DataError, match=r"optdigits\.csv"):
            digits(tmp_path, "train")
