"""Who owns a run, and which experiment it is."""

import os
import time
from dataclasses import replace

import pytest
from actors import (
    COLLECTION,
    EARLY,
    ELSEWHERE,
    PERMANENT,
    acquire,
    block,
    dead_process,
    images,
    living_process,
    order,
    reader,
    started,
    state,
    validation,
)

from pipefit.errors import IdentityMismatch, LeaseLost, RunOwned, StoreError
from pipefit.records import RunState
from pipefit.store import this_process

WRITES = {
    "begin": lambda writer: writer.begin(-1),
    "renew": lambda writer: writer.renew({"step": 7}),
    "write_metrics": lambda writer: writer.write_metrics(block(11, 20, value=-1.0)),
    "write large values": lambda writer: writer.write_metrics(images(11, 20)),
    "write_validation": lambda writer: writer.write_validation(validation(20, accuracy=-1.0)),
    "note": lambda writer: writer.note({"event": "stale"}),
    "describe": lambda writer: writer.describe({"parameters": 1}, {"text": b"stale"}),
    "commit": lambda writer: writer.commit(20, state(-1.0), PERMANENT),
    "retain": lambda writer: writer.retain({}),
    "end": lambda writer: writer.end(RunState.FAILED, "stale", 20, "", EARLY),
}


class LeasesContract:
    def test_a_new_run_is_created_and_owned(self, store):
        writer = acquire(store)

        assert writer.fence == 1
        lease = store.lease(COLLECTION, "a")
        assert (lease.fence, lease.owner) == (1, this_process())
        status = reader(store).status()
        assert (status.state, status.step, status.identity) == (RunState.RUNNING, None, "1")

    def test_a_second_owner_is_refused_and_told_who_owns_it(self, store):
        acquire(store, owner=ELSEWHERE)

        with pytest.raises(RunOwned, match=r"'a' of collection 'digits'.*pid 1 on elsewhere since"):
            acquire(store)
        with pytest.raises(RunOwned):
            acquire(store, owner=ELSEWHERE)

    def test_the_fence_grows_with_every_owner(self, store):
        for fence in (1, 2, 3):
            writer = acquire(store)
            assert writer.fence == fence
            writer.end(RunState.INTERRUPTED, None, None, "")

    def test_a_dead_owner_of_this_host_is_succeeded_at_once(self, store):
        acquire(store, owner=dead_process(), ttl=3600.0).begin(-1)

        assert store.lease(COLLECTION, "a") is None
        assert reader(store).status().state is RunState.INTERRUPTED
        assert acquire(store).fence == 2

    def test_a_process_that_was_killed_but_not_waited_for_is_dead(self, store):
        with living_process() as (child, owner):
            acquire(store, owner=owner, ttl=3600.0)
            with pytest.raises(RunOwned):
                acquire(store)
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert acquire(store).fence == 2

    def test_a_pid_that_another_process_has_now_is_a_dead_owner(self, store):
        me = this_process()
        acquire(store, owner=replace(me, started=me.started - 5.0), ttl=3600.0)

        assert acquire(store).fence == 2

    def test_an_owner_elsewhere_is_succeeded_when_its_lease_has_run_out(self, store):
        acquire(store, owner=ELSEWHERE, ttl=0.5)
        with pytest.raises(RunOwned):
            acquire(store)
        time.sleep(0.6)

        assert store.lease(COLLECTION, "a") is None
        assert acquire(store).fence == 2

    def test_renewing_keeps_the_run(self, store):
        writer = acquire(store, owner=ELSEWHERE, ttl=0.6)
        for _ in range(4):
            time.sleep(0.25)
            writer.renew()

        with pytest.raises(RunOwned):
            acquire(store)

    def test_a_lease_that_ran_out_but_was_not_taken_goes_on(self, store):
        writer = acquire(store, owner=ELSEWHERE, ttl=0.2)
        writer.begin(-1)
        time.sleep(0.3)

        writer.commit(10, state(1.0), PERMANENT)
        assert reader(store).status().step == 10

    @pytest.mark.parametrize("write", WRITES)
    def test_a_stale_owner_is_refused(self, store, write):
        stale = started(store, owner=ELSEWHERE, ttl=0.05)
        stale.commit(10, state(1.0), PERMANENT)
        time.sleep(0.1)
        successor = started(store, start=10)
        successor.write_validation(validation(20))

        with pytest.raises(LeaseLost):
            WRITES[write](stale)

        run = reader(store)
        assert (run.status().state, run.status().step) == (RunState.RUNNING, 10)
        assert run.status().ended is None
        assert len(run.metrics()) == 0
        assert (run.document()["history"], run.document()["model"]) == ([], None)
        assert run.artifact("text") is None
        assert list(run.validations()["accuracy"]) == [0.5]
        assert store.lease(COLLECTION, "a").fence == successor.fence
        assert run.attempts()[0].state is RunState.INTERRUPTED

    @pytest.mark.parametrize("write", sorted(WRITES.keys() - {"end"}))
    def test_nothing_is_written_after_the_end(self, store, write):
        writer = started(store)
        writer.end(RunState.FINISHED, None, 0, "")

        with pytest.raises(LeaseLost, match="has ended"):
            WRITES[write](writer)

    def test_the_end_gives_the_lease_back_and_closes_the_attempt(self, store):
        writer = started(store)
        writer.end(RunState.FAILED, "loss is NaN at step 7", 7, "last words")
        writer.end(RunState.FAILED, "loss is NaN at step 7", 7, "last words")

        assert store.lease(COLLECTION, "a") is None
        status = reader(store).status()
        assert (status.state, status.reason) == (RunState.FAILED, "loss is NaN at step 7")
        (attempt,) = reader(store).attempts()
        assert (attempt.state, attempt.step, attempt.log_tail) == (RunState.FAILED, 7, "last words")
        assert attempt.started <= attempt.ended
        assert attempt.owner == this_process()

    def test_every_attempt_is_kept(self, store):
        first = started(store, owner=ELSEWHERE, ttl=0.05)
        first.commit(10, state(1.0), PERMANENT)
        time.sleep(0.1)
        second = started(store, start=10)

        dead, living = reader(store).attempts()
        assert (dead.fence, dead.start, dead.state) == (1, -1, RunState.INTERRUPTED)
        assert dead.ended is not None
        assert (living.fence, living.start, living.state) == (2, 10, RunState.RUNNING)
        assert living.ended is None
        second.end(RunState.FINISHED, None, 20, "")
        assert reader(store).attempts()[1].state is RunState.FINISHED

    def test_a_run_that_begins_again_is_running_without_a_reason(self, store):
        started(store).end(RunState.FAILED, "no GPU", None, "")
        started(store)

        status = reader(store).status()
        assert (status.state, status.reason) == (RunState.RUNNING, None)

    def test_an_owner_that_died_after_its_last_commit_has_finished_the_run(self, store):
        writer = acquire(store, owner=dead_process(), ttl=3600.0, steps=10)
        writer.begin(-1)
        assert reader(store).status().state is RunState.INTERRUPTED
        writer.commit(10, state(1.0), PERMANENT)

        assert reader(store).status().state is RunState.FINISHED

    def test_progress_is_shown(self, store):
        writer = started(store)
        writer.renew({"step": 7, "loss": 0.25, "rate.per_second": 3.5})
        writer.renew()

        progress = reader(store).document()["progress"]
        assert progress == {"step": 7, "loss": 0.25, "rate.per_second": 3.5}

    def test_the_document_tells_the_experiment(self, store):
        spec = '{"train": {"steps": 500}}'
        acquire(store, spec=spec, program={"versions": {"keras": "3.15"}, "git": None})

        document = reader(store).document()
        assert document["name"] == "a"
        assert document["spec"] == {"train": {"steps": 500}}
        assert document["parts"] == {"optimizer.learning_rate": 0.05, "seed": 0}
        assert document["program"] == {"versions": {"keras": "3.15"}, "git": None}
        assert document["lease"]["owner"]["pid"] == this_process().pid
        assert document["steps"] == 500

    def test_another_experiment_of_the_same_name_is_refused_with_the_difference(self, store):
        acquire(store).end(RunState.FINISHED, None, None, "")
        parts = {"optimizer.learning_rate": 0.1, "model.units": [128, 32]}
        other = order(identity="2", parts=parts)

        for refuse in (store.check_identity, lambda o: store.acquire(o, this_process(), 60.0)):
            with pytest.raises(IdentityMismatch) as error:
                refuse(other)
            first, *lines = str(error.value).splitlines()
            assert "run 'a' of collection 'digits'" in first
            assert "3 differences" in first
            assert "--allow-change" in first
            assert lines == [
                "model.units: (absent) -> [128, 32]",
                "optimizer.learning_rate: 0.05 -> 0.1",
                "seed: 0 -> (absent)",
            ]

    def test_the_same_experiment_and_a_new_name_are_no_mismatch(self, store):
        acquire(store).end(RunState.FINISHED, None, None, "")

        store.check_identity(order())
        store.check_identity(order("b", identity="2"))

    @pytest.mark.parametrize("key", ["optimizer.learning_rate", "optimizer"])
    def test_an_allowed_change_is_made_and_kept_in_the_history(self, store, key):
        acquire(store).end(RunState.FINISHED, None, None, "")
        parts = {"optimizer.learning_rate": 0.1, "seed": 0}
        changed = {"identity": "2", "parts": parts, "spec": '{"x": 1}', "allow_change": [key]}
        acquire(store, **changed).end(RunState.FINISHED, None, None, "")
        acquire(store, **changed)  # applied already: the key has nothing to allow any more

        document = reader(store).document()
        assert (document["identity"], document["parts"]) == ("2", parts)
        assert document["spec"] == {"x": 1}
        (entry,) = document["history"]
        assert entry["changes"] == [{"key": "optimizer.learning_rate", "old": "0.05", "new": "0.1"}]
        assert entry["fence"] == 2

    def test_a_change_is_refused_unless_all_of_it_is_allowed(self, store):
        acquire(store).end(RunState.FINISHED, None, None, "")
        parts = {"optimizer.learning_rate": 0.1, "seed": 1}

        with pytest.raises(IdentityMismatch, match=r"(?s)2 differences.*0.1  \(allowed\)\nseed: "):
            acquire(store, identity="2", parts=parts, allow_change=["optimizer", "see"])
        assert reader(store).document()["identity"] == "1"

    def test_more_steps_are_the_same_experiment(self, store):
        acquire(store).end(RunState.FINISHED, None, None, "")
        acquire(store, steps=900, spec='{"train": {"steps": 900}}')

        assert reader(store).document()["steps"] == 900
        assert reader(store).document()["spec"] == {"train": {"steps": 900}}

    @pytest.mark.parametrize("name", ["", "a//b", "../a", "a/.", "a b", "$", "a" * 201, "ä", "a\n"])
    def test_names_of_runs_are_checked(self, store, name):
        with pytest.raises(StoreError, match="cannot name a run"):
            acquire(store, name)

    def test_names_may_be_long_and_hold_slashes(self, store):
        name = "sweep/" + "x" * 194
        started(store, name).commit(1, state(1.0), PERMANENT)

        assert reader(store, name).weights()["step"] == 1

    def test_a_lease_lasts_some_time(self, store):
        with pytest.raises(StoreError, match="ttl 0"):
            acquire(store, ttl=0)
