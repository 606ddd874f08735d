"""What crosses the boundary to the worker process comes over as it was."""

import json
import math

import pytest

from pipefit import errors
from pipefit.errors import DataError, Interrupted, PipefitError, StateMismatch, WorkerFailed
from pipefit.execution.order import Event, Order, exit_code, outcome, raise_outcome

ORDER = Order(
    kind="validate",
    spec='{"name": "a/b", "note": "two\\nlines, ünïcode"}',
    uri="mongodb://me:secret@127.0.0.1:1/db",
    folders={"digits": "/tmp/with space"},
    import_paths=("/a", "/b"),
    allow_change=("optimizer.learning_rate",),
    lease_seconds=2.5,
    validation="test",
    step=7,
    program={"command": ["luigi", "x"], "versions": {"numpy": "2"}},
)


@pytest.mark.parametrize("order", [ORDER, Order(kind="train", spec="{}", uri="embedded")])
def test_an_order_is_one_line_and_comes_back(order):
    line = order.to_json()
    assert "\n" not in line
    assert Order.from_json(line + "\n") == order


@pytest.mark.parametrize(
    "event",
    [
        Event("log", {"level": 30, "message": "two\nlines, ünïcode \u2028"}),
        Event("progress", {"step": 3, "loss": 0.1 + 0.2, "rate": 1e9, "seconds_left": math.inf}),
        Event("text", {"text": "layer   shape\n"}),
        Event("outcome", {"error": None}),
    ],
)
def test_an_event_is_one_line_and_comes_back(event):
    line = event.to_json()
    assert len(line.splitlines()) == 1
    assert Event.from_json(line) == event


def test_a_loss_that_is_not_a_number_comes_back():
    event = Event.from_json(Event("progress", {"loss": math.nan}).to_json())
    assert math.isnan(event.values["loss"])


def crossed(error: BaseException | None) -> Event:
    return Event.from_json(outcome(error).to_json())


def test_success_raises_nothing():
    raise_outcome(crossed(None))
    assert exit_code(None) == 0


CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PipefitError)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_what_was_raised_on_purpose_is_raised_here_with_its_message(kind):
    with pytest.raises(PipefitError) as raised:
        raise_outcome(crossed(kind("first line\n  second line")))
    assert type(raised.value) is kind
    assert str(raised.value) == "first line\n  second line"


def test_a_more_special_class_becomes_the_nearest_known_one():
    class Unreadable(DataError):
        pass

    with pytest.raises(DataError, match="photo 7") as raised:
        raise_outcome(crossed(Unreadable("photo 7")))
    assert type(raised.value) is DataError


def test_everything_else_is_a_failed_worker_with_the_traceback():
    try:
        json.loads("{")
    except ValueError as error:
        event = crossed(error)
    with pytest.raises(WorkerFailed) as raised:
        raise_outcome(event)
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("the worker failed with JSONDecodeError: Expecting property name")
    assert rest[0] == "Traceback (most recent call last):"
    assert any("json.loads" in line for line in rest)


def test_an_error_without_a_message_is_still_named():
    with pytest.raises(WorkerFailed, match="the worker failed with MemoryError"):
        raise_outcome(crossed(MemoryError()))


def test_an_error_of_a_known_name_that_is_another_class_is_not_taken_for_it():
    class Interrupted(Exception):
        pass

    with pytest.raises(WorkerFailed, match="Interrupted: boo"):
        raise_outcome(crossed(Interrupted("boo")))


@pytest.mark.parametrize(
    ("error", "code"),
    [(Interrupted("x"), 75), (StateMismatch("x"), 1), (ValueError("x"), 1), (SystemExit(3), 1)],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code
