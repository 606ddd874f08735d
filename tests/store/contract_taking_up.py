"""Going on with an attempt that was left without its end, in its own name."""

import threading
from dataclasses import replace

import pytest
from actors import (
    COLLECTION,
    ELSEWHERE,
    PERMANENT,
    acquire,
    block,
    dead_process,
    images,
    living_process,
    reader,
    started,
    state,
    validation,
)

from pipefit.errors import IdentityMismatch, LeaseLost, NotFound, RunOwned
from pipefit.records import RunState
from pipefit.store import AttemptKey, this_process


def left(store, **others):
    """An attempt whose process is dead, after steps 1..10 and the checkpoint of step 10."""
    owner = dead_process()
    writer = acquire(store, owner=owner, ttl=3600.0, **others)
    writer.begin(-1)
    writer.write_metrics(block(1, 10))
    writer.commit(10, state(10.0), PERMANENT)
    return writer, AttemptKey(COLLECTION, "a", "1", writer.fence, owner)


def take_up(store, key, owner=None):
    return store.take_up(key, owner or this_process(), 60.0)


def write_the_rest(writer):
    """In this order; killed at any point and repeated it is the same."""
    writer.write_metrics(block(11, 20))
    writer.write_metrics(images(21, 23))
    writer.write_validation(validation(20))
    writer.commit(20, state(20.0), PERMANENT)
    writer.end(RunState.FAILED, "the database was away", 20, "last words")


class TakingUpContract:
    def test_the_rest_is_written_as_if_by_the_attempt_itself(self, store):
        _, key = left(store)
        writer = take_up(store, key)

        assert (writer.fence, writer.ttl) == (1, 60.0)
        assert store.lease(COLLECTION, "a").owner == this_process()
        write_the_rest(writer)

        run = reader(store)
        assert list(run.metrics()["loss"]) == list(range(1, 24))
        assert list(run.validations()["step"]) == [20]
        assert list(run.checkpoints()["step"]) == [10, 20]
        (attempt,) = run.attempts()
        assert (attempt.owner, attempt.state, attempt.step) == (key.owner, RunState.FAILED, 20)
        assert store.lease(COLLECTION, "a") is None
        assert started(store, start=20).fence == 2

    def test_what_is_written_again_replaces(self, store):
        before, key = left(store)
        before.write_metrics(block(11, 14, value=-1.0))  # what came through of a longer block
        before.write_validation(validation(20, accuracy=0.1))
        before.note({"event": "before"})
        for attempt in range(3):
            # Each one dies at another point.
            writer = take_up(store, key, owner=dead_process())
            writer.write_metrics(block(11, 20))
            if attempt > 0:
                writer.write_metrics(images(21, 23))
                writer.write_validation(validation(20))
                writer.commit(20, state(20.0), PERMANENT)
        writer = take_up(store, key)
        writer.note({"event": "after"})
        write_the_rest(writer)

        run = reader(store)
        assert list(run.metrics()["loss"]) == list(range(1, 24))
        assert [step for step, _ in run.values("image")] == [21, 22, 23]
        assert list(run.validations()["accuracy"]) == [0.5]
        assert list(run.checkpoints()["step"]) == [10, 20]
        assert [entry["event"] for entry in run.document()["history"]] == ["before", "after"]

    def test_an_attempt_that_had_not_begun_can_be_ended(self, store):
        owner = dead_process()
        acquire(store, owner=owner, ttl=3600.0)
        key = AttemptKey(COLLECTION, "a", "1", 1, owner)
        take_up(store, key).end(RunState.FAILED, "no GPU", None, "")

        assert reader(store).status().reason == "no GPU"

    def test_the_handle_before_is_refused(self, store):
        with living_process() as (child, owner):
            before = acquire(store, owner=owner, ttl=3600.0)
            before.begin(-1)
            key = AttemptKey(COLLECTION, "a", "1", 1, owner)
            with pytest.raises(RunOwned, match=rf"'a'.*pid {owner.pid} on"):
                take_up(store, key)
            child.kill()
            child.wait()
        taken = take_up(store, key)

        for write in (
            before.renew,
            lambda: before.write_metrics(block(1, 5)),
            lambda: before.commit(5, state(5.0), PERMANENT),
            lambda: before.end(RunState.FAILED, "stale", 5, ""),
        ):
            with pytest.raises(LeaseLost, match=rf"taken up by pid {this_process().pid} on"):
                write()
        with pytest.raises(RunOwned):
            take_up(store, key)
        taken.end(RunState.INTERRUPTED, None, None, "")
        assert reader(store).status().state is RunState.INTERRUPTED

    def test_of_many_that_try_one_has_it(self, store):
        _, key = left(store)
        outcomes = []

        def try_it():
            try:
                outcomes.append(take_up(store, key).fence)
            except RunOwned:
                outcomes.append(None)

        threads = [threading.Thread(target=try_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes, key=str) == [1] + [None] * 5

    def test_a_run_that_somebody_has_continued_is_left_alone(self, store):
        _, key = left(store)
        started(store, start=10)
        with pytest.raises(LeaseLost, match=rf"pid {this_process().pid} on .* as attempt 2"):
            take_up(store, key)

        assert reader(store).attempts()[1].state is RunState.RUNNING
        assert store.lease(COLLECTION, "a").fence == 2

    def test_a_run_that_was_rewound_is_left_alone(self, store):
        _, key = left(store)
        store.rewind(COLLECTION, "a", 10)

        with pytest.raises(LeaseLost, match="rewound to step 10"):
            take_up(store, key)

    def test_an_attempt_that_has_ended_is_left_alone(self, store):
        _, key = left(store)
        take_up(store, key).end(RunState.FINISHED, None, 10, "")

        with pytest.raises(LeaseLost, match="has ended"):
            take_up(store, key)
        assert reader(store).status().state is RunState.FINISHED

    @pytest.mark.parametrize(
        ("other", "error", "said"),
        [
            ({"name": "b"}, NotFound, "'b'"),
            ({"collection": "letters"}, NotFound, "'letters'"),
            ({"identity": "2"}, IdentityMismatch, "another experiment"),
            ({"owner": ELSEWHERE}, LeaseLost, "another database"),
            ({"fence": 2}, LeaseLost, "attempt"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
    )
    def test_another_attempt_is_not_taken_for_it(self, store, other, error, said):
        _, key = left(store)
        with pytest.raises(error, match=said):
            take_up(store, replace(key, **other))

        assert store.lease(COLLECTION, "a") is None
        assert "letters" not in store.collections()
