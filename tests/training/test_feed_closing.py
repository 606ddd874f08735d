"""Whatever a source does, an iterator can be dropped, a feed closed and the process ended."""

import itertools
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from training_helpers import make_trainer, points

from pipefit.data import Arrays, examples
from pipefit.errors import TrainingError
from pipefit.training.experiment import Shared
from pipefit.training.feeding.pipeline import Feed, validation_batches

ROOT = Path(__file__).parents[2]
#: Far longer than anything here may take.
LONG = 300


class Hanging:
    """Gives one example and the first batch, then does not return until it is released."""

    def __init__(self):
        self.hangs, self.released = threading.Event(), threading.Event()
        trained = examples(seed=0, start=0, count=8, n=1000)
        self.first = [trained.tolist(), [*range(8)], [0]]

    def __len__(self):
        return 1000

    def take(self, indices):
        if indices.tolist() not in self.first:
            self.hang()
        return points(1000).take(indices)

    def hang(self):
        self.hangs.set()
        self.released.wait(LONG)


class HangingRows:
    """As a stream."""

    def __init__(self):
        self.hangs, self.released = threading.Event(), threading.Event()

    def __iter__(self):
        for i in range(1000):
            if i > 8:
                Hanging.hang(self)
            yield {name: value[0] for name, value in points(1000).take(np.array([i])).items()}


@pytest.fixture(params=[Hanging, HangingRows])
def hanging(request):
    source = request.param()
    yield source
    source.released.set()


def quickly(action):
    begin = time.monotonic()
    action()
    assert time.monotonic() - begin < 5


class TestAHangingSource:
    def test_does_not_hold_up_dropping_an_iterator(self, hanging):
        iterators = [Feed(hanging, seed=0, batch_size=8).iterator(0)]
        next(iterators[0])
        assert hanging.hangs.wait(10)
        quickly(iterators.clear)

    def test_does_not_hold_up_breaking_off_a_validation(self, hanging):
        batches = iter(validation_batches(hanging, 8))
        next(batches)
        assert hanging.hangs.wait(10)
        quickly(batches.close)

    def test_does_not_hold_up_closing(self, hanging):
        feed = Feed(hanging, seed=0, batch_size=8)
        iterator = feed.iterator(0)
        next(iterator)
        assert hanging.hangs.wait(10)
        quickly(lambda: feed.close(1.0))

    def test_ends_the_training_when_another_thread_closes_the_feed(self, hanging):
        """As a watchdog may."""
        trainer = make_trainer(feed=Feed(hanging, seed=0, batch_size=8))

        def close():
            hanging.hangs.wait(10)
            trainer.feed.close(0.0)

        threading.Thread(target=close).start()
        with pytest.raises(TrainingError, match="closed while a batch was read"):
            trainer.run(100)

    def test_is_seen_in_a_thread_of_a_name(self, hanging):
        iterator = Feed(hanging, seed=0, batch_size=8).iterator(0)
        next(iterator)
        assert hanging.hangs.wait(10)
        named = {t.ident for t in threading.enumerate() if t.name.startswith("data-reader-")}
        frames = sys._current_frames()
        assert any("hangs" in _locals(frames[ident]) for ident in named)
        assert all(t.daemon for t in threading.enumerate() if t.ident in named)


def _locals(frame):
    while frame is not None:
        if frame.f_code.co_name == "hang":
            return vars(frame.f_locals["self"])
        frame = frame.f_back
    return {}


SCRIPT = """
import os, time
import numpy as np
from pipefit.data import examples
from pipefit.training.feeding.pipeline import Feed

class Indexed:
    def __init__(self, sleep):
        self.sleep = sleep
    due = examples(seed=0, start=0, count=12, n=1000).reshape(3, 4).tolist()
    def __len__(self):
        return 1000
    def take(self, indices):
        if len(indices) > 1 and indices.tolist() not in self.due:
            time.sleep(self.sleep)
        return dict(x=indices)

class Rows:
    def __init__(self, sleep):
        self.sleep = sleep
    def __iter__(self):
        try:
            for i in range(1000):
                if i >= 12:
                    time.sleep(self.sleep)
                yield dict(x=i)
        finally:
            print("closed", flush=True)

sources = [kind(sleep) for kind in (Indexed, Rows) for sleep in (0.001, {LONG})]
feeds = [Feed(source, seed=0, batch_size=4) for source in sources]
iterators = [feed.iterator(0) for feed in feeds]
for _ in range(3):
    for iterator in iterators:
        next(iterator)
print("ending", flush=True)
{end}
"""


CLOSED = "[feed.close(1) for feed in feeds]; iterators.clear(); os._exit(0)"


class TestAProcess:
    @pytest.mark.parametrize("end", ["", CLOSED], ids=["by itself", "closed"])
    def test_ends_with_iterators_whose_sources_are_read_or_hang(self, end):
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(LONG=LONG, end=end)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                said = list(itertools.takewhile(lambda line: "ending" not in line, process.stdout))
                begin = time.monotonic()
                rest = process.communicate(timeout=60)[0]
                assert process.returncode == 0
                assert time.monotonic() - begin < 15
            finally:
                process.kill()
        assert len(said) == 2  # the first looks are over
        if end:
            assert rest == "closed\n"  # what can be closed is

    def test_has_no_autotuner(self):
        """Its thread sleeps up to a minute, and the end of an iterator waits for it."""
        script = """
            import os
            import numpy as np, tensorflow as tf
            from pipefit.data import Arrays
            from pipefit.training.feeding import pipeline

            def new_threads():
                before = os.listdir("/proc/self/task")
                feed = pipeline.Feed(Arrays(x=np.arange(100.0)), seed=0, batch_size=4)
                iterators.append(feed.iterator(0))
                for _ in range(9):
                    next(iterators[-1])
                return len(set(os.listdir("/proc/self/task")) - set(before))

            iterators = []
            new_threads()  # those that all share
            off = new_threads()
            pipeline.options = tf.data.Options
            print(off, new_threads(), flush=True)
            os._exit(0)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=ROOT,
            capture_output=True,
            timeout=120,
            check=True,
        )
        off, on = map(int, done.stdout.split())
        assert off < on


def test_a_source_may_be_used_again_after_its_feed_was_closed():
    source = Arrays(x=np.arange(20))
    one = Feed(source, seed=0, batch_size=4)
    before = next(one.iterator(0))["x"].numpy()
    one.close()
    again = next(Feed(source, seed=0, batch_size=4).iterator(0))["x"].numpy()
    assert before.tolist() == again.tolist()
    assert next(one.iterator(0))["x"].numpy().tolist() == before.tolist()


class TestShared:
    """What a worker closes at the end of its runs."""

    def source(self, close):
        class Closing(Arrays):
            pass

        Closing.close = close
        return Closing(x=np.arange(20))

    def shared(self, source):
        shared = Shared({})
        shared._sources["one"] = source
        return shared

    def test_feeds_and_sources_are_closed(self):
        closed = []

        def close(source):
            closed.append(source)

        shared = self.shared(self.source(close))
        rows = HangingRows()
        feed = shared.feed("one", lambda: Feed(rows, seed=0, batch_size=4))
        next(feed.iterator(0))
        shared.close()
        assert closed == [shared._sources["one"]]

    def test_a_source_that_cannot_be_closed_holds_nothing_up(self, caplog):
        release = threading.Event()
        hanging = self.shared(self.source(lambda self: release.wait(LONG)))
        quickly(lambda: hanging.close(0.5))
        release.set()

        def fail(self):
            raise OSError("no such file")

        self.shared(self.source(fail)).close()
        assert "failed when it was closed" in caplog.text
