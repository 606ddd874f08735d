"""CSV and Parquet files: columns become fields, nothing is lost or guessed on the way."""

import gzip
import sys

import numpy as np
import pandas as pd
import pytest

from pipefit.data import csv, field_specs, parquet
from pipefit.errors import DataError

TEXT = """id,width,height,label,name
1,0.1,2,0,one
2,0.7,3,1,two
3,1e-3,4,1,drei
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(TEXT, encoding="utf-8")
    return path


def write(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def as_parquet(path, frame, **options):
    frame.to_parquet(path, engine="pyarrow", index=False, **options)
    return path


@pytest.fixture(params=["csv", "parquet"])
def read(request, path):
    """Reads the same table from either kind of file."""
    if request.param == "csv":
        return lambda **options: csv(path, **options)
    other = as_parquet(path.with_name("rows.parquet"), pd.read_csv(path))
    return lambda **options: parquet(other, **options)


class TestColumns:
    def test_every_column_is_a_field(self, read):
        fields = read().take(np.array([2, 0]))
        assert {name: value.tolist() for name, value in fields.items()} == {
            "id": [3, 1],
            "width": [0.001, 0.1],
            "height": [4, 2],
            "label": [1, 0],
            "name": ["drei", "one"],
        }
        assert [fields[name].dtype.kind for name in fields] == ["i", "f", "i", "i", "U"]

    def test_some_by_name(self, read):
        assert list(read(columns=["label", "id"]).fields) == ["label", "id"]

    def test_one_vector_of_several(self, read):
        source = read(columns={"x": ["height", "width"], "labels": "label"})
        assert source.fields["x"].tolist() == [[2, 0.1], [3, 0.7], [4, 0.001]]
        assert source.fields["labels"].tolist() == [0, 1, 1]

    def test_one_vector_by_a_pattern_in_the_order_of_the_file(self, read):
        source = read(columns={"x": "*i*h*", "texts": ["name", "name"]})
        assert source.fields["x"].tolist() == [[0.1, 2], [0.7, 3], [0.001, 4]]
        assert source.fields["texts"].tolist() == [["one"] * 2, ["two"] * 2, ["drei"] * 2]

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            (["lable"], "no column 'lable', the nearest is 'label'; there is id, width, height"),
            ({"x": "lable"}, "no column 'lable'"),
            ({"x": ["width", "depth"]}, "no column 'depth'"),
            ({"x": "pixel*"}, r"no column 'pixel\*'"),
            ("label", 'columns = "label" must be a list or a table'),
            ({"x": ["width", "name"]}, "field 'x': some of its columns hold texts and others"),
        ],
    )
    def test_that_are_not_there_or_do_not_fit(self, read, columns, problem):
        with pytest.raises(DataError, match=rf"rows\.\w+: .*{problem}"):
            read(columns=columns)


class TestTypes:
    def test_dtype_and_shape(self, read):
        columns = {"x": ["id", "width", "height", "label"], "labels": "label"}
        source = read(columns=columns, types={"x": "float32[2,2,1]", "labels": "uint8"})
        assert source.fields["x"].dtype == np.float32
        assert source.fields["x"][1].tolist() == [[[2.0], [np.float32(0.7)]], [[3.0], [1.0]]]
        assert source.fields["labels"].dtype == np.uint8

    @pytest.mark.parametrize(
        ("columns", "types", "problem"),
        [
            ("width", "int64", r"cannot be int64\[\]: 0.1 in row 1 has no equal there"),
            ("id", "bool", r"cannot be bool\[\]: 2 in row 2 has no equal"),
            ("name", "int64", r"cannot be int64\[\]: it holds texts, such as 'one'"),
            (["id", "height"], "float32[3]", "one example has 2 values, not 3"),
            (["id", "height"], "float32", "one example has 2 values, not 1"),
        ],
    )
    def test_nothing_is_lost(self, read, columns, types, problem):
        with pytest.raises(DataError, match=rf"rows\.\w+: field 'x': .*{problem}"):
            read(columns={"x": columns}, types={"x": types})

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [(300, "uint8"), (-1, "uint64"), (2**63, "int64"), (1e39, "float32"), (70000, "float16")],
    )
    def test_ranges(self, tmp_path, value, dtype):
        frame = pd.DataFrame({"x": [0, value]})
        path = as_parquet(tmp_path / "rows.parquet", frame)
        with pytest.raises(DataError, match=r"in row 2 has no equal there"):
            parquet(path, types={"x": dtype})

    def test_whole_floats_are_integers(self, tmp_path):
        path = write(tmp_path, "x\n1.0\n-3.0\n")
        assert csv(path, types={"x": "int32"}).fields["x"].tolist() == [1, -3]

    def test_of_no_field(self, read):
        with pytest.raises(DataError, match="types: there is no field 'lable', the nearest is"):
            read(columns={"label": "label"}, types={"lable": "int64"})

    def test_that_are_no_declarations(self, read):
        with pytest.raises(DataError, match=r"fields\.label = .*unknown dtype"):
            read(types={"label": "integer"})


class TestMissingValues:
    @pytest.mark.parametrize("cell", ["", "NaN", "NA"])
    def test_are_refused_with_column_and_row(self, tmp_path, cell):
        path = write(tmp_path, f"x,labels\n1,0\n2,{cell}\n3,{cell}\n")
        with pytest.raises(
            DataError, match=r"column 'labels': 2 of 3 values are missing .* row 2;"
        ):
            csv(path, types={"labels": "int64"})

    def test_of_columns_nobody_asked_for_do_not_matter(self, tmp_path):
        assert len(csv(write(tmp_path, "x,y\n1,\n2,\n"), columns=["x"])) == 2

    def test_texts_that_look_like_them_are_texts_if_declared(self, tmp_path):
        path = write(tmp_path, 'country,x\nNA,1\n,2\n007,3\n"a,b",4\n')
        source = csv(path, types={"country": "str"})
        assert source.fields["country"].tolist() == ["NA", "", "007", "a,b"]
        assert csv(path, types={"country": "bytes"}).fields["country"].tolist()[3] == b"a,b"
        with pytest.raises(DataError, match=r'column .country.* declare the field as "str"'):
            csv(path)

    @pytest.mark.parametrize("dtype", ["Int64", "float64", "boolean", "string"])
    def test_of_parquet(self, tmp_path, dtype):
        values = {"string": ["a", None], "boolean": [True, None]}.get(dtype, [1, None])
        path = as_parquet(tmp_path / "a.parquet", pd.DataFrame({"x": pd.array(values, dtype)}))
        with pytest.raises(DataError, match="column 'x': 1 of 2 values are missing"):
            parquet(path)


class TestCsv:
    def test_numbers_are_read_to_the_last_bit(self, tmp_path):
        numbers = np.random.default_rng(0).standard_normal(2000)
        path = write(tmp_path, "x\n" + "\n".join(map(repr, numbers.tolist())))
        assert (csv(path).fields["x"] == numbers).all()

    def test_other_separators_marks_and_compression(self, tmp_path):
        path = tmp_path / "rows.csv.gz"
        path.write_bytes(gzip.compress("\ufeffx;größe\r\n1;2\r\n".encode()))
        assert csv("rows.csv.gz", separator=";", archive=tmp_path).fields["größe"].tolist() == [2]

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"", "cannot be read: No columns"),
            (b"x,y\n", "has no rows"),
            (b"x,y\n1,2\n1,2,3\n", "cannot be read: .*line 3"),
            (b"x,y\n1,2,3\n4,5,6\n", "its rows have more cells than its header has names"),
            (b"x\n\xff\n", "cannot be read: .*utf-8"),
            (b"x\n1\na\n1\n", None),
        ],
    )
    def test_damage(self, tmp_path, data, problem):
        (tmp_path / "rows.csv").write_bytes(data)
        if problem is None:  # a column of texts then: declare it and it is refused
            with pytest.raises(DataError, match="it holds texts, such as '1'"):
                csv(tmp_path / "rows.csv", types={"x": "int64"})
            return
        with pytest.raises(DataError, match=rf"csv: .*rows\.csv: {problem}"):
            csv(tmp_path / "rows.csv")

    def test_no_file(self, path):
        with pytest.raises(DataError, match=r"there is no file .*absent\.csv"):
            csv(path.with_name("absent.csv"))


class TestParquet:
    def test_lists_of_one_length_are_vectors(self, tmp_path):
        frame = pd.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]})
        source = parquet(as_parquet(tmp_path / "a.parquet", frame), types={"x": "float32[2]"})
        assert source.fields["x"].tolist() == [[1, 2], [3, 4]]

    def test_lists_of_several_lengths_are_refused(self, tmp_path):
        frame = pd.DataFrame({"x": [[1.0, 2.0], [3.0]]})
        with pytest.raises(DataError, match="column 'x': holds values of several lengths"):
            parquet(as_parquet(tmp_path / "a.parquet", frame))

    def test_bytes(self, tmp_path):
        path = as_parquet(tmp_path / "a.parquet", pd.DataFrame({"x": [b"a", b"\x00b"]}))
        assert parquet(path).fields["x"].tolist() == [b"a", b"\x00b"]
        path = as_parquet(tmp_path / "a.parquet", pd.DataFrame({"x": [b"a", b"b\x00"]}))
        with pytest.raises(DataError, match="the bytes of number 1 end with zero bytes"):
            parquet(path)

    def test_other_types_are_refused(self, tmp_path):
        frame = pd.DataFrame({"x": pd.to_datetime(["2024-01-01"])})
        with pytest.raises(DataError, match=r"column 'x': holds .*; give numbers, texts or bytes"):
            parquet(as_parquet(tmp_path / "a.parquet", frame))

    def test_categories_are_texts(self, tmp_path):
        frame = pd.DataFrame({"x": pd.Categorical(["b", "a", "b"])})
        path = as_parquet(tmp_path / "a.parquet", frame)
        assert parquet(path).fields["x"].tolist() == ["b", "a", "b"]

    def test_a_folder_with_parts(self, tmp_path):
        for year in (2023, 2024):
            folder = tmp_path / "table" / f"year={year}"
            folder.mkdir(parents=True)
            as_parquet(folder / "part.parquet", pd.DataFrame({"x": [year + 0.5]}))
        source = parquet("table", types={"year": "int64"}, archive=tmp_path)
        assert sorted(source.fields["x"].tolist()) == [2023.5, 2024.5]
        assert sorted(source.fields["year"].tolist()) == [2023, 2024]

    def test_no_parquet_file(self, path):
        with pytest.raises(DataError, match=r"parquet: .*rows\.csv: cannot be read"):
            parquet(path)

    def test_without_pyarrow_the_command_is_named(self, path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(DataError, match=r"not installed; python -m pip install 'pipefit\[par"):
            parquet(path)


def test_the_digest_is_of_the_content(path, tmp_path):
    first = csv(path)
    assert first.digest() == csv(write(tmp_path, TEXT.replace("0.7", "0.70"))).digest()
    assert first.digest() != csv(write(tmp_path, TEXT.replace("0.7", "0.71"))).digest()
    assert set(field_specs(first)) == {"id", "width", "height", "label", "name"}
