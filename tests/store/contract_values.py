"""Values of any kind per step: as they were, each step once, read piece by piece."""

import numpy as np
import pytest
from actors import COLLECTION, ELSEWHERE, PERMANENT, images, reader, started, state, validation

from pipefit.errors import NotFound
from pipefit.records import MetricBlock, RunState

#: By name three values of which every bit counts.
EXACT = {
    "float16": np.array([np.nan, np.inf, 6e-8], np.float16),
    "float32": np.array([np.nan, -np.inf, 1e-45], np.float32),
    "float64": np.array([-0.0, 5e-324, 0.1]),
    "bool": np.array([True, False, True]),
    "int64": np.array([2**63 - 1, -(2**63), 2**53 + 1]),
    "uint8": np.array([0, 255, 7], np.uint8),
    "str": np.array(["", "zwölf", "a/b"]),
    "bytes": np.array([b"\xff\x00", b"", b"\x00"], object),
    "texts": np.array(["", "a\0", "\N{SNOWMAN}" * 300], object),
    "matrix": np.arange(12, dtype=np.int16).reshape(3, 2, 2),
    "names": np.array([["a", "bc"], ["", "d"], ["e", "f"]]),
    "empty": np.zeros((3, 0, 2), np.float32),
    "image": np.arange(6000, dtype=np.float32).reshape(3, 40, 50),
    "flags": np.arange(3000).reshape(3, 1000) % 3 == 0,
    "long names": np.array([[b"x" * 100] * 9, [b"y"] * 9, [b""] * 9]),
}


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
    return True


def counted(values):
    """Steps and the one number of which each array consists."""
    pairs = [(step, np.unique(array)) for step, array in values]
    assert all(len(numbers) == 1 for _, numbers in pairs)
    return {step: float(numbers[0]) for step, numbers in pairs}


class ValuesContract:
    @pytest.mark.parametrize("name", EXACT)
    def test_values_come_back_exactly(self, store, name):
        expected = EXACT[name]
        writer = started(store)
        writer.write_metrics(MetricBlock(1, {"loss": np.ones(2), name: expected[:2]}))
        writer.write_metrics(MetricBlock(3, {"loss": np.ones(1), name: expected[2:]}))

        values = reader(store).values(name)
        assert (values.name, len(values), values.steps.tolist()) == (name, 3, [1, 2, 3])
        for row, (step, value) in enumerate(values):
            assert step == row + 1
            assert same(value, expected[row, ...])
            assert same(values[step], expected[row, ...])
        assert list(reader(store).metrics()["loss"]) == [1.0] * 3

    def test_the_table_has_what_is_small_and_keeps_whole_numbers_whole(self, store):
        started(store).write_metrics(MetricBlock(1, EXACT))

        table = reader(store).metrics()
        assert set(table) == EXACT.keys() - {"texts", "image", "flags", "long names"}
        for name in ("bool", "int64", "uint8"):
            assert table[name].dtype == EXACT[name].dtype
        for name in ("float16", "float32", "float64", "bool", "int64", "uint8"):
            np.testing.assert_array_equal(table[name], EXACT[name])
        for name in ("str", "bytes"):
            assert list(table[name]) == list(EXACT[name])
        for row in range(3):
            assert same(table["matrix"].iloc[row], EXACT["matrix"][row])
            assert list(table["names"].iloc[row]) == list(EXACT["names"][row])

    def test_what_some_steps_lack_is_nan_in_the_table_and_not_among_the_values(self, store):
        columns = {
            "count": np.array([1, 2]),
            "large": np.array([2**53 + 1, 0]),
            "flag": np.array([True, False]),
            "name": np.array(["a", "b"]),
            "pair": np.ones((2, 2)),
        }
        writer = started(store)
        writer.write_metrics(MetricBlock(1, {"loss": np.ones(1)}))
        writer.write_metrics(MetricBlock(2, columns))

        table = reader(store).metrics()
        for name in columns:
            missing, *found = table[name]
            assert np.isnan(missing)
            for row in range(2):
                assert np.array_equal(found[row], columns[name][row])
            assert reader(store).values(name).steps.tolist() == [2, 3]
        assert reader(store).values("loss").steps.tolist() == [1]

    def test_a_column_that_is_large_only_at_times_is_read_as_values(self, store):
        writer = started(store)
        writer.write_metrics(MetricBlock(1, {"caption": ["a"], "loss": [1.0]}))
        writer.write_metrics(MetricBlock(2, {"caption": ["a" * 600], "loss": [1.0]}))

        assert list(reader(store).metrics()) == ["loss"]
        captions = {step: text.item() for step, text in reader(store).values("caption")}
        assert captions == {1: "a", 2: "a" * 600}

    def test_what_is_not_recorded_is_named_with_what_is(self, store):
        writer = started(store)
        with pytest.raises(NotFound, match="no value 'x'; there are: none yet"):
            reader(store).values("x")
        writer.write_metrics(images(1, 2))
        writer.write_validation(validation(2, values={"confusion": np.eye(3)}))

        message = "there are: image, loss, test/accuracy, test/confusion"
        with pytest.raises(NotFound, match=message):
            reader(store).values("confusion")
        with pytest.raises(NotFound, match="step 3 has no value 'image': 2 have, of 1 to 2"):
            reader(store).values("image")[3]

    def test_values_may_be_written_to_and_do_not_change_the_others(self, store):
        started(store).write_metrics(images(1, 2))
        values = reader(store).values("image")
        values[1][...] = 7

        assert counted(values) == {1: 1.0, 2: 2.0}

    def test_many_large_values_come_back_one_after_the_other(self, store):
        block = MetricBlock(1, {"image": np.arange(40.0).repeat(2**17).reshape(40, 2**17)})
        started(store).write_metrics(block)  # 1 MiB per step

        assert counted(reader(store).values("image")) == {s: s - 1.0 for s in range(1, 41)}

    def test_the_same_first_step_again_replaces_large_values(self, store):
        writer = started(store)
        writer.write_metrics(images(1, 10))
        writer.write_metrics(images(1, 5, value=-1.0))

        assert counted(reader(store).values("image")) == dict.fromkeys(range(1, 6), -1.0)

    def test_where_blocks_overlap_the_later_large_value_counts(self, store):
        writer = started(store)
        writer.write_metrics(images(1, 10))
        writer.write_metrics(images(5, 12, value=-1.0))
        writer.write_metrics(MetricBlock(3, {"loss": np.zeros(2)}))

        expected = {1: 1.0, 2: 2.0, **dict.fromkeys(range(5, 13), -1.0)}
        assert counted(reader(store).values("image")) == expected

    def test_large_values_of_steps_repeated_after_a_crash_replace_their_first_draft(self, store):
        first = started(store, owner=ELSEWHERE)
        first.write_metrics(images(1, 100))
        first.write_metrics(images(101, 200))
        first.commit(150, state(150.0), PERMANENT)
        first.end(RunState.INTERRUPTED, None, 200, "")
        assert len(reader(store).values("image")) == 200

        second = started(store, start=150)
        assert len(reader(store).values("image")) == 150
        second.write_metrics(images(151, 210, value=-1.0))
        expected = {step: float(step) for step in range(1, 151)}
        expected |= dict.fromkeys(range(151, 211), -1.0)
        assert counted(reader(store).values("image")) == expected

    def test_what_was_replaced_since_is_as_it_was_or_says_so(self, store):
        writer = started(store)
        writer.write_metrics(images(1, 2))
        values = reader(store).values("image"), reader(store).values("loss")
        writer.write_metrics(images(1, 2, value=-1.0))

        for old in values:
            try:
                assert np.all(old[1] == 1.0)
            except NotFound as error:
                assert "replaced just now: ask again" in str(error)

    def test_values_of_validations(self, store):
        writer = started(store)
        for step in (10, 20):
            values = {
                "confusion": np.full((3, 3), step),
                "roc": np.full((100, 2), step, np.float32),
                "threshold": np.float32(step),
                "class": np.array("cat", object),
                "raw": b"\x00\x01\x00",
                "count": np.int64(2**60 + step),
            }
            writer.write_validation(validation(step, accuracy=step / 100, values=values))
        writer.write_validation(validation(10, name="other"))

        run = reader(store)
        assert counted(run.values("test/confusion")) == {10: 10.0, 20: 20.0}
        assert counted(run.values("test/roc")) == {10: 10.0, 20: 20.0}
        assert run.values("test/roc")[10].dtype == np.float32
        assert counted(run.values("test/accuracy")) == {10: 0.1, 20: 0.2}
        assert run.values("test/raw")[20].item() == b"\x00\x01\x00"
        with pytest.raises(NotFound):
            run.values("other/confusion")
        table = run.validations().set_index(["set", "step"])
        assert {"confusion", "roc", "raw"}.isdisjoint(table.columns)
        assert list(table.loc["test", "threshold"]) == [10.0, 20.0]
        assert list(table.loc["test", "class"]) == ["cat", "cat"]
        assert list(table.loc["test", "count"]) == [2**60 + 10, 2**60 + 20]
        assert table.loc["other", ["threshold", "class", "count"]].isna().all(axis=None)

    def test_a_set_and_a_value_may_have_slashes_in_their_names(self, store):
        writer = started(store)
        writer.write_validation(validation(10, name="a", values={"b/c": np.array([1.0])}))
        writer.write_validation(validation(20, name="x/y", values={"z": np.array([2.0])}))

        assert counted(reader(store).values("a/b/c")) == {10: 1.0}
        assert counted(reader(store).values("x/y/z")) == {20: 2.0}

    def test_a_repeated_validation_replaces_its_values(self, store):
        writer = started(store)
        for value in (1.0, 2.0):
            writer.write_validation(validation(10, values={"roc": np.full(1000, value)}))
        assert counted(reader(store).values("test/roc")) == {10: 2.0}
        checkpoint = writer.commit(10, state(10.0), PERMANENT)
        for value in (3.0, 4.0):
            again = validation(10, values={"roc": np.full(1000, value), "count": np.int64(7)})
            store.commit_validation(COLLECTION, "a", checkpoint, again)
        writer.write_validation(validation(10, values={"roc": np.full(1000, 5.0)}))

        assert counted(reader(store).values("test/roc")) == {10: 4.0}
        (found,) = store.validated(COLLECTION, [("a", "test", 10)]).values()
        assert found.values == {"count": 7}

    def test_values_of_a_validation_of_steps_made_again_do_not_count(self, store):
        writer = started(store)
        writer.commit(10, state(10.0), PERMANENT)
        writer.write_validation(validation(20, values={"roc": np.ones(1000)}))
        writer.end(RunState.INTERRUPTED, None, 20, "")
        again = started(store, start=10)

        with pytest.raises(NotFound):
            reader(store).values("test/roc")
        again.write_validation(validation(20, values={"roc": np.zeros(1000)}))
        assert counted(reader(store).values("test/roc")) == {20: 0.0}
