"""Metrics and validations: each step once, whatever happened."""

import numpy as np
import pytest
from actors import COLLECTION, ELSEWHERE, PERMANENT, block, reader, started, state, validation

from pipefit.errors import NotFound, StoreError
from pipefit.records import NOTHING, MetricBlock, RunState, Validation


def interrupted_at_200_committed_at_150(store):
    """A run whose first attempt wrote the steps 1..200 and committed 150."""
    first = started(store, owner=ELSEWHERE, ttl=60.0)
    first.write_metrics(block(1, 100))
    first.write_metrics(block(101, 200))
    first.commit(150, state(150.0), PERMANENT)
    first.write_validation(validation(200, accuracy=0.2))
    first.end(RunState.INTERRUPTED, None, 200, "")


class RecordsContract:
    def test_metrics_come_back_by_step(self, store):
        writer = started(store)
        writer.write_metrics(block(101, 200))
        writer.write_metrics(block(1, 100))

        table = reader(store).metrics()
        assert table.index.name == "step"
        assert list(table.index) == list(range(1, 201))
        assert list(table["loss"]) == list(range(1, 201))

    def test_a_run_without_metrics_has_an_empty_table(self, store):
        started(store)

        assert len(reader(store).metrics()) == 0
        assert reader(store).metrics().index.name == "step"
        assert len(reader(store).validations()) == 0
        assert len(reader(store).checkpoints()) == 0

    def test_numbers_survive_exactly(self, store):
        writer = started(store)
        loss = np.array([np.nan, np.inf, -np.inf, 1e-45, 0.1], np.float32)
        count = np.array([1, 2**53, -1, 0, 7])
        writer.write_metrics(MetricBlock(1, {"loss.total/$mean": loss, "count": count}))

        table = reader(store).metrics()
        np.testing.assert_array_equal(table["loss.total/$mean"].to_numpy(np.float32), loss)
        np.testing.assert_array_equal(table["count"], count)

    def test_a_metric_that_is_missing_in_some_blocks_is_nan_there(self, store):
        writer = started(store)
        writer.write_metrics(MetricBlock(1, {"loss": np.ones(2)}))
        writer.write_metrics(MetricBlock(3, {"loss": np.ones(2), "norm": np.zeros(2)}))

        table = reader(store).metrics()
        np.testing.assert_array_equal(table["norm"], [np.nan, np.nan, 0.0, 0.0])
        np.testing.assert_array_equal(table["loss"], np.ones(4))

    def test_the_same_first_step_again_replaces(self, store):
        writer = started(store)
        writer.write_metrics(block(1, 10))
        writer.write_metrics(block(1, 5, value=-1.0))

        assert list(reader(store).metrics()["loss"]) == [-1.0] * 5

    def test_where_blocks_overlap_the_later_one_counts(self, store):
        writer = started(store)
        writer.write_metrics(block(1, 10))
        writer.write_metrics(block(5, 12, value=-1.0))
        writer.write_metrics(block(3, 6, value=-2.0))

        table = reader(store).metrics()
        assert list(table.index) == list(range(1, 13))
        assert list(table["loss"]) == [1.0, 2.0] + [-2.0] * 4 + [-1.0] * 6

    def test_a_long_block_comes_back_whole(self, store):
        writer = started(store)
        writer.write_metrics(block(1, 200_000))
        writer.write_metrics(MetricBlock(200_001, {}))
        writer.write_metrics(MetricBlock(200_001, {"loss": np.zeros(0)}))

        table = reader(store).metrics()
        np.testing.assert_array_equal(table.index, np.arange(1, 200_001))
        np.testing.assert_array_equal(table["loss"], np.arange(1, 200_001))

    @pytest.mark.parametrize(
        "columns",
        [
            {"loss": np.ones(3), "norm": np.ones(2)},
            {"norm": np.float64(3.0)},
            {"loss": np.ones(3), "norm": np.ones(3, complex)},
            {"loss": np.ones(2000), "norm": np.array([object()] * 2000)},
        ],
        ids=["lengths", "no steps", "complex", "objects"],
    )
    def test_a_column_that_cannot_be_kept_is_named(self, store, columns):
        writer = started(store)
        with pytest.raises(StoreError, match="value 'norm' is"):
            writer.write_metrics(MetricBlock(1, columns))
        assert len(reader(store).metrics()) == 0

    def test_steps_repeated_after_a_crash_replace_their_first_draft(self, store):
        interrupted_at_200_committed_at_150(store)
        assert list(reader(store).metrics().index) == list(range(1, 201))

        second = started(store, start=150)
        # From here on the steps after 150 are those that the second attempt is going to make.
        assert list(reader(store).metrics().index) == list(range(1, 151))
        assert len(reader(store).validations()) == 0
        second.write_metrics(block(151, 200, value=-1.0))
        second.write_metrics(block(201, 250, value=-1.0))
        second.write_validation(validation(200, accuracy=0.9))

        table = reader(store).metrics()
        assert list(table.index) == list(range(1, 251))
        assert list(table["loss"][:150]) == list(range(1, 151))
        assert list(table["loss"][150:]) == [-1.0] * 100
        assert list(reader(store).validations()["accuracy"]) == [0.9]

    def test_a_run_killed_again_and_again_has_no_gap_and_no_double(self, store):
        start = NOTHING
        for attempt in range(1, 8):
            writer = started(store, start=start)
            first = max(start, 0) + 1
            writer.write_metrics(block(first, first + 6, value=attempt))
            writer.write_metrics(block(first + 7, first + 13, value=attempt))
            if attempt % 3:  # every third attempt dies before its checkpoint
                start = first + 9
                writer.commit(start, state(attempt), PERMANENT)
            writer.end(RunState.INTERRUPTED, None, None, "")

        table = reader(store).metrics()
        assert list(table.index) == list(range(1, 55))
        expected = [1.0] * 10 + [2.0] * 10 + [4.0] * 10 + [5.0] * 10 + [7.0] * 14
        assert list(table["loss"]) == expected

    def test_beginning_from_nothing_forgets_what_was(self, store):
        interrupted_at_200_committed_at_150(store)
        writer = started(store, start=NOTHING)

        assert len(reader(store).metrics()) == 0
        assert reader(store).status().step is None
        assert len(reader(store).checkpoints()) == 0
        writer.write_metrics(block(1, 10, value=3.0))
        assert list(reader(store).metrics()["loss"]) == [3.0] * 10

    def test_only_committed_steps_can_be_continued(self, store):
        interrupted_at_200_committed_at_150(store)
        with pytest.raises(NotFound, match="no committed checkpoint of step 200"):
            started(store, start=200)

        assert len(reader(store).metrics()) == 200

    def test_an_attempt_begins_once(self, store):
        interrupted_at_200_committed_at_150(store)
        writer = started(store, start=150)
        writer.begin(150)  # as after an answer that was lost

        with pytest.raises(StoreError, match="has begun after step 150"):
            writer.begin(NOTHING)

    def test_what_lies_before_the_beginning_is_refused(self, store):
        interrupted_at_200_committed_at_150(store)
        writer = started(store, start=150)

        with pytest.raises(StoreError, match="step 150 of run 'a' is too early"):
            writer.write_metrics(block(150, 160))
        with pytest.raises(StoreError, match="too early"):
            writer.write_validation(validation(149))
        with pytest.raises(StoreError, match="too early"):
            writer.commit(149, state(1.0), PERMANENT)

    def test_the_step_an_attempt_began_with_can_be_validated(self, store):
        interrupted_at_200_committed_at_150(store)
        started(store, start=150).write_validation(validation(150, accuracy=0.7))

        assert list(reader(store).validations()["accuracy"]) == [0.7]

    def test_validations_are_one_row_per_set_and_step(self, store):
        writer = started(store)
        writer.write_validation(validation(20, accuracy=0.2, seconds=1.5))
        writer.write_validation(validation(10, accuracy=0.1))
        writer.write_validation(validation(20, accuracy=np.float32(0.25), seconds=2.5))
        writer.write_validation(validation(20, accuracy=float("nan"), name="other"))

        table = reader(store).validations()
        assert list(table)[:2] == ["step", "set"]
        assert set(table) == {"step", "set", "examples", "checkpoint", "seconds", "accuracy"}
        assert list(table["set"]) == ["other", "test", "test"]
        assert list(table["step"]) == [20, 10, 20]
        np.testing.assert_array_equal(table["accuracy"], [np.nan, 0.1, 0.25])
        assert list(table["seconds"]) == [0.0, 0.0, 2.5]

    def test_a_metric_may_not_be_named_like_a_column(self, store):
        writer = started(store)
        with pytest.raises(StoreError, match="metric or a value named 'seconds'"):
            writer.write_validation(Validation("test", 1, {"seconds": 1.0}, examples=1))
        for name in ("seconds", "accuracy"):
            with pytest.raises(StoreError, match=f"metric or a value named '{name}'"):
                writer.write_validation(validation(1, values={name: np.ones(3)}))

    def test_a_committed_validation_replaces_the_one_made_in_training(self, store):
        writer = started(store)
        writer.write_validation(validation(10, accuracy=0.4))
        checkpoint = writer.commit(10, state(10.0), PERMANENT)
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, accuracy=0.6))
        writer.write_validation(validation(10, accuracy=0.5))  # does not push it out again

        table = reader(store).validations()
        assert list(table["accuracy"]) == [0.6]
        assert list(table["checkpoint"]) == [checkpoint.id]

    def test_completed_validations_are_answered_in_bulk(self, store):
        writer = started(store)
        checkpoint = writer.commit(10, state(10.0), PERMANENT)
        writer.write_validation(validation(20))
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, accuracy=0.6))

        wanted = [("a", "test", 10), ("a", "test", 20), ("a", "other", 10), ("b", "test", 10)]
        found = store.validated(COLLECTION, wanted)
        assert list(found) == [("a", "test", 10)]
        assert found["a", "test", 10].metrics == {"accuracy": 0.6}
        assert found["a", "test", 10].checkpoint == checkpoint.id
        assert store.validated("nothing-here", wanted) == {}

    def test_a_validation_survives_more_steps_and_the_removal_of_its_checkpoint(self, store):
        writer = started(store)
        checkpoint = writer.commit(10, state(10.0), PERMANENT)
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10))
        writer.end(RunState.FINISHED, None, 10, "")
        more = started(store, start=10, steps=900)
        more.commit(20, state(20.0), PERMANENT)
        more.retain({})

        assert ("a", "test", 10) in store.validated(COLLECTION, [("a", "test", 10)])

    def test_a_validation_of_steps_that_were_made_again_does_not_count(self, store):
        writer = started(store)
        writer.commit(10, state(10.0), PERMANENT)
        checkpoint = writer.commit(20, state(20.0), PERMANENT)
        store.commit_validation(COLLECTION, "a", checkpoint, validation(20))
        writer.end(RunState.FINISHED, None, 20, "")
        again = started(store, start=10)
        assert store.validated(COLLECTION, [("a", "test", 20)]) == {}
        again.commit(20, state(-20.0), PERMANENT)

        assert store.validated(COLLECTION, [("a", "test", 20)]) == {}
        with pytest.raises(NotFound, match="no longer, part of run 'a'"):
            store.commit_validation(COLLECTION, "a", checkpoint, validation(20))
