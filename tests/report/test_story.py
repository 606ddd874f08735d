import doctest
from datetime import UTC, datetime

from pipefit import errors
from pipefit.report import story

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_the_examples_run():
    for module in (story, errors):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def test_a_document_of_before_there_was_all_this_tells_nothing():
    for document in ({}, {"ended": None, "model": None, "history": None, "program": None}):
        assert story.ending(document) is story.model(document) is None
        assert story.history(document) == story.program(document) == []
        assert story.model_layers(document) == story.model_facts(document) == []


def test_changes_and_notes_are_told_one_by_one():
    changes = [{"key": "seed", "old": "0", "new": "1"}, {"key": "x", "old": "(absent)", "new": "2"}]
    entries = [
        {"time": NOON, "fence": 2, "changes": changes},
        {"time": NOON, "fence": 3, "number": 1, "event": "stopped"},
        {"time": NOON, "fence": 3, "number": 2, "from": 7, "at": "mongodb://me:secret@host/x"},
    ]
    assert [(entry.fence, entry.what) for entry in story.history({"history": entries})] == [
        (2, "seed: '0' → '1'"),
        (2, "x: '(absent)' → '2'"),
        (3, "stopped"),
        (3, "note: from 7, at mongodb://me:***@host/x"),
    ]


def test_a_model_that_somebody_described_otherwise_is_shown_as_far_as_it_goes():
    assert story.model({"model": {"parameters": 7}}) == "7 parameters"
    assert story.model({"model": {"layers": 12, "note": {"a": 1}}}) is None
    facts = story.model_facts({"model": {"layers": 12, "note": {"a": 1.5}}})
    assert facts == [("layers", "12"), ("note.a", "1.5000")]
