"""Fields: declarations, and whether a source gives what was declared."""

import numpy as np
import pytest

from pipefit.data import Arrays, FieldSpec, check_declared, declared_specs, field_specs
from pipefit.errors import DataError


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("float32[8,8,1]", (8, 8, 1), "float32"),
        ("uint8[3, 4]", (3, 4), "uint8"),
        ("int64[]", (), "int64"),
        ("int64", (), "int64"),
        ("bool[2]", (2,), "bool"),
        ("str", (), "U"),
        ("bytes[4]", (4,), "S"),
    ],
)
def test_declarations(text, shape, dtype):
    assert declared_specs({"x": text}) == {"x": FieldSpec(shape, np.dtype(dtype))}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flaot32[8]", r"unknown dtype, nearest allowed is 'float32' \(allowed: bool, int8"),
        ("object", "unknown dtype"),
        ("float32[8,]", r'must be dtype\[shape\], such as "float32\[8,8,1\]"'),
        ("float32[-1]", "must be dtype"),
        ("float32(8)", "must be dtype"),
        ("", "must be dtype"),
        (3, "must be a text"),
        (None, "must be a text"),
    ],
)
def test_wrong_declarations(text, problem):
    with pytest.raises(DataError, match=rf"^fields\.images = .*{problem}"):
        declared_specs({"images": text})


@pytest.mark.parametrize(
    "text", ["float32[8,8,1]", "int64[]", "bool[2]", "str", "bytes", "str[3]", "complex64[1]"]
)
def test_a_field_is_shown_as_it_is_declared(text):
    assert str(declared_specs({"x": text})["x"]) == text


class TestCheckDeclared:
    FOUND = field_specs(Arrays(images=np.zeros((2, 8, 8), np.float32), name=["a", "b"]))

    def test_a_source_may_give_more(self):
        check_declared(self.FOUND, declared_specs({"name": "str"}), "S")
        check_declared(self.FOUND, declared_specs({"images": "float32[8,8]", "name": "str"}), "S")

    @pytest.mark.parametrize(
        ("declared", "problem"),
        [
            ({"images": "float32[8,8,1]"}, r"images is declared float32\[8,8,1\], and is float32"),
            ({"images": "float64[8,8]"}, r"images is declared float64\[8,8\], and is float32"),
            ({"name": "bytes"}, "name is declared bytes, and is str"),
            ({"labels": "int64"}, r"labels is declared int64\[\], and is missing"),
        ],
    )
    def test_names_the_field_with_both(self, declared, problem):
        with pytest.raises(DataError, match=problem) as error:
            check_declared(self.FOUND, declared_specs(declared), "Photos")
        assert str(error.value).startswith("Photos: ")
        assert "It gives images float32[8,8], name str; correct the" in str(error.value)

    def test_names_all_fields_that_differ(self):
        declared = declared_specs({"images": "int8", "labels": "int64"})
        with pytest.raises(DataError, match=r"images is declared.*; labels is declared"):
            check_declared(self.FOUND, declared, "S")


@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[s]", [("a", "i4")]])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(DataError, match=r"field 'x' is .*; give numbers, texts or bytes"):
        field_specs(Arrays(x=np.zeros(2, dtype)))
