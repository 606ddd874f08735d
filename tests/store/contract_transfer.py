"""Carrying a run into another store: it is the same there, and goes on there.

`elsewhere` is an empty store, of each kind there is.
"""

import copy
import os

import numpy as np
import pytest
from actors import (
    COLLECTION,
    EARLY,
    PERMANENT,
    acquire,
    block,
    dead_process,
    images,
    reader,
    started,
    state,
    validation,
)

from pipefit.errors import CheckpointCorrupt, LeaseLost, NotFound, RunOwned, StoreError
from pipefit.records import Best, MetricBlock, RunState
from pipefit.store.incoming import digest


def lived(store, name="a"):
    """A run with all that a run can have: crashes, a rewind, values of all kinds, outputs."""
    writer = started(store, name, owner=dead_process(), steps=30, spec='{"x.y": [1, null]}')
    texts = MetricBlock(15, {"word": np.array(["a", "bc", "\ud800"] + ["ü"] * 7, object)})
    for step in (10, 20):
        writer.write_metrics(images(step - 9, step))
        writer.commit(step, state(step), PERMANENT, Best("test/a", "max", float("nan"), step))
    writer.write_metrics(block(21, 25, value=-7.0))
    writer = started(store, name, start=10)
    writer.write_metrics(images(11, 20, value=3.0))
    writer.commit(20, state(2.0), PERMANENT | {"best"})
    writer.note({"event": "rollback", "from": 130, "$scale": float("inf"), "x.y": None})
    writer.end(RunState.FINISHED, None, 20, "last \x1b words", EARLY)
    outputs = store.outputs_writer(COLLECTION, name, "test")
    outputs.add({"x": np.ones((4, 3)), "y": np.ones((4, 2, 2), np.float16)})
    values = {"roc": np.arange(1000.0), "word": "ü", "count": np.int8(3)}
    given = validation(20, accuracy=float("-inf"), examples=4, values=values)
    info = store.run(name, COLLECTION).checkpoint()
    store.commit_validation(COLLECTION, name, info, given, outputs.close())
    store.put_artifact(COLLECTION, name, "report.html", 20, b"<p>" * 100_000)
    store.write_summary(COLLECTION, name, 20, {"$sets": {"a.b": [1, 2.5, None, "x"]}})
    store.rewind(COLLECTION, name, 10)
    writer = started(store, name, start=10, steps=30)
    writer.describe({"parameters": 2**40, "layers": [{"$a": 1}]}, {"model.txt": b"m", "b": b""})
    writer.write_metrics(images(11, 20, value=4.0))
    writer.write_metrics(texts)
    writer.write_validation(validation(20, values={"roc": np.ones(1000)}))
    writer.commit(20, state(4.0), PERMANENT)
    return writer


def story(run):
    """All that a reader can see of a run."""
    document = run.document()
    for store_alone in ("lease", "progress", "version"):
        document.pop(store_alone)
    return {
        "status": run.status(),
        "document": document,
        "attempts": run.attempts(),
        "metrics": run.metrics().to_csv(),
        "validations": run.validations().drop(columns="checkpoint").to_csv(),
        "checkpoints": run.checkpoints().drop(columns="id").to_csv(),
        "weights": {s: _bytes(run.weights(s)) for s in run.checkpoints()["step"].tolist()},
        "some": _bytes(run.weights(include="kernel")),
        "images": [image.tobytes() for _, image in run.values("image")],
        "artifacts": {n: run.artifact(n) for n in ("report.html", "model.txt", "b")},
    }


def _bytes(arrays):
    return {
        name: (array.shape, str(array.dtype), array.tobytes()) for name, array in arrays.items()
    }


class TransferContract:
    @pytest.fixture
    def ended(self, store):
        lived(store).end(RunState.INTERRUPTED, "enough", 20, "the end")
        return reader(store)

    def test_it_is_the_same_there(self, store, elsewhere, ended):
        assert elsewhere.import_run(store.export_run(COLLECTION, "a")) is True

        there = reader(elsewhere)
        assert digest(elsewhere.export_run(COLLECTION, "a"), own_id=lambda key: "") == digest(
            store.export_run(COLLECTION, "a"), own_id=lambda key: ""
        )
        here, now = story(ended), story(there)
        for what in ("metrics", "validations", "weights", "some", "images", "artifacts"):
            assert now[what] == here[what], what
        assert now["status"].state == here["status"].state == RunState.INTERRUPTED
        assert [a.log_tail for a in there.attempts()] == [a.log_tail for a in ended.attempts()]
        assert [a.owner for a in there.attempts()] == [a.owner for a in ended.attempts()]
        closed = there.line(1)
        assert closed.weights()["step"] == 2 and closed.artifact("report.html") == b"<p>" * 100_000
        assert closed.outputs("test")["y"].tobytes() == np.ones((4, 2, 2), np.float16).tobytes()
        assert closed.values("test/roc")[20][999] == 999.0
        assert elsewhere.garbage(grace=0.0) == []

    def test_what_was_brought_in_is_the_same_when_it_is_taken_out_again(
        self, store, elsewhere, ended
    ):
        elsewhere.import_run(store.export_run(COLLECTION, "a"))
        there = elsewhere.export_run(COLLECTION, "a")
        assert elsewhere.import_run(store.export_run(COLLECTION, "a")) is False
        assert elsewhere.import_run(there) is False

    def test_it_goes_on_there(self, store, elsewhere, ended):
        elsewhere.import_run(store.export_run(COLLECTION, "a"))
        for place in (store, elsewhere):
            writer = started(place, start=20, steps=40)
            assert writer.fence == 5
            assert writer.best().step == 10
            writer.write_metrics(images(21, 30, value=9.0))
            writer.commit(30, state(9.0), PERMANENT)
            writer.retain({})
        one, two = reader(store), reader(elsewhere)
        assert one.metrics().equals(two.metrics())
        assert one.checkpoints()["sha256"].tolist() == two.checkpoints()["sha256"].tolist()
        assert len(two.lines()) == 1 and two.line(1).weights()["step"] == 2

    def test_a_run_that_is_trained_may_be_taken_out(self, store, elsewhere):
        writer = lived(store)
        elsewhere.import_run(store.export_run(COLLECTION, "a"))

        assert reader(elsewhere).status().state is RunState.INTERRUPTED
        assert elsewhere.lease(COLLECTION, "a") is None
        assert reader(elsewhere).weights()["step"] == 4
        writer.renew()

    def test_another_run_of_that_name_is_refused(self, store, elsewhere, ended):
        started(elsewhere).commit(10, state(1.0), PERMANENT)
        with pytest.raises(StoreError, match="'digits' has another run 'a' already"):
            elsewhere.import_run(store.export_run(COLLECTION, "a"))
        assert len(reader(elsewhere).checkpoints()) == 1

    def test_the_same_run_that_went_on_is_another_one(self, store, elsewhere, ended):
        elsewhere.import_run(store.export_run(COLLECTION, "a"))
        started(elsewhere, start=20).write_metrics(images(21, 22))
        with pytest.raises(StoreError, match="another run 'a' already"):
            elsewhere.import_run(store.export_run(COLLECTION, "a"))

    def test_half_a_run_is_never_seen_and_the_name_is_taken(self, store, elsewhere, ended):
        seen = []

        def look():
            seen.append((len(elsewhere.runs()), elsewhere.collections()))
            assert elsewhere.statuses(COLLECTION, ["a"]) == {}
            with pytest.raises(NotFound):
                elsewhere.run("a", COLLECTION)

        elsewhere.import_run(Watched(store.export_run(COLLECTION, "a"), look))
        assert len(seen) > 5 and set(map(str, seen)) == {"(0, [])"}
        assert elsewhere.collections() == [COLLECTION]

    def test_what_breaks_off_leaves_nothing(self, store, elsewhere, ended):
        content = store.export_run(COLLECTION, "a")
        for at in (0, 3, 8):
            with pytest.raises(KeyboardInterrupt):
                elsewhere.import_run(Watched(content, interrupt_at(at)))
            assert elsewhere.garbage(grace=0.0) == []
            assert elsewhere.collections() == []
        assert elsewhere.import_run(content) is True

    @pytest.mark.parametrize("by", ["import", "garbage", "acquire"])
    def test_what_a_killed_import_left_is_removed(self, store, elsewhere, ended, by):
        content = store.export_run(COLLECTION, "a")
        pid = os.fork()
        if pid == 0:
            elsewhere.import_run(Watched(content, die_at(8)))
        os.waitpid(pid, 0)
        assert elsewhere.collections() == []
        (left,) = elsewhere.garbage(grace=3600.0)
        assert (left.kind, left.run, left.held, left.size > 0) == ("import", "a", None, True)

        if by == "acquire":
            assert acquire(elsewhere).fence == 1
            assert len(reader(elsewhere).metrics()) == len(reader(elsewhere).checkpoints()) == 0
            elsewhere.garbage(remove=True)
        elif by == "garbage":
            assert len(elsewhere.garbage(remove=True)) == 1
        else:
            assert elsewhere.import_run(content) is True
            assert len(reader(elsewhere).checkpoints()) == 2
        assert elsewhere.garbage(grace=0.0) == []

    def test_a_run_that_is_being_imported_is_not_imported_twice(self, store, elsewhere, ended):
        content = store.export_run(COLLECTION, "a")
        refused = []

        def meanwhile():
            with pytest.raises(RunOwned, match=r"'a' of collection 'digits' is being imported by"):
                elsewhere.import_run(content)
            (held,) = elsewhere.garbage(remove=True, grace=3600.0)
            refused.append("may be bringing it in" in held.held)

        assert elsewhere.import_run(Watched(content, meanwhile)) is True
        assert len(refused) > 5 and all(refused)

    def test_an_import_whose_rest_was_removed_is_refused(self, store, elsewhere, ended):
        content = Watched(store.export_run(COLLECTION, "a"))
        content._act = at(8, lambda: elsewhere.garbage(remove=True, grace=0.0))
        with pytest.raises(LeaseLost, match="was removed, because this process was silent"):
            elsewhere.import_run(content)
        assert elsewhere.garbage(grace=0.0) == [] and elsewhere.collections() == []

    def test_damage_on_the_way_is_found_and_nothing_is_kept(self, store, elsewhere, ended):
        class Damaged(Watched):
            def records(self):
                for record, parts in super().records():
                    yield record, [flipped(part) for part in parts]

        with pytest.raises(CheckpointCorrupt, match="other bytes than it should"):
            elsewhere.import_run(Damaged(store.export_run(COLLECTION, "a")))
        assert elsewhere.garbage(grace=0.0) == [] and elsewhere.collections() == []

    def test_there_must_be_such_a_run(self, store):
        with pytest.raises(NotFound, match="there is no run 'a'"):
            store.export_run(COLLECTION, "a")


class Watched:
    """The content of a run; `act` is called before every record."""

    def __init__(self, content, act=lambda: None):
        self.collection, self.name = content.collection, content.name
        self._content, self._act = content, act
        document, self._texts = content.document()
        self.changed = copy.deepcopy(document)

    def document(self):
        return self.changed, self._texts

    def records(self):
        for record in self._content.records():
            self._act()
            yield record


def flipped(part):
    read = part.read
    return type(part)(part.size, part.sha256, lambda: bytes([read()[0] ^ 1]) + bytes(read()[1:]))


def at(number, act):
    """A function that does this when it is called for so many times, and ever after."""
    left = iter(range(number))
    return lambda: act() if next(left, None) is None else None


def interrupt_at(number):
    def interrupt():
        raise KeyboardInterrupt

    return at(number, interrupt)


def die_at(number):
    return at(number, lambda: os._exit(1))
