"""The background writer: order, bounds, and failures that come back at the next call."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from pipefit.execution.writer import BackgroundWriter, joined
from pipefit.records import MetricBlock

SOON = 10.0  # seconds within which what must happen has happened


class Broken(Exception):
    pass


class Gate:
    """A piece of work that starts, and ends when it is let through."""

    def __init__(self):
        self.started, self.open = threading.Event(), threading.Event()

    def __call__(self):
        self.started.set()
        assert self.open.wait(SOON)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def fail():
    raise Broken("disk full")


def in_thread(call, *arguments) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def test_everything_is_done_in_order_before_close_returns():
    writer, done = BackgroundWriter(), []
    for i in range(200):
        (writer.put_heavy if i % 7 == 0 else writer.put)(lambda i=i: done.append(i))
    writer.close()
    assert done == list(range(200))


def test_work_is_done_in_another_thread_while_the_caller_goes_on(gate):
    writer, where = BackgroundWriter(), []
    writer.put(gate)
    writer.put(lambda: where.append(threading.current_thread()))
    assert gate.started.wait(SOON)
    assert where == []
    gate.open.set()
    writer.close()
    assert where[0] is not threading.current_thread()


def test_drain_waits_for_what_was_put(gate):
    writer, done = BackgroundWriter(), []
    writer.put(gate)
    writer.put(lambda: done.append(1))
    threading.Timer(0.05, gate.open.set).start()
    writer.drain()
    assert done == [1]
    writer.put(lambda: done.append(2))
    writer.close()
    assert done == [1, 2]


@pytest.mark.parametrize("put", ["put", "put_heavy"])
@pytest.mark.parametrize("call", ["put", "put_heavy", "check", "drain", "close"])
def test_the_original_exception_comes_back_at_the_next_call(put, call):
    writer = BackgroundWriter()
    getattr(writer, put)(fail)
    wait_for_failure(writer)
    with pytest.raises(Broken, match="disk full") as raised:
        getattr(writer, call)(*([lambda: None] if call.startswith("put") else []))
    assert raised.traceback[-1].name == "fail"


def test_close_raises_what_fails_while_it_waits(gate):
    writer = BackgroundWriter()
    writer.put(gate)
    writer.put(fail)
    threading.Timer(0.05, gate.open.set).start()
    with pytest.raises(Broken):
        writer.close()


def test_nothing_is_done_after_a_failure(gate):
    writer, done = BackgroundWriter(), []
    writer.put(gate)
    writer.put(fail)
    writer.put(lambda: done.append("light"))
    writer.put_heavy(lambda: done.append("heavy"))
    gate.open.set()
    with pytest.raises(Broken):
        writer.close()
    assert done == []


def test_the_first_failure_is_the_one_that_is_raised(gate):
    writer = BackgroundWriter()
    writer.put(gate)
    writer.put(fail)
    assert gate.started.wait(SOON)
    writer.fail(KeyError("the lease is lost"))
    writer.fail(ValueError("later"))
    gate.open.set()
    with pytest.raises(KeyError, match="the lease is lost"):
        writer.close()


def test_a_failure_told_from_outside_does_not_replace_an_earlier_one():
    writer = BackgroundWriter()
    writer.put(fail)
    wait_for_failure(writer)
    writer.fail(ValueError("later"))
    with pytest.raises(Broken):
        writer.check()


def test_a_failure_while_work_is_going_on_is_kept(gate):
    def then_fail():
        gate()
        fail()

    writer = BackgroundWriter()
    writer.put(then_fail)
    assert gate.started.wait(SOON)
    writer.fail(KeyError("the lease is lost"))
    gate.open.set()
    with pytest.raises(KeyError):
        writer.close()


def test_no_more_heavy_pieces_are_held_than_allowed(gate):
    writer = BackgroundWriter(heavy=2)
    writer.put_heavy(gate)
    writer.put_heavy(lambda: None)
    third = in_thread(writer.put_heavy, lambda: None)
    third.join(0.1)
    assert third.is_alive()
    gate.open.set()
    third.join(SOON)
    assert not third.is_alive()
    writer.close()


def test_light_pieces_do_not_wait_for_heavy_ones(gate):
    writer = BackgroundWriter(heavy=1)
    writer.put_heavy(gate)
    light = in_thread(writer.put, lambda: None)
    light.join(SOON)
    assert not light.is_alive()
    gate.open.set()
    writer.close()


def test_the_queue_is_bounded(gate):
    writer = BackgroundWriter(depth=1)
    writer.put(gate)
    assert gate.started.wait(SOON)
    writer.put(lambda: None)
    second = in_thread(writer.put, lambda: None)
    second.join(0.1)
    assert second.is_alive()
    gate.open.set()
    second.join(SOON)
    assert not second.is_alive()
    writer.close()


def test_whoever_waits_with_a_heavy_piece_goes_on_when_the_others_are_dropped(gate):
    writer = BackgroundWriter(heavy=1)
    writer.put(gate)
    writer.put(fail)
    writer.put_heavy(lambda: None)  # will be left

    def put():
        with suppress(Broken):
            writer.put_heavy(lambda: None)

    waiting = in_thread(put)
    gate.open.set()
    waiting.join(SOON)
    assert not waiting.is_alive()
    with pytest.raises(Broken):
        writer.close()


def test_closing_again_is_harmless():
    writer = BackgroundWriter()
    writer.close()
    writer.close()


def test_blocks_that_follow_each_other_become_one():
    blocks = [
        MetricBlock(3, {"loss": [3.0, 4.0], "rate": [0.3, 0.4]}),
        MetricBlock(5, {"loss": [5.0], "rate": [0.5]}),
        MetricBlock(6, {"loss": [6.0], "rate": [0.6]}),
    ]
    (block,) = joined(blocks)
    assert (block.first, block.last) == (3, 6)
    assert block.columns["loss"].tolist() == [3, 4, 5, 6]
    assert block.columns["rate"].tolist() == [0.3, 0.4, 0.5, 0.6]
    assert joined(blocks[:1])[0] is blocks[0]
    assert joined([]) == []


def test_blocks_whose_columns_differ_stay_apart():
    columns = [
        {"loss": np.ones(2)},
        {"loss": np.ones(1), "name": np.array(["a"])},
        {"loss": np.ones(1), "name": np.array(["abc"])},
        {"loss": np.ones(1), "name": np.array([b"abc"])},
        {"loss": np.ones(1), "box": np.ones((1, 4))},
        {"loss": np.ones(1), "box": np.ones((1, 3, 4))},
        {"loss": np.ones(1), "box": np.ones((1, 3, 4), np.int64)},
    ]
    firsts = [1, 3, 4, 5, 6, 7, 8]
    blocks = [MetricBlock(*pair) for pair in zip(firsts, columns, strict=True)]

    found = joined(blocks)
    assert [block.first for block in found] == [1, 3, 5, 6, 7, 8]
    assert found[1].columns["name"].tolist() == ["a", "abc"]


def wait_for_failure(writer: BackgroundWriter) -> None:
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        try:
            writer.check()
        except Exception:
            return
        time.sleep(0.001)
    raise AssertionError("the failure did not surface")


def test_what_was_not_done_is_left_in_its_order(gate):
    writer = BackgroundWriter()
    pieces = [gate, fail, *(lambda: None for _ in range(4))]
    for piece in pieces[:4]:
        writer.put(piece)
    gate.open.set()
    for put, piece in ((writer.put, pieces[4]), (writer.put_heavy, pieces[5])):
        with pytest.raises(Broken):
            wait_for_failure(writer)
            put(piece)
    assert writer.left() == pieces[1:]
    assert writer.left() == []


@pytest.mark.parametrize("call", ["put", "put_heavy", "drain", "close"])
def test_whoever_waits_is_called_off(gate, call):
    late = threading.Event()
    writer = BackgroundWriter(depth=1, heavy=1, hurry=lambda: Broken() if late.is_set() else None)
    writer.put_heavy(gate)
    writer.put(fail)
    threading.Timer(0.1, late.set).start()
    others = [lambda: None] if call.startswith("put") else []
    with pytest.raises(Broken):
        getattr(writer, call)(*others)
    assert writer.left() == [gate, fail, *others]  # the gate is still at work
    gate.open.set()


def test_a_check_calls_off_as_well():
    with pytest.raises(Broken):
        BackgroundWriter(hurry=Broken).check()
