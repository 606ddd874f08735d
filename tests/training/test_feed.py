"""A feed gives the same batches from any position on: streams, own orders, overfitting, checks."""

import itertools
import logging
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import BATCH, SEED, assert_equal, make_trainer, points, weights

from pipefit.data import Arrays, examples
from pipefit.errors import DataError
from pipefit.training.feeding.pipeline import Feed, validation_batches

COUNT = 60


class Rows:
    """The examples of an Arrays source, one after the other; says how often it is open."""

    def __init__(self, source, times=1):
        self.source, self.times = source, times
        self.opened = self.closed = 0

    def __iter__(self):
        self.opened += 1
        try:
            for _ in range(self.times):
                for i in range(len(self.source)):
                    yield {name: value[i] for name, value in self.source.fields.items()}
        finally:
            self.closed += 1


def dataset(source, times=1):
    return tf.data.Dataset.from_tensor_slices(source.fields).repeat(times)


STREAMS = pytest.mark.parametrize("stream", [Rows, dataset])


def first(feed, count, position=0):
    with feed.failures.surfacing():
        return [
            {name: tensor.numpy() for name, tensor in batch.items()}
            for batch in itertools.islice(feed.iterator(position), count)
        ]


def feed_of(source, **options):
    return Feed(source, **{"seed": SEED, "batch_size": BATCH, **options})


def eventually(condition):
    """Wait for what happens in another thread."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def assert_batches(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_equal(one, other)


class TestStreams:
    @STREAMS
    def test_batches_are_the_examples_in_their_own_order(self, stream):
        source = points(COUNT)
        expected = [source.take(np.arange(i, i + BATCH)) for i in range(0, 40, BATCH)]
        assert_batches(first(feed_of(stream(source)), 5), expected)

    @STREAMS
    def test_a_resumed_one_gives_what_was_due_and_says_what_that_cost(self, stream, caplog):
        caplog.set_level(logging.INFO, "pipefit.run")
        whole = first(feed_of(stream(points(COUNT))), 7)
        feed = feed_of(stream(points(COUNT)))
        resumed = feed.iterator(4 * BATCH)
        assert feed.skipped == 0
        got = [{k: v.numpy() for k, v in next(resumed).items()} for _ in range(3)]
        assert_batches(got, whole[4:])
        assert feed.skipped == 4 * BATCH
        eventually(lambda: "skipped 32 examples in 0." in caplog.text)

    @STREAMS
    def test_continues_within_a_batch(self, stream):
        got = first(feed_of(stream(points(COUNT))), 2, 3 * BATCH + 5)
        expected = [points(COUNT).take(np.arange(i, i + BATCH)) for i in (29, 37)]
        assert_batches(got, expected)

    @STREAMS
    def test_a_training_killed_after_batch_7_continues_with_batch_8(self, stream):
        whole, part = (make_trainer(source=stream(points(COUNT), 3)) for _ in range(2))
        whole.run(12)
        part.run(7)
        state = {name: value.numpy() for name, value in part.snapshot().items()}
        again = make_trainer(source=stream(points(COUNT), 3))
        again.restore(state)
        again.run(5)
        assert_equal(weights(again), weights(whole))

    @STREAMS
    @pytest.mark.parametrize("position", [0, 16])
    def test_that_ends_too_early_ends_the_training_with_how_many_examples_it_had(
        self, stream, position
    ):
        with pytest.raises(DataError, match=r"ended after (20|16) examples.*2 steps.*repeat") as e:
            first(feed_of(stream(points(20))), 9, position)
        assert "train.steps = 2" in str(e.value)

    @STREAMS
    def test_is_read_to_its_end_for_every_validation(self, stream):
        batches = validation_batches(stream(points(20)), 8)
        for _ in range(2):
            got = [{k: v.numpy() for k, v in batch.items()} for batch in batches]
            assert [len(batch["x"]) for batch in got] == [8, 8, 4]
            joined = {name: np.concatenate([batch[name] for batch in got]) for name in got[0]}
            assert_equal(joined, points(20).fields)
        assert batches.examples is None

    @STREAMS
    def test_whose_end_is_the_end_of_a_batch_is_validated_whole(self, stream):
        got = list(validation_batches(stream(points(16)), 8))
        assert [len(batch["x"]) for batch in got] == [8, 8]

    @STREAMS
    def test_without_examples_is_refused(self, stream):
        empty = Arrays(x=np.zeros(1, np.float32))
        empty.fields["x"], empty._length = empty.fields["x"][:0], 0
        with pytest.raises(DataError, match="no examples"):
            feed_of(stream(empty))


class TestIterables:
    def test_are_closed_when_a_feed_is(self):
        rows = Rows(points(COUNT), 100)
        feed = feed_of(rows)
        iterator = feed.iterator(0)
        next(iterator)
        assert rows.opened == rows.closed + 1  # one is being read, the first look is over
        feed.close()
        assert rows.opened == rows.closed

    def test_are_closed_when_an_iterator_is_dropped_or_a_validation_broken_off(self):
        rows = Rows(points(COUNT), 100)
        iterator = feed_of(rows).iterator(0)
        next(iterator)
        validation = iter(validation_batches(rows, 4))
        next(validation)
        del iterator
        validation.close()
        eventually(lambda: rows.opened == rows.closed)
        assert rows.opened == 4

    def test_an_exception_ends_the_training_with_its_cause_and_place(self):
        class Broken(Rows):
            def __iter__(self):
                yield from itertools.islice(super().__iter__(), 19)
                raise OSError(5, "Input/output error", "/data/log-3")

        trainer = make_trainer(source=Broken(points(COUNT)))
        trainer.run(2)
        with pytest.raises(DataError) as raised:
            trainer.run(1)
        head, *details = str(raised.value).splitlines()
        assert "Broken: reading what follows the first 16 examples failed with OSError" in head
        assert isinstance(raised.value.__cause__, OSError)
        assert details[0].startswith("Traceback") and "test_feed.py" in details[1]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda row: {**row, "x": row["x"][:4]}, r"got x float32\[4\].*\(example 11\)"),
            (lambda row: {**row, "x": np.float64(row["x"])}, r"got x float64.*\(example 11\)"),
            (lambda row: {"x": row["x"]}, r"got x float32\[6\], the .*\(example 11\)"),
            (lambda row: {**row, "more": 1}, r"more int64\[\], the .*\(example 11\)"),
            (lambda row: tuple(row.values()), r"example 11 is no dict of arrays but a tuple"),
        ],
    )
    def test_an_example_unlike_the_first_is_named(self, change, words):
        class Unlike(Rows):
            def __iter__(self):
                for i, row in enumerate(super().__iter__()):
                    yield change(row) if i == 11 else row

        with pytest.raises(DataError, match=words):
            first(feed_of(Unlike(points(COUNT))), 2)

    def test_that_can_be_read_only_once_are_refused(self):
        with pytest.raises(DataError, match=r"can be read only once.*__iter__"):
            feed_of({"x": i} for i in range(9))

    def test_of_something_else_are_refused(self):
        with pytest.raises(DataError, match=r"must give dicts.*not int"):
            feed_of([1, 2, 3])


class Names:
    """Texts and bytes, by index."""

    def __len__(self):
        return 8

    def take(self, indices):
        texts = ["ä" * (i + 1) for i in indices.tolist()]
        return {"text": np.array(texts), "raw": np.array([t.encode("utf-16-be") for t in texts])}


@pytest.mark.parametrize("kind", ["indexed", "rows", "arrays"])
def test_texts_and_bytes_of_any_length(kind):
    every = Names().take(np.arange(8))
    kinds = {"indexed": Names, "arrays": lambda: Arrays(**every)}
    kinds["rows"] = lambda: Rows(Arrays(**every))
    order = np.arange(8) if kind == "rows" else examples(seed=SEED, start=0, count=8, n=8)
    batch = first(feed_of(kinds[kind]()), 1)[0]
    assert [text.decode() for text in batch["text"]] == ["ä" * (i + 1) for i in order]
    assert batch["raw"].tolist() == every["raw"][order].tolist()


class TestDatasets:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda d: d.batch(4), r"shape \(None, 6\).*leave .batch\(\) out"),
            (lambda d: d.batch(4, drop_remainder=True), r"gives batches; leave .batch\(\) out"),
            (lambda d: d.batch(4, drop_remainder=True).map(lambda x: x).prefetch(1), "batches"),
            (lambda d: d.map(lambda e: (e["x"], e["labels"])), r"must give dicts.*\.map\("),
            (lambda d: d.map(lambda e: {"inputs": e}), "'inputs'.*take nested dicts apart"),
        ],
    )
    def test_other_elements_are_refused_with_what_to_do(self, make, words):
        with pytest.raises(DataError, match=words):
            feed_of(make(dataset(points(COUNT))))

    def test_batches_that_are_taken_apart_again_are_examples(self):
        batched = dataset(points(COUNT)).batch(4, drop_remainder=True).unbatch()
        assert_batches(first(feed_of(batched), 2), first(feed_of(dataset(points(COUNT))), 2))

    def test_that_never_end_cannot_be_validated_on(self):
        endless = validation_batches(dataset(points(COUNT), -1), 8)
        with pytest.raises(DataError, match=r"never ends.*leave \.repeat\(\) out"):
            list(endless)

    def test_that_shuffle_otherwise_at_every_reading_are_warned_of(self, caplog):
        rows = dataset(points(COUNT))
        first(feed_of(rows.shuffle(9, seed=1).repeat()), 1)
        assert "shuffle() gives another order" in caplog.text
        caplog.clear()
        epochs = tf.data.Dataset.counter().flat_map(
            lambda epoch: rows.shuffle(9, seed=epoch, reshuffle_each_iteration=False)
        )
        feed = feed_of(epochs)
        whole = first(feed, 20)
        assert_batches(first(feed, 3, 17 * BATCH), whole[17:])
        assert not caplog.text

    def test_may_generate_and_shuffle(self):
        """With deterministic ops, as all tests here."""

        def rows():
            for i in range(COUNT):
                yield {"x": np.float32(i)}

        def made():
            spec = {"x": tf.TensorSpec([], tf.float32)}
            generated = tf.data.Dataset.from_generator(rows, output_signature=spec)
            return generated.shuffle(16, seed=3).repeat()

        whole = first(feed_of(made()), 9)
        assert_batches(first(feed_of(made()), 2, 7 * BATCH), whole[7:])
        seen = np.concatenate([batch["x"] for batch in whole])[:COUNT]
        assert sorted(seen) == list(range(COUNT))

    def test_an_exception_within_is_told_first(self):
        def fail(i):
            raise ValueError(f"no such picture: {i}")

        def broken(example):
            x = tf.cond(
                example["labels"] == 2,
                lambda: tf.numpy_function(fail, [example["labels"]], tf.float32),
                lambda: example["x"],
            )
            return {"x": tf.ensure_shape(x, [6]), "labels": example["labels"]}

        trainer = make_trainer(source=dataset(points(COUNT)).map(broken))
        with pytest.raises(DataError, match=r"^the data: ValueError: no such picture: 2\n"):
            trainer.run(1)


class TestOwnOrders:
    class Backwards(Arrays):
        def order(self, seed, start, count):
            return len(self) - 1 - np.arange(start, start + count) % len(self)

    def test_take_the_place_of_the_permutations(self):
        source = self.Backwards(x=np.arange(20))
        got = np.concatenate([batch["x"] for batch in first(feed_of(source), 3, 8)])
        assert got.tolist() == [*range(11, -1, -1), *range(19, 7, -1)]

    @pytest.mark.parametrize(
        ("order", "words"),
        [
            (lambda count: np.arange(count) + 20, "indices from 0 to 19, not 20 to"),
            (lambda count: np.arange(count - 1), r"must return \d+ integers, not int64\[\d+\]"),
            (np.zeros, r"must return \d+ integers, not float64"),
            (lambda count: 1 // 0, r"order\(\) failed with ZeroDivisionError"),
        ],
    )
    def test_that_are_wrong_are_told(self, order, words):
        class Wrong(Arrays):
            def order(self, seed, start, count):
                return order(count)

        with pytest.raises(DataError, match=words):
            first(feed_of(Wrong(x=np.arange(20))), 1)


class TestLargeArrays:
    def test_give_the_same_batches(self, monkeypatch):
        usual = first(feed_of(points(COUNT)), 5)
        monkeypatch.setattr("pipefit.training.feeding.indexed.LARGE", 100)
        assert_batches(first(feed_of(points(COUNT)), 5), usual)

    def test_are_not_copied(self):
        """What feeds need at most besides the arrays, in sizes of theirs."""
        script = """
            import resource
            import numpy as np, tensorflow as tf
            from pipefit.data import Arrays
            from pipefit.data.arrays import aligned
            from pipefit.training.feeding import indexed
            from pipefit.training.feeding.pipeline import Feed

            def peak():
                return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

            tf.config.experimental.enable_op_determinism()
            next(Feed(Arrays(x=np.arange(9)), seed=0, batch_size=2).iterator(0))
            values = aligned(np.zeros((1000, 25_000), np.float32))
            source = Arrays(x=values)
            before = peak()
            assert source.fields["x"] is values
            for large in 1 << 20, 1 << 30:
                indexed.LARGE = large
                feeds = [Feed(source, seed=seed, batch_size=4) for seed in range(3)]
                for feed in feeds:
                    next(feed.iterator(0))
                print((peak() - before) / values.nbytes)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        )
        large, small = map(float, done.stdout.split())
        assert large < 0.3
        assert small < 1.3


class TestOverfit:
    @pytest.mark.parametrize("stream", [lambda s: s, Rows, dataset])
    def test_repeats_the_first_batches_from_any_position(self, stream):
        usual = first(feed_of(stream(points(COUNT))), 3)
        again = first(feed_of(stream(points(COUNT)), overfit=3), 8)
        assert_batches(again, [usual[i % 3] for i in range(8)])
        resumed = first(feed_of(stream(points(COUNT)), overfit=3), 4, 4 * BATCH)
        assert_batches(resumed, again[4:])

    def test_of_more_batches_than_a_block_of_positions(self, monkeypatch):
        monkeypatch.setattr("pipefit.training.feeding.numbers.BLOCK", 2 * BATCH)
        usual = first(feed_of(points(COUNT)), 5)
        again = first(feed_of(points(COUNT), overfit=5), 12, BATCH)
        assert_batches(again, [usual[i % 5] for i in range(1, 13)])

    def test_is_no_way_around_the_end_of_a_stream(self):
        with pytest.raises(DataError, match="ended after 20 examples"):
            first(feed_of(Rows(points(20)), overfit=3), 3)


class TestDeclared:
    RIGHT = {"x": "float32[6]", "labels": "int64[]"}  # noqa: RUF012

    @pytest.mark.parametrize("kind", [lambda s: s, Rows, dataset])
    def test_fields_that_are_as_declared(self, kind):
        feed_of(kind(points(COUNT)), declared=self.RIGHT)
        validation_batches(kind(points(COUNT)), 8, declared=self.RIGHT)

    @pytest.mark.parametrize("kind", [lambda s: s, Rows, dataset])
    @pytest.mark.parametrize(
        ("declared", "words"),
        [
            ({"x": "float32[7]"}, r"x is declared float32\[7\], and is float32\[6\]"),
            ({"x": "float64[6]"}, r"x is declared float64\[6\], and is float32\[6\]"),
            ({"y": "int64[]"}, r"y is declared int64\[\], and is missing"),
        ],
    )
    def test_others_are_named_at_the_start(self, kind, declared, words):
        with pytest.raises(DataError, match=words):
            feed_of(kind(points(COUNT)), declared=declared)
        with pytest.raises(DataError, match=words):
            validation_batches(kind(points(COUNT)), 8, declared=declared)

    @pytest.mark.parametrize("text", ["str", "bytes"])
    def test_strings_of_tensorflow_are_texts_or_bytes(self, text):
        names = tf.data.Dataset.from_tensors({"name": "a"})
        feed_of(names, declared={"name": text})


class TestReaders:
    @pytest.mark.parametrize("readers", [1, 3])
    def test_as_many_batches_are_read_at_once_as_there_are_readers(self, readers):
        lock, inside, most = threading.Lock(), [0], [0]
        together = threading.Event()

        class Slow:
            def __len__(self):
                return 40

            def take(self, indices):
                if len(indices) > 1:
                    with lock:
                        inside[0] += 1
                        most[0] = max(most)
                        most.append(inside[0])
                    if inside[0] >= readers:
                        together.set()
                    together.wait(10)
                    with lock:
                        inside[0] -= 1
                return {"x": indices}

        got = first(feed_of(Slow(), readers=readers, prefetch=2), 6)
        assert max(most) == readers
        order = examples(seed=SEED, start=0, count=48, n=40).reshape(6, 8)
        assert [batch["x"].tolist() for batch in got] == order.tolist()

    def test_no_more_batches_are_read_ahead_than_asked_for(self):
        taken = []

        class Counting:
            def __len__(self):
                return 1000

            def take(self, indices):
                taken.append(len(indices))
                return {"x": indices}

        feed = feed_of(Counting(), readers=1, prefetch=2)
        iterator = feed.iterator(0)
        next(iterator)
        threading.Event().wait(0.3)
        # One is handed out, two are ready, one is on the way; one example was looked at first.
        assert taken.count(BATCH) <= 1 + 2 + 1 + 1
        feed.close()

    def test_the_example_to_build_a_model_with_is_the_first_one(self):
        for source in (points(COUNT), Rows(points(COUNT)), dataset(points(COUNT))):
            example = {k: v.numpy() for k, v in feed_of(source).example().items()}
            assert_equal(example, points(COUNT).take(np.zeros(1, np.int64)))
