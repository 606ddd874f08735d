"""What counts for nobody: it is found, held while somebody may need it, and removed."""

import threading
import time

import numpy as np
import pytest
from actors import (
    COLLECTION,
    EARLY,
    ELSEWHERE,
    PERMANENT,
    block,
    dead_process,
    images,
    reader,
    started,
    state,
    validation,
)

from pipefit.errors import LeaseLost, NotFound
from pipefit.records import RunState


def outputs_of(store, value=1.0):
    """Outputs that are stored but of no validation yet."""
    writer = store.outputs_writer(COLLECTION, "a", "test")
    writer.add({"x": np.full((2, 3), value)})
    return writer.close()


def crashed(store, *, owner=None):
    """A run with drafts: an attempt wrote 30 steps and committed 10, the next began after 10."""
    writer = started(store, owner=owner or dead_process())
    writer.write_metrics(images(1, 10))
    writer.commit(10, state(10.0), PERMANENT)
    for first in (11, 21):
        writer.write_metrics(images(first, first + 9))
    values = {"roc": np.ones(1000)}
    for step in (10, 20):
        writer.write_validation(validation(step, values=values))


def found(store, grace=0.0, **others):
    """Kinds of what is found, and whether it is held."""
    garbage = store.garbage(COLLECTION, grace=grace, **others)
    return sorted((item.kind, item.held is not None) for item in garbage)


class GarbageContract:
    def test_a_run_that_ended_well_leaves_none(self, store):
        writer = started(store)
        for step in (10, 20, 20):
            writer.write_metrics(images(step - 9, step))
            writer.write_validation(validation(step, values={"roc": np.ones(1000)}))
            info = writer.commit(step, state(step), PERMANENT)
        writer.describe({"parameters": 7}, {"model.txt": b"one"})
        writer.describe({"parameters": 7}, {"model.txt": b"two"})
        for value in (1.0, 2.0):
            given = validation(20, value, examples=2, values={"roc": np.full(1000, value)})
            store.commit_validation(COLLECTION, "a", info, given, outputs_of(store, value))
            store.put_artifact(COLLECTION, "a", "report", 20, b"report")
            store.write_summary(COLLECTION, "a", 20, {})
        writer.retain({})
        writer.end(RunState.FINISHED, None, 20, "", EARLY)

        assert store.garbage(grace=0.0) == []

    def test_drafts_of_steps_that_were_made_again_do_not_stay(self, store):
        crashed(store)
        assert found(store) == []
        again = started(store, start=10)
        again.write_metrics(images(11, 20, value=-1.0))
        store.garbage(COLLECTION, grace=0.0, remove=True)

        assert found(store) == []
        assert reader(store).metrics().index.tolist() == list(range(1, 21))
        assert [image[0, 0] for _, image in reader(store).values("image")][10:] == [-1.0] * 10
        assert len(reader(store).values("test/roc")) == 1

    def test_outputs_that_no_validation_names_are_found_and_removed(self, store):
        info = started(store).commit(10, state(10.0), PERMANENT)
        forgotten = outputs_of(store)
        unfinished = store.outputs_writer(COLLECTION, "a", "test")
        unfinished.add({"x": np.ones((300, 20_000))})
        assert [held for _, held in found(store, grace=3600.0)] == [True] * 3
        named = outputs_of(store)
        store.commit_validation(COLLECTION, "a", info, validation(10, examples=2), named)

        garbage = store.garbage(COLLECTION, grace=0.0, remove=True)
        assert forgotten in [item.id for item in garbage]
        assert found(store) == []
        assert reader(store).outputs("test")["x"].sum() == 6.0

    def test_what_a_living_owner_writes_is_held(self, store):
        writer = started(store, owner=ELSEWHERE)
        writer.commit(10, state(10.0), PERMANENT)
        crashed_upload(store, writer)
        assert found(store) == [("checkpoint", True)]
        held = store.garbage(COLLECTION, grace=0.0, remove=True)
        assert "its run is owned by pid 1 on elsewhere" in held[0].held
        writer.end(RunState.FINISHED, None, 10, "")

        assert found(store) == [("checkpoint", False)]
        assert len(store.garbage(COLLECTION, remove=True)) == 1  # at once: nobody can publish it
        assert found(store) == []

    def test_what_a_dead_owner_left_is_removed_at_once(self, store):
        writer = started(store, owner=dead_process(), ttl=3600.0)
        crashed_upload(store, writer)
        store.garbage(COLLECTION, remove=True)

        assert found(store) == []

    def test_an_owner_that_is_silent_is_waited_for_and_then_refused(self, store):
        writer = started(store, owner=ELSEWHERE, ttl=0.05)
        writer.commit(10, state(10.0), PERMANENT)
        crashed_upload(store, writer)
        time.sleep(0.1)
        assert found(store, grace=3600.0, remove=True) == [("checkpoint", True)]
        writer.renew()  # it was only slow
        time.sleep(0.1)
        assert found(store, grace=0.01) == [("checkpoint", False)]
        writer.renew()  # nothing is changed by looking
        time.sleep(0.1)

        store.garbage(COLLECTION, remove=True, grace=0.01)
        with pytest.raises(LeaseLost):
            writer.commit(20, state(20.0), PERMANENT)
        assert found(store) == []
        assert reader(store).status().step == 10

    def test_an_owner_that_is_silent_and_left_nothing_is_not_disturbed(self, store):
        writer = started(store, owner=ELSEWHERE, ttl=0.05)
        time.sleep(0.1)
        assert store.garbage(remove=True, grace=0.01) == []

        assert writer.commit(10, state(10.0), PERMANENT).step == 10

    def test_closed_lines_are_no_garbage(self, store):
        writer = started(store)
        for step in (10, 20):
            writer.write_metrics(images(step - 9, step))
            writer.commit(step, state(step), PERMANENT)
        writer.end(RunState.FINISHED, None, 20, "")
        outputs = outputs_of(store)
        given = validation(20, examples=2, values={"roc": np.ones(1000)})
        store.commit_validation(COLLECTION, "a", reader(store).checkpoint(), given, outputs)
        store.put_artifact(COLLECTION, "a", "report", 20, b"one")
        store.rewind(COLLECTION, "a", 10)
        writer = started(store, start=10)
        writer.write_metrics(images(11, 20, value=-1.0))
        writer.commit(20, state(-1.0), PERMANENT)
        store.put_artifact(COLLECTION, "a", "report", 20, b"two")

        assert store.garbage(remove=True, grace=0.0) == []
        closed = reader(store).line(1)
        assert closed.weights()["step"] == 20 and closed.artifact("report") == b"one"
        assert len(closed.values("image")) == 20 and len(closed.outputs("test")) == 2

    def test_a_training_and_slow_readers_are_not_disturbed(self, store):
        started(store).end(RunState.INTERRUPTED, None, None, "")
        done, failures = threading.Event(), []

        def sweep():
            while not done.is_set():
                try:
                    store.garbage(COLLECTION, remove=True, grace=0.5)
                except Exception as error:
                    failures.append(error)

        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        try:
            for attempt in range(4):
                start = 10 * attempt if attempt else -1
                writer = started(store, start=start)
                first = max(start, 0) + 1
                for step in (first + 4, first + 9):
                    writer.write_metrics(images(step - 4, step, value=attempt))
                    writer.write_validation(validation(step, values={"roc": np.ones(1000)}))
                    info = writer.commit(step, state(step), PERMANENT)
                slow = iter(reader(store).values("image"))
                next(slow)
                given = validation(step, examples=2)
                store.commit_validation(COLLECTION, "a", info, given, outputs_of(store))
                assert len(list(slow)) == 10 * (attempt + 1) - 1
                writer.write_metrics(images(step + 1, step + 5))  # will be a draft
                writer.end(RunState.INTERRUPTED, None, step, "")
        finally:
            done.set()
            sweeper.join()
        time.sleep(0.6)
        store.garbage(COLLECTION, remove=True, grace=0.5)

        assert failures == []
        run = reader(store)
        assert run.metrics().index.tolist()[:40] == list(range(1, 41))
        assert [len(run.weights(step)) for step in range(5, 41, 5)] == [3] * 8
        assert len(run.validations()) == 8
        assert run.outputs("test", 10)["x"].sum() == run.outputs("test")["x"].sum() == 6.0
        with pytest.raises(NotFound):
            run.outputs("test", 15)

    def test_only_the_collection_that_was_asked_for_is_looked_at(self, store):
        crashed_upload(store, started(store, owner=dead_process()))

        assert store.garbage("other", remove=True) == []
        (left,) = store.garbage(remove=True)
        assert (left.collection, left.run, left.size > 100) == (COLLECTION, "a", True)

    def test_metrics_of_a_block_that_counts_in_part_stay(self, store):
        writer = started(store, owner=dead_process())
        writer.commit(10, state(10.0), PERMANENT)
        writer.write_metrics(block(1, 30))
        started(store, start=10)

        assert store.garbage(grace=0.0, remove=True) == []
        assert len(reader(store).metrics()) == 10


def crashed_upload(store, writer):
    """Leave what an owner leaves that is killed between the bytes of a checkpoint and the rest."""
    backend = store._backend(COLLECTION)
    origin = {"run": "a", "step": 100, "fence": writer.fence}
    backend.checkpoints_of("a").put_tensors(state(100.0), "a/100.safetensors", origin)
