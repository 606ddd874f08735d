"""Who waits for a database that is away, and for how long: attempts without any training."""

import json
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from pipefit.errors import Interrupted, LeaseLost, StoreUnavailable
from pipefit.execution import spool
from pipefit.execution.replay import replay
from pipefit.execution.reporter import Reporter
from pipefit.execution.spool import End
from pipefit.execution.worker import patience
from pipefit.execution.worker.attempt import Attempt
from pipefit.records import MetricBlock, RunOrder, RunState, Validation
from pipefit.spec import read_spec
from pipefit.store import open_store, this_process
from tests.execution.test_spool import files_of_at_most
from tests.store.proxy import Proxy

SPEC = read_spec("configs/digits.toml", {"name": "a"})


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def proxy(database_uri):
    through = Proxy(f"{database_uri}&serverSelectionTimeoutMS=2000")
    yield through
    through.close()


class Asked:
    """Whether the run is asked to stop."""

    reason: str | None = None

    def __call__(self):
        return self.reason


@contextmanager
def attempt(uri, asked=lambda: None, ttl=60.0):
    """One that has begun, and has written the metrics of the steps 1 to 3."""
    far = open_store(uri)
    order = RunOrder(SPEC.collection, "a", "1", {}, json.dumps({}), SPEC.train.steps)
    writer = far.acquire(order, this_process(), ttl)
    with Reporter(lambda event: None) as reporter:
        made = Attempt(SPEC, order, writer, reporter, asked, store=far.describe())
        made.begin(-1)
        made.metrics(block(1, 3))
        made.results.flush()
        while len(far.run("a", SPEC.collection).metrics()) < 3:
            time.sleep(0.01)
        yield made


def block(first, last):
    return MetricBlock(first, {"loss": np.arange(first, last + 1.0)})


def until(what, made):
    """Wait until a log line of the attempt has these words."""
    deadline = time.monotonic() + 30
    while what not in made._reporter.tail():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def losses(store):
    return list(store.run("a", SPEC.collection).metrics()["loss"])


def test_who_stops_a_run_meanwhile_does_not_wait(store, proxy):
    asked = Asked()
    with attempt(proxy.uri, asked) as made:
        proxy.down()
        made.validation(Validation("test", 3, {"accuracy": 0.5}, 100))
        made.metrics(block(4, 6))
        until("trying again", made)
        asked.reason = "SIGTERM"
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable) as raised:
            made.stop_requested()
        made.failed(raised.value)

        # A try that is on its way, and a renewal of the lease, would take 2 s each.
        assert time.monotonic() - begin < 3.0
    assert str(made.spooled).startswith(str(raised.value))
    assert made.spooled.__cause__ is raised.value
    [left] = spool.find()
    assert f"what was not written is kept in {left.folder}; the same command" in str(made.spooled)
    *_, end = left.read()
    assert (end.state, end.step) == (RunState.INTERRUPTED, 3)

    proxy.up()
    replay(store, left)  # of this very process: it may take up its own attempt
    assert losses(store) == [1, 2, 3, 4, 5, 6]
    assert list(store.run("a", SPEC.collection).validations()["step"]) == [3]
    assert store.run("a", SPEC.collection).status().state is RunState.INTERRUPTED


class Restored:
    """A course that is only restored."""

    def restore(self, arrays):
        self.step = int(arrays["step"])


def test_an_attempt_waits_from_its_beginning(store, proxy):
    """Restored, begun and described, each while the database is away for a moment."""
    with attempt(proxy.uri) as first:
        first.writer.commit(3, {"step": np.asarray(3)}, frozenset({"recent"}))
        first.failed(Interrupted("stopped"))
    far = open_store(proxy.uri)
    order = RunOrder(SPEC.collection, "a", "1", {}, json.dumps({}), SPEC.train.steps)
    course, called = Restored(), []
    with Reporter(lambda event: None) as reporter:
        writer = far.acquire(order, this_process(), 60.0)
        second = Attempt(SPEC, order, writer, reporter, lambda: None)
        for call in (
            lambda: second.restore(course),
            lambda: second.begin(course.step),
            lambda: second.describe({"parameters": 7}, {"model.txt": b"small"}),
        ):
            proxy.down()
            warned = reporter.tail().count("trying again")
            thread = threading.Thread(target=lambda call=call: called.append(call()))
            thread.start()
            while reporter.tail().count("trying again") == warned:
                assert thread.is_alive()
                time.sleep(0.01)
            proxy.up()
            thread.join(30)
        second.failed(Interrupted("stopped"))

    assert called == [3, None, None]
    run = store.run("a", SPEC.collection)
    assert [made.start for made in run.attempts()] == [-1, 3]
    assert run.document()["model"] == {"parameters": 7} and run.artifact("model.txt") == b"small"


@pytest.mark.parametrize("stopping", [True, False])
def test_a_server_that_says_nothing_at_all_is_not_waited_for(proxy, monkeypatch, stopping):
    monkeypatch.setattr(patience, "_STOPPING_SECONDS", 1.0)
    monkeypatch.setattr(patience, "_HUNG_SECONDS", 0.5)
    asked = Asked()
    with attempt(proxy.uri, asked, ttl=60.0 if stopping else 1.0) as made:
        proxy.delay = 3600.0  # the driver would wait for 120 s, several times
        made.validation(Validation("test", 3, {"accuracy": 0.5}, 100))
        asked.reason = "SIGTERM" if stopping else None
        begin = time.monotonic()
        error = Interrupted("stopped as asked") if stopping else StoreUnavailable("is away")
        assert not made.failed(error)

        assert time.monotonic() - begin < 10.0
    if stopping:
        assert "has not answered for" in str(made.spooled)
    assert "kept in" in str(made.spooled)


def test_a_database_that_is_slow_or_cut_off_now_and_then_costs_nothing(store, proxy):
    with attempt(proxy.uri) as made:
        proxy.delay = 0.02
        for step in range(4, 13):
            proxy.cut_after = 3000 if step % 3 == 0 else None
            made.metrics(block(step, step))
            made.validation(Validation("test", step, {"accuracy": 0.5}, 100))
            time.sleep(0.1)
        made.finished(None)
    assert proxy.cuts > 0
    assert losses(store) == list(range(1, 13))
    assert len(store.run("a", SPEC.collection).validations()) == 9
    assert spool.find() == []


def test_a_run_that_was_complete_is_complete_after_a_replay(store, proxy):
    with attempt(proxy.uri, ttl=0.5) as made:
        proxy.down()
        with pytest.raises(StoreUnavailable) as raised:
            made.finished(None)
        made.failed(raised.value)
    proxy.up()
    [left] = spool.find()
    replay(store, left)
    assert store.run("a", SPEC.collection).status().state is RunState.FINISHED
    assert store.run("a", SPEC.collection).attempts()[0].reason is None


def test_the_memory_is_bounded_and_nothing_is_lost_while_it_waits(store, proxy, monkeypatch):
    monkeypatch.setattr("pipefit.execution.worker.results._METRICS_BYTES", 100_000)
    with attempt(proxy.uri) as made:
        proxy.down()
        images = MetricBlock(4, {"loss": np.ones(1), "image": np.ones((1, 20_000))})
        handing = threading.Thread(target=made.metrics, args=(images,), daemon=True)
        handing.start()
        until("trying again", made)
        assert handing.is_alive()
        proxy.up()
        handing.join(30)
        made.finished(None)
    assert losses(store) == [1, 2, 3, 1] and spool.find() == []


def test_if_its_own_disk_is_full_as_well_the_error_says_so(proxy, home):
    with attempt(proxy.uri, ttl=0.5) as made:
        proxy.down()
        images = MetricBlock(4, {"image": np.ones((1, 300_000))})
        made.metrics(images)
        with files_of_at_most(10**6), pytest.raises(StoreUnavailable) as raised:
            made.finished(None)
        with files_of_at_most(10**6):
            made.failed(raised.value)
    message = str(made.spooled)
    assert f"what was not written is lost: {home}/spool/" in message
    assert f"the disk of {home} is full (File too large); make room, and type the same" in message
    assert spool.find() == []


def test_what_somebody_else_owns_by_now_is_not_kept(store, proxy):
    with attempt(proxy.uri, ttl=0.3) as made:
        lost = LeaseLost("another process took it over")
        made.results._background.fail(lost)
        with pytest.raises(LeaseLost):
            made.validation(Validation("test", 3, {"accuracy": 0.5}, 100))
        made.failed(lost)
    assert made.spooled is None and spool.find() == []


def test_a_failure_of_the_run_itself_is_told_when_the_database_is_there_again(store, proxy):
    with attempt(proxy.uri, ttl=0.5) as made:
        proxy.down()
        made.metrics(block(4, 4))
        made.failed(ValueError("the model has a bug"))
        [left] = spool.find()
        assert f"kept in {left.folder}" in made._reporter.tail()
    assert made.spooled is None  # the bug is what is told
    proxy.up()
    assert [type(entry) for entry in left.read()][-1] is End
    replay(store, left)
    status = store.run("a", SPEC.collection).status()
    assert (status.state, status.reason) == (RunState.FAILED, "ValueError: the model has a bug")
