"""Checkpoints: what is committed is there, whole, and nothing else is."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, acquire, reader, started, state

from pipefit.errors import NotFound, StoreError
from pipefit.records import NOTHING, Best, RunState, TensorFacts

DTYPES = [
    np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint64,
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
]  # fmt: skip
SHAPES = [(), (3,), (2, 3), (2, 0, 3)]


def equal(found, expected):
    """Whether two states have the same names, dtypes, shapes and bytes."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        wanted = np.asarray(array)
        assert found[name].dtype == wanted.dtype.newbyteorder("="), name
        assert found[name].shape == wanted.shape, name
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    return True


class CheckpointsContract:
    def test_a_state_comes_back_as_it_was(self, store):
        tensors = {f"{np.dtype(d)} {s}": np.ones(s, d) for d in DTYPES for s in SHAPES}
        tensors["nan"] = np.array([np.nan, -0.0, np.inf], np.float32)
        writer = started(store)
        info = writer.commit(10, tensors, PERMANENT)

        assert equal(writer.read_checkpoint(info), tensors)
        assert equal(reader(store).weights(), tensors)
        assert equal(reader(store).weights(include=""), tensors)

    def test_the_order_of_the_memory_does_not_matter(self, store):
        grid = np.arange(12.0, dtype=np.float32).reshape(3, 4)
        tensors = {
            "transposed": grid.T,
            "strided": grid[::2, ::-1],
            "big endian": grid.astype(">f4"),
            "read only": np.broadcast_to(np.float32(2.0), (2, 2)),
        }
        started(store).commit(10, tensors, PERMANENT)

        assert equal(reader(store).weights(), tensors)
        assert equal(reader(store).weights(include="^strided$"), {"strided": grid[::2, ::-1]})

    @pytest.mark.parametrize(
        "tensor",
        [np.array(["a"]), np.array([object()]), np.ones(2, complex), np.array(["2020"], "M8")],
        ids=lambda tensor: str(tensor.dtype),
    )
    def test_what_cannot_be_stored_is_named(self, store, tensor):
        writer = started(store)
        with pytest.raises(StoreError, match="tensor 'layer/names' of dtype"):
            writer.commit(10, {**state(1.0), "layer/names": tensor}, PERMANENT)

        assert reader(store).status().step is None

    def test_the_state_can_be_written_to(self, store):
        writer = started(store)
        info = writer.commit(10, state(1.0), PERMANENT)

        for tensor in writer.read_checkpoint(info).values():
            tensor[...] = 2

    def test_a_commit_needs_little_memory_beside_the_state(self, store):
        tensors = {f"layer{i}/kernel": np.full(262_144, i, np.float32) for i in range(60)}
        writer = started(store)
        writer.commit(6, state(6.0), PERMANENT)
        tracemalloc.start()
        try:
            writer.commit(7, tensors, PERMANENT)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert peak < 40e6, "beside 63 MB of state"

    def test_a_commit_is_seen_at_once_by_all(self, store):
        writer = started(store)
        info = writer.commit(10, state(10.0), frozenset({"permanent", "best"}))

        assert reader(store).status().step == 10
        assert reader(store).checkpoint() == info
        assert writer.checkpoints() == [info]
        (row,) = reader(store).checkpoints().to_dict("records")
        assert (row["step"], row["id"], row["kinds"]) == (10, info.id, "best permanent")
        assert (row["size"], row["sha256"], row["fence"]) == (info.size, info.sha256, 1)
        assert (info.step, info.fence, info.kinds) == (10, 1, {"permanent", "best"})

    def test_checkpoints_are_listed_newest_first_and_read_by_step(self, store):
        writer = started(store)
        for step in (0, 10, 20):
            writer.commit(step, state(step), PERMANENT)

        assert [info.step for info in writer.checkpoints()] == [20, 10, 0]
        assert list(reader(store).checkpoints()["step"]) == [0, 10, 20]
        assert reader(store).weights()["step"] == 20
        assert reader(store).weights(step=10)["step"] == 10
        with pytest.raises(NotFound, match=r"step 15; its steps are: 0, 10, 20"):
            reader(store).weights(step=15)

    def test_a_run_without_checkpoint_has_no_weights(self, store):
        started(store)
        with pytest.raises(NotFound, match="none yet"):
            reader(store).weights()

    def test_the_newest_step_can_be_committed_again(self, store):
        writer = started(store)
        old = writer.commit(10, state(1.0), PERMANENT)
        new = writer.commit(10, state(2.0), frozenset({"final"}))

        assert old.id != new.id
        assert writer.checkpoints() == [new]
        assert reader(store).weights()["step"] == 2
        with pytest.raises(StoreError):
            writer.read_checkpoint(old)

    def test_the_step_an_attempt_began_with_can_be_committed_again(self, store):
        writer = started(store)
        writer.commit(10, state(1.0), PERMANENT)
        writer.end(RunState.INTERRUPTED, None, 10, "")
        again = started(store, start=10)
        again.commit(10, state(2.0), PERMANENT)
        again.commit(20, state(3.0), PERMANENT)

        assert reader(store).weights(step=10)["step"] == 2
        assert list(reader(store).checkpoints()["step"]) == [10, 20]

    def test_checkpoints_are_committed_in_the_order_of_steps(self, store):
        writer = started(store)
        writer.commit(20, state(1.0), PERMANENT)

        with pytest.raises(StoreError, match=r"step 10 of run 'a' is too early.*of step 20"):
            writer.commit(10, state(1.0), PERMANENT)

    def test_nothing_is_written_before_the_beginning(self, store):
        writer = acquire(store)
        with pytest.raises(StoreError, match="call begin"):
            writer.commit(10, state(1.0), PERMANENT)

    def test_what_was_committed_after_the_beginning_is_no_longer_there(self, store):
        writer = started(store)
        for step in (10, 20, 30):
            writer.commit(step, state(step), PERMANENT)
        writer.end(RunState.FINISHED, None, 30, "")
        again = started(store, start=10)

        assert reader(store).status().step == 10
        assert [info.step for info in again.checkpoints()] == [10]
        again.commit(40, state(-40.0), PERMANENT)
        assert list(reader(store).checkpoints()["step"]) == [10, 40]

    def test_a_step_made_again_replaces_the_older_one(self, store):
        writer = started(store)
        writer.commit(10, state(10.0), PERMANENT)
        old = writer.commit(20, state(20.0), PERMANENT)
        writer.end(RunState.INTERRUPTED, None, 20, "")
        again = started(store, start=10)
        new = again.commit(20, state(-20.0), PERMANENT)

        assert (new.fence, new.id != old.id) == (2, True)
        assert reader(store).weights()["step"] == -20

    def test_the_best_goes_back_with_the_state(self, store):
        at_10 = Best("test/accuracy", "max", 0.5, 10)
        at_20 = Best("test/accuracy", "max", 0.75, 20)
        writer = started(store)
        assert writer.best() is None
        writer.commit(10, state(10.0), PERMANENT, at_10)
        writer.commit(20, state(20.0), PERMANENT, at_20)
        writer.commit(30, state(30.0), PERMANENT)
        assert writer.best() == at_20
        writer.end(RunState.FINISHED, None, 30, "")

        for start, best in ((10, at_10), (NOTHING, None)):
            again = started(store, start=start)
            assert again.best() == best
            again.commit(15, state(15.0), PERMANENT)
            assert again.best() == best
            again.end(RunState.INTERRUPTED, None, start, "")

    def test_retaining_removes_the_others_but_never_the_newest(self, store):
        writer = started(store)
        infos = {s: writer.commit(s, state(s), frozenset({"recent"})) for s in (10, 20, 30, 40)}
        removed = writer.retain({infos[20].id: PERMANENT})

        assert {info.step for info in removed} == {10, 30}
        assert [(i.step, i.kinds) for i in writer.checkpoints()] == [
            (40, {"recent"}),
            (20, {"permanent"}),
        ]
        assert reader(store).weights(step=20)["step"] == 20
        assert reader(store).weights()["step"] == 40
        with pytest.raises(StoreError):
            writer.read_checkpoint(infos[10])

    def test_retaining_something_unknown_removes_nothing(self, store):
        writer = started(store)
        writer.commit(10, state(1.0), PERMANENT)
        writer.commit(20, state(2.0), PERMANENT)

        with pytest.raises(NotFound, match="no checkpoint 0123"):
            writer.retain({"0123": PERMANENT})
        assert len(writer.checkpoints()) == 2

    def test_parts_are_chosen_by_a_regular_expression(self, store):
        writer = started(store)
        info = writer.commit(10, state(1.0), PERMANENT)

        kernel = {"dense/kernel": state(1.0)["dense/kernel"]}
        assert equal(reader(store).weights(include="kernel$"), kernel)
        assert equal(writer.read_checkpoint(info, include="^dense/k"), kernel)
        assert reader(store).weights(include="nothing") == {}
        with pytest.raises(StoreError, match=r"include '\(' is not a regular expression"):
            reader(store).weights(include="(")

    def test_what_a_checkpoint_holds_is_told_without_its_tensors(self, store):
        tensors = {f"{np.dtype(d)} {s}": np.ones(s, d) for d in DTYPES for s in SHAPES}
        writer = started(store)
        writer.commit(10, tensors, PERMANENT)
        writer.commit(20, {"other": np.ones(7)}, PERMANENT)
        run = reader(store)

        wanted = {name: TensorFacts(a.dtype.name, a.shape) for name, a in tensors.items()}
        assert run.tensors(10) == wanted
        assert run.tensors() == {"other": TensorFacts("float64", (7,))}
        with pytest.raises(NotFound, match="no committed checkpoint of step 30; its steps"):
            run.tensors(30)

    def test_completed_steps_are_answered_in_bulk(self, store):
        first = started(store).commit(10, state(1.0), PERMANENT)
        other = started(store, "b").commit(20, state(1.0), PERMANENT)
        wanted = [("a", 10), ("a", 20), ("b", 20), ("b", 10), ("c", 10)]

        assert store.committed(COLLECTION, wanted) == {("a", 10): first, ("b", 20): other}
        assert store.committed("nothing-here", wanted) == {}

    def test_the_state_of_many_runs_is_answered_at_once(self, store):
        started(store).commit(10, state(1.0), PERMANENT)
        started(store, "b").end(RunState.FAILED, "diverged", 7, "")

        found = store.statuses(COLLECTION, ["a", "b", "c"])
        assert {name: (s.state, s.step, s.reason) for name, s in found.items()} == {
            "a": (RunState.RUNNING, 10, None),
            "b": (RunState.FAILED, None, "diverged"),
        }
