"""What a run tells about itself: how it ended, what happened, its model, its data."""

import numpy as np
import pytest
from actors import COLLECTION, EARLY, PERMANENT, acquire, order, reader, started, state

from pipefit.errors import IdentityMismatch, StoreError
from pipefit.records import RunState, final_step
from pipefit.store import this_process


def ended_early(store, name="a"):
    writer = started(store, name)
    writer.commit(10, state(1.0), PERMANENT)
    writer.end(RunState.FINISHED, None, 10, "", EARLY)


class StoriesContract:
    def test_a_run_that_ended_early_says_how_until_it_begins_again(self, store):
        ended_early(store)
        status = reader(store).status()
        assert (status.state, status.step, status.ended) == (RunState.FINISHED, 10, EARLY)
        assert store.statuses(COLLECTION, ["a"])["a"].ended == EARLY
        asked = order(stop_rules={"early_stop": EARLY.rule})
        assert (final_step(status, asked), final_step(status, order())) == (10, 500)

        again = acquire(store)
        assert reader(store).status().ended == EARLY
        again.begin(10)
        assert reader(store).status().ended is None
        again.end(RunState.FINISHED, None, 500, "")
        assert reader(store).status().ended is None

    def test_the_end_is_told_once(self, store):
        ended_early(store)
        successor = started(store, start=10)
        successor.end(RunState.FAILED, "no space", 12, "")
        successor.end(RunState.FINISHED, None, 12, "", EARLY)  # has ended already

        status = reader(store).status()
        assert (status.state, status.ended) == (RunState.FAILED, None)

    def test_what_happened_is_kept_in_the_history(self, store):
        writer = started(store)
        event = {"event": "rollback", "from": 130, "to": np.int64(100), "$scale": 0.5, "x.y": None}
        writer.note(event)
        writer.note(event)
        writer.end(RunState.INTERRUPTED, None, None, "")
        started(store).note({"event": "other", "from": 7})

        history = reader(store).document()["history"]
        assert [(e["fence"], e["number"], e["event"], e["from"]) for e in history] == [
            (1, 1, "rollback", 130),
            (1, 2, "rollback", 130),
            (2, 1, "other", 7),
        ]
        assert (history[0]["to"], history[0]["$scale"], history[0]["x.y"]) == (100, 0.5, None)
        assert history[0]["time"].tzinfo is not None

    @pytest.mark.parametrize("event", [{"time": 3}, {"changes": []}, {"x": object()}])
    def test_notes_that_cannot_be_kept_are_refused(self, store, event):
        writer = started(store)
        with pytest.raises(StoreError, match=r"'time'|'changes'|cannot be stored"):
            writer.note(event)
        assert reader(store).document()["history"] == []

    def test_the_model_and_its_texts_are_told(self, store):
        writer = started(store)
        assert (reader(store).document()["model"], reader(store).artifact("model.txt")) == (
            None,
        ) * 2
        model = {"parameters": np.int64(31_000), "layers": [{"name": "conv.1", "$shape": (3, 3)}]}
        texts = {"model.json": b"{}" * 200_000, "program.diff": b"", "old": b"1"}
        writer.describe(model, texts)

        document = reader(store).document()
        layers = [{"name": "conv.1", "$shape": [3, 3]}]
        assert document["model"] == {"parameters": 31_000, "layers": layers}
        assert sorted(document["artifacts"]) == sorted(texts)
        assert {name: reader(store).artifact(name) for name in texts} == texts
        writer.describe({"parameters": 7}, {"model.json": b"[]"})
        assert reader(store).document()["model"] == {"parameters": 7}
        assert reader(store).document()["artifacts"] == ["model.json"]
        assert reader(store).artifact("model.json") == b"[]"
        assert reader(store).artifact("old") is None

    def test_a_description_survives_the_attempt_and_is_small(self, store):
        writer = started(store)
        writer.describe({"parameters": 7}, {"model.json": b"[]"})
        with pytest.raises(StoreError, match=r"has \d+ characters.*as artifacts"):
            writer.describe({"layers": ["x" * 1000] * 1000}, {})
        with pytest.raises(StoreError, match="cannot be stored"):
            writer.describe({"layers": {1, 2}}, {})
        writer.end(RunState.INTERRUPTED, None, None, "")
        started(store)

        assert reader(store).document()["model"] == {"parameters": 7}
        assert reader(store).artifact("model.json") == b"[]"

    def test_of_every_attempt_it_is_known_which_program_it_was(self, store):
        def attempt(commit, **texts):
            given = {name.replace("_", "."): text for name, text in texts.items()}
            writer = started(store, program={"git": {"commit": commit}})
            writer.describe({"parameters": 7}, given)
            writer.end(RunState.INTERRUPTED, None, None, "")

        attempt("a", model_txt=b"m", program_diff=b"+1")
        attempt("a", model_txt=b"m", program_diff=b"+1")
        attempt("b", model_txt=b"m", program_diff=b"+2")
        attempt("c", model_txt=b"m")
        attempt("d", model_txt=b"n", program_diff=b"+1")

        run = reader(store)
        told = [attempt.program["git"]["commit"] for attempt in run.attempts()]
        assert told == ["a", "a", "b", "c", "d"]
        texts = {name: run.artifact(name) for name in run.document()["artifacts"]}
        assert texts == {
            "program.diff@2": b"+1", "program.diff@3": b"+2", "model.txt@4": b"m",
            "model.txt": b"n", "program.diff": b"+1",
        }  # fmt: skip
        assert store.garbage(COLLECTION, grace=0) == []

    def test_the_digest_of_the_data_is_kept_from_the_first_attempt(self, store):
        program = {"python": "3.12"}
        for digest in ("abc", None, "abc"):
            acquire(store, program=program, data_digest=digest).end(RunState.FINISHED, None, 0, "")
            assert reader(store).document()["program"] == {**program, "data_digest": "abc"}

    def test_a_run_of_before_digests_gets_the_first_one(self, store):
        acquire(store).end(RunState.FINISHED, None, 0, "")
        assert reader(store).document()["program"] == {}
        acquire(store, data_digest="abc")

        assert reader(store).document()["program"] == {"data_digest": "abc"}
        assert reader(store).document()["history"] == []

    def test_other_data_is_refused_with_both_digests_and_the_ways_out(self, store):
        acquire(store, data_digest="abc").end(RunState.FINISHED, None, 0, "")
        other = order(data_digest="def")

        for refuse in (store.check_identity, lambda o: store.acquire(o, this_process(), 60.0)):
            with pytest.raises(IdentityMismatch) as error:
                refuse(other)
            first, *lines = str(error.value).splitlines()
            assert "run 'a' of collection 'digits' was trained on data with other content" in first
            assert "choose another name, or accept a difference with --allow-change" in first
            assert lines == ['data.digest: "abc" -> "def"']
        store.check_identity(order())  # whoever has not read the data can only ask for the rest
        assert reader(store).document()["program"] == {"data_digest": "abc"}

    @pytest.mark.parametrize("key", ["data.digest", "data"])
    def test_other_data_may_be_allowed_and_is_written_to_the_history(self, store, key):
        acquire(store, data_digest="abc").end(RunState.FINISHED, None, 0, "")
        changed = {"data_digest": "def", "allow_change": [key]}
        acquire(store, **changed).end(RunState.FINISHED, None, 0, "")
        acquire(store, **changed)

        document = reader(store).document()
        assert document["program"]["data_digest"] == "def"
        (entry,) = document["history"]
        assert entry["changes"] == [{"key": "data.digest", "old": '"abc"', "new": '"def"'}]
        assert entry["fence"] == 2

    def test_other_data_and_another_experiment_are_shown_together(self, store):
        acquire(store, data_digest="abc").end(RunState.FINISHED, None, 0, "")
        parts = {"optimizer.learning_rate": 0.1, "seed": 0}
        changed = {"identity": "2", "parts": parts, "data_digest": "def"}

        with pytest.raises(IdentityMismatch, match=r"(?s)2 differences.*_rate: .*data\.digest: "):
            acquire(store, **changed, allow_change=["optimizer"])
        acquire(store, **changed, allow_change=["optimizer", "data.digest"])
        (entry,) = reader(store).document()["history"]
        assert [change["key"] for change in entry["changes"]] == [
            "optimizer.learning_rate",
            "data.digest",
        ]
