"""Batches: which examples, from which source, and what happens when one fails."""

import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import SEED, assert_equal, make_trainer, points, weights

from pipefit.data import Arrays, examples
from pipefit.errors import DataError, TrainingError
from pipefit.training import Objective, Replicas, Validator, per_example
from pipefit.training.feeding.pipeline import Feed, validation_batches
from pipefit.training.objective import sparse_softmax_cross_entropy


class Reader:
    """A source that reads with Python; `during` is called with the indices of every batch."""

    def __init__(self, source=None, during=None):
        self.source = source or points()
        self.during = during or (lambda indices: None)

    def __len__(self):
        return len(self.source)

    def take(self, indices):
        # Of one example: the first look at what the source gives.
        changed = self.during(indices) if len(indices) > 1 else None
        return self.source.take(indices) if changed is None else changed


def first(dataset, count):
    return [
        {name: tensor.numpy() for name, tensor in batch.items()}
        for batch in itertools.islice(dataset, count)
    ]


def batches(source, count, *, position=0, batch_size=8, seed=SEED):
    return first(Feed(source, seed=seed, batch_size=batch_size).iterator(position), count)


BOTH = pytest.mark.parametrize("kind", [lambda s: s, Reader], ids=["Arrays", "Reader"])


class TestTraining:
    @BOTH
    def test_batches_are_the_examples_in_their_order(self, kind):
        order = examples(seed=SEED, start=0, count=40, n=20).reshape(5, 8)
        for batch, indices in zip(batches(kind(points()), 5), order, strict=True):
            assert_equal(batch, points().take(indices))

    @BOTH
    def test_starting_at_a_position_is_skipping(self, kind):
        whole = batches(kind(points()), 6)
        for got, expected in zip(batches(kind(points()), 3, position=24), whole[3:], strict=True):
            assert_equal(got, expected)

    def test_a_position_within_a_batch_and_far_away(self):
        start = 10**12 + 3
        order = examples(seed=SEED, start=start, count=8, n=20)
        assert_equal(batches(points(), 1, position=start)[0], points().take(order))

    @BOTH
    def test_a_batch_larger_than_the_source(self, kind):
        batch = batches(kind(points(5)), 1, batch_size=12)[0]
        order = examples(seed=SEED, start=0, count=12, n=5)
        assert_equal(batch, points(5).take(order))

    def test_goes_on_beyond_one_block_of_indices(self, monkeypatch):
        monkeypatch.setattr("pipefit.training.feeding.numbers.BLOCK", 20)
        order = examples(seed=SEED, start=16, count=80, n=20).reshape(10, 8)
        for batch, indices in zip(batches(points(), 10, position=16), order, strict=True):
            assert_equal(batch, points().take(indices))

    def test_seeds_differ(self):
        one, other = (batches(points(), 1, seed=seed)[0]["x"] for seed in (0, 1))
        assert (one != other).any()

    def test_two_trainings_on_one_source_have_positions_of_their_own(self):
        shared = Reader()
        alone = make_trainer(source=Reader())
        alone.run(6)
        one, two = (make_trainer(source=shared) for _ in range(2))
        one.run(2)
        two.run(5)
        one.run(4)
        two.run(1)
        assert_equal(weights(one), weights(alone))
        assert_equal(weights(two), weights(alone))


class TestSources:
    def test_a_readers_training_is_that_of_its_arrays(self):
        one, two = (make_trainer(source=source) for source in (points(), Reader()))
        assert_equal(one.run(5), two.run(5))

    def test_what_a_subclass_of_arrays_takes_counts(self):
        class Flipped(Arrays):
            def take(self, indices):
                return {"x": -super().take(indices)["x"]}

        source = Flipped(x=np.arange(1.0, 11.0, dtype=np.float32))
        assert batches(source, 1)[0]["x"].max() < 0

    def test_texts_and_bytes_of_any_length(self):
        class Names:
            def __len__(self):
                return 5

            def take(self, indices):
                names = ["n" * (i + 1) for i in indices.tolist()]
                return {"text": np.array(names), "raw": np.array([n.encode() for n in names])}

        order = examples(seed=SEED, start=0, count=8, n=5)
        expected = [b"n" * (i + 1) for i in order.tolist()]
        batch = batches(Names(), 1)[0]
        assert batch["text"].tolist() == expected
        assert batch["raw"].tolist() == expected

    def test_several_batches_are_read_at_once_and_come_in_order(self):
        lock, reading, most = threading.Lock(), [0], [0]

        def during(indices):
            with lock:
                reading[0] += 1
                most[0] = max(most[0], reading[0])
            time.sleep(0.02 if indices[0] % 2 else 0.001)
            with lock:
                reading[0] -= 1

        got = batches(Reader(during=during), 12)
        assert most[0] > 1
        for batch, expected in zip(got, batches(points(), 12), strict=True):
            assert_equal(batch, expected)


def wrong_shape(indices):
    fields = points().take(indices)
    return {**fields, "x": fields["x"][:, :4]}


def wrong_type(indices):
    fields = points().take(indices)
    return {**fields, "x": fields["x"].astype(np.float64)}


def fewer(indices):
    return points().take(indices[:-1])


def unreadable(indices):
    raise OSError(5, "Input/output error", "/data/photo-7.png")


def ended(indices):
    raise StopIteration


FAULTS = [
    (wrong_shape, r"Reader: examples differ from the first one: got x float32\[4\], labels"),
    (wrong_type, r"Reader: examples differ from the first one: got x float64\[6\], labels"),
    (fewer, r"Reader: field 'x' has shape \(7, 6\) for 8 examples"),
    (unreadable, r"Reader: take\(\) of 8 examples \(\d+, \d+, \d+, ...\) failed with OSError: "),
    (ended, r"Reader: take\(\) of 8 examples .* failed with StopIteration"),
]


class TestFailures:
    """Whatever goes wrong in a source is a DataError whose first line says what."""

    @pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda v: getattr(v, "__name__", ""))
    def test_in_training(self, fault, words):
        trainer = make_trainer(source=Reader(during=fault))
        with pytest.raises(DataError, match=f"^{words}"):
            trainer.run(2)
        assert trainer.step == 0

    @pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda v: getattr(v, "__name__", ""))
    def test_in_validation(self, fault, words):
        with pytest.raises(DataError, match=f"^{words}"):
            validator(Reader(during=fault)).run()

    def test_has_the_sources_own_error_as_cause_and_its_traceback_in_the_details(self):
        with pytest.raises(DataError) as raised:
            make_trainer(source=Reader(during=unreadable)).run(1)
        assert isinstance(raised.value.__cause__, OSError)
        first, *details = str(raised.value).splitlines()
        assert "/data/photo-7.png" in first
        assert details[0] == "Traceback (most recent call last):"
        assert any("in unreadable" in line for line in details)
        assert not any("tensorflow" in line for line in details)

    def test_is_the_failure_of_the_batch_that_was_due(self):
        """Of batches that are read ahead only those that are trained on can fail a step."""
        order = examples(seed=SEED, start=0, count=800, n=20).reshape(-1, 8)

        def during(indices):
            if (indices == order[3]).all():
                raise ValueError("the fourth")

        trainer = make_trainer(source=Reader(during=during))
        trainer.run(3)
        assert trainer.step == 3
        with pytest.raises(DataError, match="ValueError: the fourth"):
            trainer.run(1)

    @pytest.mark.parametrize("devices", [1, 2])
    def test_labels_outside_of_the_logits_are_named(self, devices):
        source = points()
        source.fields["labels"][:] = 3
        with pytest.raises(TrainingError, match=r"^Inv.*field labels must .* 0 to 2.* \[3 3"):
            make_trainer(source=source, devices=devices).run(1)

    def test_of_other_operations_are_told_with_the_reason_first(self):
        def loss(logits, labels):
            tf.debugging.assert_less(labels, tf.constant(2, tf.int64), "a third class")
            return logits

        with pytest.raises(TrainingError) as raised:
            make_trainer(loss=loss).run(1)
        first, *details = str(raised.value).splitlines()
        assert first.startswith("InvalidArgumentError: [a third class] ")
        assert any("test_pipeline.py" in line for line in details)


def validator(source, batch_size=8):
    model = make_trainer().objective.model
    objective = Objective(model, per_example(sparse_softmax_cross_entropy(), "loss"), {})
    return Validator(objective=objective, source=source, replicas=Replicas(), batch_size=batch_size)


class TestValidation:
    @BOTH
    @pytest.mark.parametrize(("count", "sizes"), [(10, [4, 4, 2]), (8, [4, 4]), (3, [3])])
    def test_reads_every_example_exactly_once_in_order(self, kind, count, sizes):
        got = first(validation_batches(kind(points(count)), 4), 99)
        assert [len(batch["x"]) for batch in got] == sizes
        assert_equal(
            {name: np.concatenate([batch[name] for batch in got]) for name in got[0]},
            points(count).fields,
        )

    def test_again_and_again(self):
        dataset = validation_batches(Reader(), 8)
        assert [len(b["x"]) for _ in range(2) for b in first(dataset, 9)] == [8, 8, 4] * 2
