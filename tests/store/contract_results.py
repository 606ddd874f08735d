"""Outputs per example, artifacts, summaries, and the lists of what there is."""

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, reader, started, state, validation

from pipefit.errors import NotFound, StoreError
from pipefit.records import Best, RunState


def committed(store, name="a", step=10):
    return started(store, name).commit(step, state(1.0), PERMANENT)


def stored_outputs(store, batches, name="test"):
    writer = store.outputs_writer(COLLECTION, "a", name)
    for batch in batches:
        writer.add(batch)
    return writer.close()


class ResultsContract:
    def test_outputs_come_back_in_the_order_of_the_examples(self, store):
        checkpoint = committed(store)
        logits = np.arange(70.0, dtype=np.float32).reshape(35, 2)
        ids = np.arange(35)
        batches = [{"logits": logits[i : i + 8], "id": ids[i : i + 8]} for i in range(0, 35, 8)]
        key = stored_outputs(store, batches)
        with pytest.raises(NotFound, match="no stored outputs of set 'test'"):
            reader(store).outputs("test")
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=35), key)

        outputs = reader(store).outputs("test")
        assert (set(outputs.names), len(outputs)) == ({"logits", "id"}, 35)
        np.testing.assert_array_equal(outputs["logits"], logits)
        np.testing.assert_array_equal(outputs["id"], ids)
        assert sum(len(shard["id"]) for shard in outputs) == 35
        with pytest.raises(NotFound, match="no output 'softmax'"):
            outputs["softmax"]

    def test_many_outputs_are_never_all_in_memory(self, store):
        checkpoint = committed(store)
        batch = np.ones((100, 50_000), np.float32)  # 20 MB
        key = stored_outputs(store, ({"features": batch * i} for i in range(3)))
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=300), key)

        sizes, firsts = [], []
        for shard in reader(store).outputs("test", step=10):
            sizes.append(shard["features"].nbytes)
            firsts.append(shard["features"][:, 0])
        assert max(sizes) <= 17_000_000
        np.testing.assert_array_equal(np.concatenate(firsts), np.repeat([0.0, 1.0, 2.0], 100))

    def test_arrays_may_be_used_again_after_they_were_added(self, store):
        checkpoint = committed(store)
        writer = store.outputs_writer(COLLECTION, "a", "test")
        buffer = np.zeros((2, 1))
        for value in (1.0, 2.0):
            buffer[:] = value
            writer.add({"x": buffer})
        outputs = writer.close()
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=4), outputs)

        assert list(reader(store).outputs("test")["x"][:, 0]) == [1.0, 1.0, 2.0, 2.0]

    @pytest.mark.parametrize(
        "second",
        [
            {"x": np.ones((2, 4))},
            {"x": np.ones((2, 3), np.float32)},
            {"y": np.ones((2, 3))},
            {"x": np.ones((2, 3)), "y": np.ones(1)},
            {"x": np.ones(())},
            {},
        ],
        ids=["shape", "dtype", "name", "length", "scalar", "nothing"],
    )
    def test_all_batches_are_alike(self, store, second):
        committed(store)
        writer = store.outputs_writer(COLLECTION, "a", "test")
        writer.add({"x": np.ones((2, 3))})

        with pytest.raises(StoreError, match=r"wanted is x float64 \['examples', 3\]"):
            writer.add(second)

    def test_outputs_that_cannot_be_stored_are_named(self, store):
        committed(store)
        with pytest.raises(StoreError, match="'text' of dtype"):
            store.outputs_writer(COLLECTION, "a", "test").add({"text": np.array(["a"])})

    def test_no_examples_are_outputs_too(self, store):
        checkpoint = committed(store)
        key = stored_outputs(store, [{"x": np.ones((0, 3), np.float32)}])
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=0), key)

        assert reader(store).outputs("test")["x"].shape == (0, 3)

    def test_outputs_and_validation_are_of_the_same_set_and_examples(self, store):
        checkpoint = committed(store)
        key = stored_outputs(store, [{"x": np.ones((4, 1))}])

        with pytest.raises(StoreError, match=r"have 4 examples, the validation 5"):
            store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=5), key)
        other = validation(10, name="other", examples=4)
        with pytest.raises(StoreError, match="of set 'other'"):
            store.commit_validation(COLLECTION, "a", checkpoint, other, key)
        with pytest.raises(StoreError, match="says step 11"):
            store.commit_validation(COLLECTION, "a", checkpoint, validation(11, examples=4), key)
        assert store.validated(COLLECTION, [("a", "test", 10)]) == {}

    def test_aborted_outputs_are_gone(self, store):
        checkpoint = committed(store)
        writer = store.outputs_writer(COLLECTION, "a", "test")
        writer.add({"x": np.ones((4, 1))})
        key = writer.close()
        writer.abort()

        with pytest.raises(StoreError, match="are not stored"):
            store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=4), key)

    def test_outputs_of_the_newest_validated_step(self, store):
        writer = started(store)
        for step in (10, 20):
            info = writer.commit(step, state(1.0), PERMANENT)
            key = stored_outputs(store, [{"x": np.full((1, 1), step)}])
            store.commit_validation(COLLECTION, "a", info, validation(step, examples=1), key)
        info = writer.commit(30, state(1.0), PERMANENT)
        store.commit_validation(COLLECTION, "a", info, validation(30))

        assert reader(store).outputs("test")["x"] == 20
        assert reader(store).outputs("test", step=10)["x"] == 10
        with pytest.raises(NotFound, match="at step 30; steps that have them: 10, 20"):
            reader(store).outputs("test", step=30)

    def test_a_repeated_validation_replaces_numbers_and_outputs(self, store):
        checkpoint = committed(store)
        for value in (1.0, 2.0):
            key = stored_outputs(store, [{"x": np.full((1, 1), value)}])
            given = validation(10, accuracy=value, examples=1)
            store.commit_validation(COLLECTION, "a", checkpoint, given, key)

        assert reader(store).outputs("test")["x"] == 2.0
        assert list(reader(store).validations()["accuracy"]) == [2.0]

    def test_the_newest_artifact_is_kept(self, store):
        committed(store)
        assert reader(store).artifact("report.html") is None
        for step, data in ((10, b"first"), (10, b"second"), (20, b""), (15, b"last" * 200_000)):
            store.put_artifact(COLLECTION, "a", "report.html", step, data)
            assert reader(store).artifact("report.html") == data
        store.put_artifact(COLLECTION, "a", "loss.png", 10, b"png")
        assert reader(store).artifact("report.html") == b"last" * 200_000

    def test_summaries_are_plain_values(self, store):
        committed(store)
        summary = {
            "sets": {"test": {"top5.accuracy": np.float32(0.5), "$n": np.int64(3)}},
            "curve": np.arange(3),
            "note": None,
        }
        store.write_summary(COLLECTION, "a", 10, {"old": True})
        store.write_summary(COLLECTION, "a", 10, summary)

        assert store.summary(COLLECTION, "a", 10) == {
            "sets": {"test": {"top5.accuracy": 0.5, "$n": 3}},
            "curve": [0, 1, 2],
            "note": None,
        }
        assert store.summary(COLLECTION, "a", 20) is None
        assert store.summary(COLLECTION, "b", 10) is None
        with pytest.raises(StoreError, match=r"^x is .* of type object; it cannot be stored"):
            store.write_summary(COLLECTION, "a", 10, {"x": object()})

    def test_a_summary_counts_only_with_its_checkpoint(self, store):
        writer = started(store)
        writer.commit(10, state(1.0), PERMANENT)
        writer.commit(20, state(1.0), PERMANENT)
        store.write_summary(COLLECTION, "a", 20, {"accuracy": 0.5})
        with pytest.raises(NotFound, match="has not committed step 30"):
            store.write_summary(COLLECTION, "a", 30, {})
        writer.end(RunState.FINISHED, None, 20, "")
        again = started(store, start=10)

        assert store.summary(COLLECTION, "a", 20) is None
        again.commit(20, state(2.0), PERMANENT)
        assert store.summary(COLLECTION, "a", 20) is None

    def test_runs_are_listed(self, store):
        writer = started(store, steps=300)
        writer.commit(10, state(1.0), PERMANENT, Best("test/accuracy", "max", 0.75, 10))
        started(store, "b").end(RunState.FAILED, "diverged", 7, "")

        table = store.runs()
        assert list(table.columns) == [
            "collection", "name", "state", "step", "steps", "attempts", "updated", "reason", "best",
        ]  # fmt: skip
        assert list(table["name"]) == ["a", "b"]
        assert list(table["state"]) == ["RUNNING", "FAILED"]
        assert (table["step"][0], table["steps"][0], table["best"][0]) == (10, 300, 0.75)
        assert table[["step", "best"]].isna().iloc[1].all()
        assert table["reason"][1] == "diverged"
        assert table["updated"].dt.tz is not None
        assert len(store.runs(COLLECTION)) == 2
        assert list(store.runs("nothing-here").columns) == list(table.columns)

    def test_collections_are_those_with_runs(self, store):
        assert store.collections() == []
        assert len(store.runs()) == 0
        committed(store)
        store.statuses("nothing-here", ["a"])

        assert store.collections() == [COLLECTION]

    def test_a_run_that_is_not_there_is_named_with_the_nearest(self, store):
        committed(store, "digits-mlp")

        with pytest.raises(NotFound, match=r"no run 'digit-mpl'.*did you mean 'digits-mlp'\?"):
            store.run("digit-mpl", COLLECTION)
        with pytest.raises(NotFound, match="no run 'digits-mlp' in collection 'other'"):
            store.run("digits-mlp", "other")
        for ask in (
            lambda: store.outputs_writer(COLLECTION, "x", "test"),
            lambda: store.put_artifact(COLLECTION, "x", "report", 1, b""),
            lambda: store.write_summary(COLLECTION, "x", 1, {}),
        ):
            with pytest.raises(NotFound, match="there is no run 'x'"):
                ask()

    @pytest.mark.parametrize("name", ["", "a.b", "a/b", "x" * 65, "a b"])
    def test_names_of_collections_are_checked(self, store, name):
        with pytest.raises(StoreError, match="cannot name a collection"):
            store.runs(name)

    @pytest.mark.parametrize(
        "name", [{"$ne": None}, {"$gt": ""}, "../a", "a\0", "$where", "a/../a"]
    )
    def test_a_name_is_only_a_name(self, store, name):
        checkpoint = committed(store)
        store.put_artifact(COLLECTION, "a", "report", 10, b"report")
        key = stored_outputs(store, [{"x": np.ones((2, 1))}])
        store.commit_validation(COLLECTION, "a", checkpoint, validation(10, examples=2), key)
        for ask in (
            lambda: store.run(name, COLLECTION),
            lambda: store.rewind(COLLECTION, name, 10),
            lambda: store.export_run(COLLECTION, name),
            lambda: store.put_artifact(COLLECTION, name, "report", 10, b"mine"),
            lambda: store.write_summary(COLLECTION, name, 10, {}),
            lambda: store.outputs_writer(COLLECTION, name, "test"),
            lambda: reader(store).outputs(name),
            lambda: reader(store).values(name),
            lambda: store.run("a", name),
            lambda: store.garbage(name),
        ):
            with pytest.raises((StoreError, TypeError, AttributeError)):
                ask()
        assert store.lease(COLLECTION, name) is None
        if isinstance(name, str):
            assert reader(store).artifact(name) is None
        assert reader(store).artifact("report") == b"report"
