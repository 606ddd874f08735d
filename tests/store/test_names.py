"""Whatever something is called, it is stored under this name or refused: it leads nowhere else.

Not into other folders, not into other runs, not into the language of queries; neither in the
database nor in a folder.
"""

import contextlib
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, acquire, order, reader, started, state, validation
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipefit.errors import NotFound, SpecError, StoreError
from pipefit.execution import Order
from pipefit.execution.executors import log_path
from pipefit.records import MetricBlock, check_collection_name, check_run_name
from pipefit.settings import home
from pipefit.spec import Spec
from pipefit.store import open_store, this_process

NASTY = [
    *("..", "../../../evil", "/etc/evil", "a/../../evil", "./a", "a//b", "a/", "~", "C:\\evil"),
    *("a\0b", "a\nb", "$where", "$ne", "a.b.c", ".", "", " ", "-rf", "%2e%2e%2f", "@run"),
    *("x" * 201, "x" * 300, "ü/é", "\u202eevil", "\ud800", "CON", "a\\..\\b", "{'$gt': ''}"),
    *("a/@run/document", "__proto__", "name", "..\\..", "x/" * 120),
]
GOOD = ["x" * 200, "sweep/" + "y" * 194, "-", "a.b", "...", "A/b/C.d_e-f", "runs", "system.js"]
TEXT = st.text(st.sampled_from("abAB01._-/\\$\0\n ~%@üß\u202e\ud800{}'\""), max_size=12)

ROOT = Path(__file__).parent.parent.parent

few = settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def examples(words):
    """A decorator: these are always tried."""

    def decorated(function):
        for word in words:
            function = example(word)(function)
        return function

    return decorated


@pytest.fixture(params=["database", "folder"])
def store(request, tmp_path):
    (tmp_path / "in").mkdir()
    if request.param == "folder":
        return open_store((tmp_path / "in" / "results").as_uri())
    return open_store(request.getfixturevalue("database_uri"))


@pytest.fixture
def bait(store, tmp_path):
    """Says whether all else is as it was: a run that others could hit, and all folders."""
    writer = started(store, "bait", owner=replace(this_process(), host="bait"))
    writer.write_metrics(MetricBlock(1, {"loss": np.ones(3)}))
    writer.commit(3, state(3.0), PERMANENT)
    before = reader(store, "bait").document()

    def untouched():
        run = reader(store, "bait")
        assert {**run.document(), "updated": 0} == {**before, "updated": 0}
        assert run.weights()["step"] == 3 and len(run.metrics()) == 3
        assert {path.name for path in tmp_path.iterdir()} <= {"in", "home"}
        assert {path.name for path in (tmp_path / "in").iterdir()} <= {"results"}
        assert store.collections() == [COLLECTION]

    return untouched


def allowed(check, name):
    with contextlib.suppress(ValueError):
        return check(name) == name
    return False


class TestRuns:
    @few
    @given(TEXT)
    @examples([*NASTY, *GOOD])
    def test_a_name_is_a_name_or_refused(self, store, bait, name):
        if allowed(check_run_name, name):
            fresh = not store.statuses(COLLECTION, [name])
            writer = acquire(store, name)
            writer.begin(-1)
            writer.commit(1, state(1.0), PERMANENT)
            assert reader(store, name).weights()["step"] == 1 and fresh == (writer.fence == 1)
            writer.end("FINISHED", None, 1, "")
            assert store.statuses(COLLECTION, [name])[name].name == name
        else:
            with pytest.raises(StoreError):
                acquire(store, name)
            with pytest.raises(NotFound):
                reader(store, name)
            for call in (store.rewind, store.drop_line):
                with pytest.raises(NotFound):
                    call(COLLECTION, name, 1)
            with pytest.raises(NotFound):
                store.export_run(COLLECTION, name)
            with pytest.raises(NotFound):
                store.put_artifact(COLLECTION, name, "x", 1, b"x")
            with contextlib.suppress(StoreError):  # what BSON cannot hold
                assert store.statuses(COLLECTION, [name]) == {}
        bait()

    @few
    @given(TEXT)
    @examples(NASTY)
    def test_a_collection_is_a_collection_or_refused(self, store, bait, name):
        if allowed(check_collection_name, name):
            with pytest.raises(NotFound):
                store.run("bait", name)
        else:
            with pytest.raises(StoreError):
                store.acquire(replace(order("bait"), collection=name), this_process(), 60)
            for ask in (store.run, store.export_run):
                with pytest.raises(StoreError):
                    ask(*(("bait", name) if ask == store.run else (name, "bait")))
        bait()

    @pytest.mark.parametrize("name", [{"$gt": ""}, {"$regex": "."}, ["bait"], None, 3, b"bait"])
    def test_what_is_no_text_is_no_query(self, store, bait, name):
        with pytest.raises(StoreError):
            store.run(name, COLLECTION)
        with pytest.raises(StoreError):
            acquire(store, name)
        bait()


class TestThingsOfARun:
    @few
    @given(TEXT)
    @examples([*NASTY[::2], *GOOD[:2]])
    def test_they_come_back_under_their_names_or_are_refused(self, store, bait, name):
        writer = started(store, "a", owner=replace(this_process(), started=0.0))  # who is dead
        checkpoint = writer.commit(10, state(1.0), PERMANENT)
        loss = np.arange(10.0)
        outputs = {}
        deeds = {
            "metric": lambda: writer.write_metrics(MetricBlock(1, {name: loss, "known": loss})),
            "set": lambda: writer.write_validation(validation(10, name=name)),
            "value": lambda: writer.write_validation(
                validation(10, name="v", values={name: np.ones(1000)})
            ),
            "text": lambda: writer.describe({name: 1}, {name: b"text"}),
            "artifact": lambda: store.put_artifact(COLLECTION, "a", f"{name}!", 10, b"artifact"),
            "outputs": lambda: outputs.setdefault("w", store.outputs_writer(COLLECTION, "a", name)),
        }
        done = set()
        for what, deed in deeds.items():
            with contextlib.suppress(StoreError):
                deed()
                done.add(what)
        run = reader(store, "a")
        if "metric" in done:
            assert np.array_equal([value for _, value in run.values(name)], loss)
        if "set" in done:
            assert name in list(run.validations()["set"])
        if "value" in done:
            assert run.values(f"v/{name}")[10].sum() == 1000
        if "text" in done:
            assert run.artifact(name) == b"text" and run.document()["model"] == {name: 1}
        if "artifact" in done:
            assert run.artifact(f"{name}!") == b"artifact"
        if "outputs" in done:
            with contextlib.suppress(StoreError):
                outputs["w"].add({"x": np.ones((4, 2))})
                key = outputs["w"].close()
                store.commit_validation(
                    COLLECTION, "a", checkpoint, validation(10, name=name, examples=4), key
                )
                assert run.outputs(name)["x"].shape == (4, 2)
        if name in GOOD:
            assert done == deeds.keys()
        bait()


@few
@given(TEXT)
@examples([*NASTY, *GOOD])
def test_files_of_a_worker_lie_in_the_home(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    tables = tomllib.loads((ROOT / "configs" / "digits_mlp.toml").read_text(encoding="utf-8"))
    for key, check in (("name", check_run_name), ("collection", check_collection_name)):
        if not allowed(check, name):
            with pytest.raises(SpecError):
                Spec.of_tables({**tables, key: name})
            continue
        spec = Spec.of_tables({**tables, key: name})
        path = log_path(Order(kind="train", spec=spec.to_json(), uri=""))
        assert path.resolve().is_relative_to(home() / "logs") and path.name == "worker.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
