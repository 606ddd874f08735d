"""Plain values: they come back as they were, or are refused at once with their key."""

import copy
import math

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, acquire, reader, started, state, validation

from pipefit.errors import StoreError
from pipefit.records import Best, MetricBlock, RunState

EXACT = {
    "numbers": [0, -(2**63), 2**63 - 1, 2**53 + 1, 0.1, -0.0, 5e-324, 1e308],
    "none of them": [math.nan, math.inf, -math.inf, None, True, False],
    "": {"": [], "empty": {}},
    "a.b": {"c.d": {".": 1}},
    "$set": {"$x": {"$number": "nan", "$": "$y"}, "$$z": "$literal"},
    "1": {"2": "keys that look like numbers"},
    "zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf \N{SNOWMAN}": "\0\N{GRINNING FACE}\n",
    "deep": [[[[{"x": [{"y": [1, [2.5, "z"]]}]}]]]],
}
NUMPY = {
    "float32": np.float32(0.1),
    "int64": np.int64(2**53 + 1),
    "bool": np.bool_(True),
    "text": np.str_("a"),
    "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "nan": np.array([np.nan, np.inf], np.float16),
    "tuple": (1, (np.float64(2.5), "x")),
}
AS_PYTHON = {
    "float32": float(np.float32(0.1)),
    "int64": 2**53 + 1,
    "bool": True,
    "text": "a",
    "array": [[0, 1, 2], [3, 4, 5]],
    "nan": [math.nan, math.inf],
    "tuple": [1, [2.5, "x"]],
}
REFUSED = {
    "the key 1 of x.y is int;": {"x": {"y": {1: "a"}}},
    "the key None of x is NoneType;": {"x": {None: 1}},
    "the key ('a', 1) of x[1] is tuple;": {"x": [0, {("a", 1): 1}]},
    "the key 'x.a\\x00b' cannot": {"x": {"a\0b": 1}},
    "x is \"b'raw'\" of type bytes;": {"x": b"raw"},
    "x.y is '{1}' of type set;": {"x": {"y": {1}}},
    "x[0] is '1j' of type complex;": {"x": np.array([1j])},
    "x is '1.0' of type longdouble;": {"x": np.longdouble(1)},
    "x is '2020-01-01' of type datetime64;": {"x": np.datetime64("2020-01-01")},
    "x is 18446744073709551615, which has more than 64 bits;": {"x": np.uint64(2**64 - 1)},
    "x is '\\ud800', which is no Unicode text;": {"x": "\ud800"},
}


def identical(found, expected):
    """Equal in types, order and every bit."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        return all(identical(found[key], item) for key, item in expected.items())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        return all(map(identical, found, expected))
    assert type(found) is type(expected) and repr(found) == repr(expected)
    return True


def in_note(store, writer, value):
    writer.note({"event": "x", "said": value})
    return reader(store).document()["history"][-1]["said"]


def in_model(store, writer, value):
    writer.describe(value, {})
    return reader(store).document()["model"]


def in_progress(store, writer, value):
    writer.renew(value)
    return reader(store).document()["progress"]


def in_summary(store, writer, value):
    writer.commit(10, state(1.0), PERMANENT)
    store.write_summary(COLLECTION, "a", 10, value)
    return store.summary(COLLECTION, "a", 10)


PLACES = [in_note, in_model, in_progress, in_summary]


class PlainContract:
    @pytest.mark.parametrize("place", PLACES)
    def test_plain_values_come_back_as_they_are(self, store, place):
        writer = started(store)
        assert identical(place(store, writer, EXACT), EXACT)
        assert identical(place(store, writer, NUMPY), AS_PYTHON)

    @pytest.mark.parametrize("place", PLACES)
    def test_what_would_come_back_otherwise_is_refused_with_its_key(self, store, place):
        writer = started(store)
        before = place(store, writer, {"x": 1})
        for told, value in REFUSED.items():
            with pytest.raises(StoreError, match="cannot be stored: ") as raised:
                place(store, writer, value)
            assert str(raised.value).replace("said.", "").startswith(told)
        assert before == {"x": 1}

    def test_names_of_metrics_and_values_may_hold_anything(self, store):
        names = ["a.b", "$set", "$", "", "1", "a b/c", "\N{SNOWMAN}"]
        numbers = {name: i + 0.1 for i, name in enumerate(names)} | {"nan": math.nan}
        writer = started(store)
        writer.write_metrics(MetricBlock(1, {name: [n] for name, n in numbers.items()}))
        values = {f"{name}!": np.arange(i + 1) for i, name in enumerate(names)}
        writer.write_validation(validation(1, name="$s.t", values=values))
        found = reader(store)

        table = found.metrics()
        assert list(table) == list(numbers)
        for name, number in numbers.items():
            assert repr(table[name][1].item()) == repr(number)
            assert repr(found.values(name)[1].item()) == repr(number)
        for name, array in values.items():
            assert np.array_equal(found.values(f"$s.t/{name}")[1], array)

    def test_metrics_of_validations_are_the_same_numbers_or_refused(self, store):
        writer = started(store)
        kept = {"a.b": np.float32(0.1), "$x": 7, "": math.nan, "big": np.int64(2**53), "b": True}
        one = validation(10)
        writer.write_validation(type(one)("test", 10, kept, 100))
        (row,) = reader(store).validations().to_dict("records")
        for name, number in kept.items():
            assert row[name] == number or name == ""

        for name, bad in {
            "whole": 2**53 + 1, "array": np.int64(2**53 + 1), "text": "0.5", "none": None,
            "list": [1.0, 2.0], "complex": 1j, "long": np.longdouble(1) / 3, 5: 1.0,
        }.items():  # fmt: skip
            with pytest.raises(StoreError, match=f"{name!r} of the metrics of validation 'test'"):
                writer.write_validation(type(one)("test", 20, {name: bad}, 100))
        assert len(reader(store).validations()) == 1

    def test_long_reasons_and_notes_do_not_make_documents_grow(self, store):
        writer = started(store)
        with pytest.raises(StoreError, match=r"the note has .* most of them as its 'why'"):
            writer.note({"event": "x", "why": "y" * 30_000})
        writer.end(RunState.FAILED, "first line\n" + "y" * 20_000_000, 7, "")

        reason = reader(store).status().reason
        assert reason.startswith("first line\nyyy") and len(reason) < 21_000
        assert reason.endswith("(20000011 characters)")
        assert reader(store).attempts()[0].reason == reason

    def test_nothing_that_is_handed_over_is_changed(self, store):
        """Deeply: what a caller goes on using is as it was, after every call that writes."""
        plain = {**EXACT, "of numpy": NUMPY}
        given = {
            "parts": {"optimizer.learning_rate": np.float32(0.1), "layers": [1, (2, 3)]},
            "program": {"versions": {"numpy": "2"}},
            "stop_rules": {"early_stop": "{}"},
            "plain": plain,
            "columns": {
                "loss": np.arange(3.0), "big": np.ones((3, 40, 50), ">f4"), "text": ["a", "b", "c"],
            },
            "metrics": {"a.b": np.float32(0.5)},
            "values": {"roc": np.ones((100, 2)), "name": np.str_("x"), "small": [1, 2]},
            "tensors": {"w": np.arange(6.0).reshape(2, 3).T, "n": np.asarray(3)},
            "artifacts": {"t": bytearray(b"text")},
            "outputs": {"logits": np.ones((100, 4), np.float32)},
            "kinds": {},
        }  # fmt: skip
        before = copy.deepcopy(given)
        rules = {key: given[key] for key in ("program", "stop_rules")}
        writer = acquire(store, parts=given["parts"], **rules)
        writer.begin(-1)
        writer.renew(given["plain"])
        writer.write_metrics(MetricBlock(1, given["columns"]))
        one = validation(3, values=given["values"])
        one = type(one)("test", 3, given["metrics"], 100, values=given["values"])
        writer.write_validation(one)
        writer.note({"event": "x", **given["plain"]})
        writer.describe(given["plain"], given["artifacts"])
        best = Best("test/a.b", "max", 0.5, 3)
        info = writer.commit(3, given["tensors"], PERMANENT, best)
        given["kinds"][info.id] = before["kinds"][info.id] = frozenset({"best"})
        writer.retain(given["kinds"])
        outputs = store.outputs_writer(COLLECTION, "a", "test")
        outputs.add(given["outputs"])
        store.commit_validation(COLLECTION, "a", info, one, outputs.close())
        store.put_artifact(COLLECTION, "a", "t", 3, given["artifacts"]["t"])
        store.write_summary(COLLECTION, "a", 3, given["plain"])
        writer.end(RunState.FINISHED, None, 3, "")
        store.rewind(COLLECTION, "a", 3)

        same(given, before)


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, item in expected.items():
            same(found[key], item)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.flags.writeable == expected.flags.writeable
        assert found.strides == expected.strides and found.tobytes() == expected.tobytes()
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert repr(found) == repr(expected)
