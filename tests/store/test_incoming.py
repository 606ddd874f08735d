"""What comes from elsewhere is looked at before it is let in."""

import pytest
from actors import COLLECTION
from contract_transfer import Watched, lived

from pipefit.errors import StoreError
from pipefit.records import RunState
from pipefit.store import open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a run that has everything."""
    place = open_store((tmp_path_factory.mktemp("here") / "store").as_uri())
    lived(place).end(RunState.INTERRUPTED, "enough", 20, "the end")
    return place


@pytest.fixture
def elsewhere(tmp_path):
    return open_store((tmp_path / "there").as_uri())


@pytest.mark.parametrize("name", ["", "../a", "a b", "a" * 201, "/a", "@run"])
def test_names_cannot_lead_elsewhere(store, elsewhere, name):
    content = store.export_run(COLLECTION, "a")
    content.name = name
    with pytest.raises(StoreError, match="cannot name a run"):
        elsewhere.import_run(content)
    content = store.export_run(COLLECTION, "a")
    content.collection = f"{name}."
    with pytest.raises(StoreError, match="cannot name a collection"):
        elsewhere.import_run(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("identity"),
        lambda document: document.update(more=1),
        lambda document: document.update(fence=-1),
        lambda document: document.update(fence=2**70),
        lambda document: document.update(spec="{"),
        lambda document: document.update(line=[[2, 0], [1, 5]]),
        lambda document: document.update(line=[[99, 0]]),
        lambda document: document.update(committed={"step": 1, "id": {"$ne": None}}),
        lambda document: document.update(history=[{"time": 3, "fence": 1}]),
        lambda document: document["attempt"].update(owner="me"),
        lambda document: document.update(state="HOSTILE"),
    ],
)
def test_what_is_no_document_of_a_run_is_refused(store, elsewhere, change):
    content = Watched(store.export_run(COLLECTION, "a"))
    change(content.changed)
    with pytest.raises(StoreError, match="no run that Pipefit has written: its "):
        elsewhere.import_run(content)
    assert elsewhere.garbage(grace=0.0) == [] and elsewhere.collections() == []


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "lease"},
        {"step": -5},
        {"step": "0; drop"},
        {"run": "other"},
        {"_id": 1},
        {"name": {"$gt": ""}},
        {"columns": [{"name": "x", "dtype": "O", "shape": [], "data": b""}]},
        {"columns": [{"name": "x", "dtype": "<f8", "shape": [2**40], "data": b"12345678"}]},
        {"columns": [{"name": "x", "dtype": "<f8", "shape": [], "file": "/etc/passwd"}]},
        {"columns": [{"name": "x", "dtype": "str", "shape": [], "data": b"\xff" * 40}]},
    ],
    ids=str,
)
def test_what_is_no_record_is_refused(store, elsewhere, change):
    class Changed(Watched):
        def records(self):
            for record, parts in super().records():
                metrics = record["kind"] == "metrics"
                yield {**record, **change} if metrics else record, parts

    with pytest.raises(StoreError, match="no run that Pipefit has written: a record"):
        elsewhere.import_run(Changed(store.export_run(COLLECTION, "a")))
    assert elsewhere.garbage(grace=0.0) == [] and elsewhere.collections() == []
