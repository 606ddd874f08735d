"""Taking a run back: what comes after a step counts no longer, and stays in a closed line."""

import numpy as np
import pytest
from actors import (
    COLLECTION,
    EARLY,
    ELSEWHERE,
    PERMANENT,
    acquire,
    block,
    dead_process,
    order,
    reader,
    started,
    state,
    validation,
)

from pipefit.errors import LeaseLost, NotFound, RunOwned
from pipefit.records import Best, MetricBlock, RunState
from pipefit.store import open_store


def best(value, step):
    return Best("test/accuracy", "max", value, step)


def with_images(first, last, value):
    """Metrics of some steps: losses and images, all of one value."""
    loss = np.full(last - first + 1, value)
    return MetricBlock(first, {"loss": loss, "image": np.tile(loss[:, None], (1, 1000))})


def validated(store, step, accuracy):
    """Validate the committed checkpoint of a step, with outputs, a summary and a report."""
    outputs = store.outputs_writer(COLLECTION, "a", "test")
    outputs.add({"x": np.full((2, 3), accuracy)})
    given = validation(step, accuracy, examples=2, values={"roc": np.full(1000, accuracy)})
    store.commit_validation(COLLECTION, "a", reader(store).checkpoint(step), given, outputs.close())
    store.write_summary(COLLECTION, "a", step, {"accuracy": accuracy})
    store.put_artifact(COLLECTION, "a", "report", step, f"{accuracy}".encode())


def trained(store, steps=(10, 20, 30), start=-1, value=1.0, **others):
    """Train the run "a": metrics in blocks of ten steps, and a checkpoint after each of them."""
    writer = started(store, start=start, **others)
    for step in steps:
        writer.write_metrics(with_images(step - 9, step, value))
        writer.write_validation(validation(step, accuracy=value))
        writer.commit(step, state(step + value), PERMANENT, best(value + step, step))
    return writer


def ended(store, **others):
    trained(store, **others).end(RunState.FINISHED, None, 30, "", EARLY)
    for step in (20, 30):
        validated(store, step, accuracy=step / 100)


class RewindContract:
    def test_the_newest_step_is_the_one_it_was_rewound_to(self, store):
        ended(store, steps=(10, 20, 30))
        assert store.rewind(COLLECTION, "a", 20) == reader(store).checkpoint(20)

        run = reader(store)
        status = run.status()
        assert (status.state, status.step, status.ended) == (RunState.INTERRUPTED, 20, None)
        assert status.reason == "rewound to step 20"
        assert list(run.checkpoints()["step"]) == [10, 20]
        assert list(run.metrics().index) == list(range(1, 21))
        assert list(run.values("image").steps) == list(range(1, 21))
        assert list(run.validations()["step"]) == [10, 20]
        assert run.weights()["step"] == 21
        assert run.document()["best"]["step"] == 20
        assert run.outputs("test")["x"][0, 0] == 0.2
        assert run.artifact("report") is None  # it was of step 30
        assert store.summary(COLLECTION, "a", 30) is None
        assert store.summary(COLLECTION, "a", 20) == {"accuracy": 0.2}
        assert store.committed(COLLECTION, [("a", 20), ("a", 30)]).keys() == {("a", 20)}
        wanted = [("a", "test", 20), ("a", "test", 30)]
        assert store.validated(COLLECTION, wanted).keys() == {("a", "test", 20)}
        with pytest.raises(NotFound):
            run.outputs("test", step=30)

    def test_training_continues_from_there(self, store):
        ended(store)
        store.rewind(COLLECTION, "a", 10)
        writer = trained(store, steps=(20, 30, 40), start=10, value=5.0)

        run = reader(store)
        assert list(run.metrics()["loss"]) == [1.0] * 10 + [5.0] * 30
        assert list(run.validations()["accuracy"]) == [1.0, 5.0, 5.0, 5.0]
        assert run.weights(30)["step"] == 35
        assert writer.best() == best(45.0, 40)
        assert run.artifact("report") is None
        validated(store, 30, accuracy=0.9)
        assert run.artifact("report") == b"0.9"
        assert run.outputs("test")["x"][0, 0] == 0.9
        assert [attempt.start for attempt in run.attempts()] == [-1, 10]
        assert int(store.runs()["attempts"][0]) == 2

    def test_the_closed_line_is_listed_and_read(self, store):
        ended(store)
        newest = reader(store).checkpoint()
        store.rewind(COLLECTION, "a", 10)
        writer = trained(store, steps=(20, 30, 40), start=10, value=5.0)
        writer.retain({})
        validated(store, 40, accuracy=0.9)

        (line,) = reader(store).lines()
        assert (line.number, line.start, line.step) == (1, 10, 30)
        assert [checkpoint.step for checkpoint in line.checkpoints] == [20, 30]
        assert line.checkpoints[-1] == newest
        assert line.closed.tzinfo is not None
        closed = reader(store).line(1)
        assert list(closed.metrics()["loss"]) == [1.0] * 30
        assert [image[0] for _, image in closed.values("image")] == [1.0] * 30
        assert closed.weights()["step"] == 31
        assert closed.outputs("test")["x"][0, 0] == 0.3
        assert closed.values("test/roc")[30][0] == 0.3
        assert closed.artifact("report") == b"0.3"
        assert list(reader(store).checkpoints()["step"]) == [40]
        with pytest.raises(NotFound, match="no closed line 2: it was rewound 1 times"):
            reader(store).line(2)

    def test_a_run_that_was_never_rewound_has_no_closed_line(self, store):
        trained(store)
        assert reader(store).lines() == []
        with pytest.raises(NotFound):
            reader(store).line(1)

    def test_a_run_can_be_rewound_again_and_again(self, store):
        trained(store).end(RunState.FINISHED, None, 30, "")
        for value, start in ((2.0, 20), (3.0, 10), (4.0, 20)):
            store.rewind(COLLECTION, "a", start)
            steps = [step for step in (20, 30) if step > start]
            trained(store, steps, start, value).end(RunState.FINISHED, None, 30, "")

        run = reader(store)
        told = [(line.start, [c.step for c in line.checkpoints]) for line in run.lines()]
        assert told == [(20, [30]), (10, [20, 30]), (20, [30])]
        assert list(run.metrics()["loss"]) == [1.0] * 10 + [3.0] * 10 + [4.0] * 10
        assert list(run.line(1).metrics()["loss"]) == [1.0] * 30
        assert list(run.line(2).metrics()["loss"]) == [1.0] * 20 + [2.0] * 10
        assert list(run.line(3).metrics()["loss"]) == [1.0] * 10 + [3.0] * 20
        assert [run.line(n).weights()["step"] for n in (1, 2, 3)] == [31, 32, 33]

    def test_a_rewind_is_told_in_the_history(self, store):
        ended(store)
        store.rewind(COLLECTION, "a", 20)

        (entry,) = reader(store).document()["history"]
        told = (entry["event"], entry["from"], entry["to"], entry["fence"])
        assert told == ("rewind", 30, 20, 2)
        assert entry["time"].tzinfo is not None

    def test_the_same_rewind_again_changes_nothing(self, store):
        ended(store)
        for _ in range(3):
            store.rewind(COLLECTION, "a", 20)

        assert len(reader(store).lines()) == 1
        assert len(reader(store).document()["history"]) == 1
        assert acquire(store).fence == 3

    def test_rewinding_to_the_newest_step_drops_what_came_after_it(self, store):
        writer = trained(store)
        writer.write_metrics(block(31, 40))
        writer.end(RunState.FINISHED, None, 40, "", EARLY)
        store.rewind(COLLECTION, "a", 30)

        assert len(reader(store).metrics()) == 30
        assert reader(store).status().ended is None

    def test_a_run_that_is_owned_is_not_rewound(self, store):
        trained(store, owner=ELSEWHERE)
        with pytest.raises(RunOwned, match="'a' of collection 'digits' is owned by pid 1"):
            store.rewind(COLLECTION, "a", 20)
        assert reader(store).status().step == 30

    def test_the_run_of_a_dead_owner_is(self, store):
        writer = trained(store, owner=dead_process())
        store.rewind(COLLECTION, "a", 20)

        assert reader(store).status().state is RunState.INTERRUPTED
        with pytest.raises(LeaseLost, match="was rewound to step 20"):
            writer.commit(40, state(40.0), PERMANENT)
        assert reader(store).status().step == 20

    def test_a_step_that_is_not_kept_is_refused_with_those_that_are(self, store):
        trained(store).end(RunState.FINISHED, None, 30, "")
        for step in (15, 40, 0, -1):
            with pytest.raises(NotFound, match=rf"no checkpoint of step {step}.*: 10, 20, 30"):
                store.rewind(COLLECTION, "a", step)
        with pytest.raises(NotFound, match="there is no run 'b'"):
            store.rewind(COLLECTION, "b", 10)
        assert reader(store).lines() == []

    def test_checkpoints_of_a_closed_line_are_no_place_to_continue(self, store):
        trained(store).end(RunState.FINISHED, None, 30, "")
        store.rewind(COLLECTION, "a", 10)
        with pytest.raises(NotFound):
            store.rewind(COLLECTION, "a", 30)
        writer = acquire(store)
        assert [checkpoint.step for checkpoint in writer.checkpoints()] == [10]
        with pytest.raises(NotFound):
            writer.begin(30)

    def test_more_steps_can_be_asked_for_after_a_rewind(self, store):
        trained(store, steps=(10, 20)).end(RunState.FINISHED, None, 20, "")
        store.rewind(COLLECTION, "a", 10)
        store.acquire(order(steps=900), ELSEWHERE, 60.0).begin(10)

        assert reader(store).document()["steps"] == 900

    def test_a_closed_line_that_is_dropped_counts_no_more_and_is_garbage(self, store):
        ended(store)
        for value, start in ((2.0, 20), (3.0, 10)):
            store.rewind(COLLECTION, "a", start)
            steps = [step for step in (20, 30) if step > start]
            trained(store, steps, start, value).end(RunState.FINISHED, None, 30, "")
        assert store.garbage(COLLECTION, grace=0) == []

        dropped = store.drop_line(COLLECTION, "a", 2)
        assert (dropped.number, [c.step for c in dropped.checkpoints]) == (2, [20, 30])
        run = reader(store)
        assert [(line.number, line.start) for line in run.lines()] == [(1, 20)]
        with pytest.raises(NotFound, match="no closed line 2: it was dropped; there are: 1"):
            run.line(2)
        with pytest.raises(NotFound, match="no closed line 2"):
            store.drop_line(COLLECTION, "a", 2)
        # Held for who reads it, then gone. The other line grew out of steps of this one.
        assert all(item.held for item in store.garbage(COLLECTION, remove=True))
        gone = store.garbage(COLLECTION, remove=True, grace=0)
        assert sorted(int(i.run == "a") for i in gone if i.kind == "checkpoint") == [1, 1]
        assert store.garbage(COLLECTION, grace=0) == []
        assert list(run.line(1).metrics()["loss"]) == [1.0] * 30
        assert run.line(1).weights()["step"] == 31
        assert run.line(1).outputs("test")["x"][0, 0] == 0.3
        assert list(run.metrics()["loss"]) == [1.0] * 10 + [3.0] * 20
        assert [e["event"] for e in run.document()["history"]] == ["rewind", "rewind", "drop line"]

        # All that is left goes with it, and the run goes on as if there had been nothing else.
        store.drop_line(COLLECTION, "a", 1)
        store.garbage(COLLECTION, remove=True, grace=0)
        assert (run.lines(), store.garbage(COLLECTION, grace=0)) == ([], [])
        assert [c.step for c in acquire(store).checkpoints()] == [30, 20, 10]
        assert list(run.metrics()["loss"]) == [1.0] * 10 + [3.0] * 20
        assert len(run.values("image")) == 30

    def test_a_line_of_a_run_that_is_owned_is_not_dropped(self, store):
        ended(store)
        store.rewind(COLLECTION, "a", 20)
        trained(store, (30,), 20, owner=ELSEWHERE)
        with pytest.raises(RunOwned):
            store.drop_line(COLLECTION, "a", 1)
        with pytest.raises(NotFound, match="there is no run 'b'"):
            store.drop_line(COLLECTION, "b", 1)
        assert len(reader(store).lines()) == 1

    def test_what_was_dropped_stays_dropped_elsewhere(self, store, tmp_path):
        other = open_store((tmp_path / "other").as_uri())
        ended(store)
        for start in (20, 10):
            store.rewind(COLLECTION, "a", start)
        store.drop_line(COLLECTION, "a", 1)
        assert other.import_run(store.export_run(COLLECTION, "a"))
        assert not other.import_run(store.export_run(COLLECTION, "a"))

        (line,) = reader(other).lines()
        assert (line.number, [c.step for c in line.checkpoints]) == (2, [20])
        with pytest.raises(NotFound, match="was dropped"):
            reader(other).line(1)
        assert other.garbage(COLLECTION, grace=0) == []
