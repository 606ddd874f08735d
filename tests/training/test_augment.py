"""Random changes to examples: what they do, and that they are the same in every attempt."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    BATCH,
    SEED,
    assert_close,
    assert_equal,
    make_trainer,
    pictures,
    small_convnet,
    weights,
)

from pipefit.data import Arrays
from pipefit.data.order import augmentation_seeds, examples
from pipefit.errors import DataError, SpecError, TrainingError
from pipefit.training.augment import (
    normal,
    random_brightness,
    random_crop,
    random_flip,
    random_noise,
    uniform,
)
from pipefit.training.feeding.pipeline import Feed, validation_batches

MASK = (1 << 64) - 1


def mixed(x):
    """SplitMix64's finaliser in Python's integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def by_hand(seeds, count):
    rows = []
    for first, second in np.asarray(seeds).astype(np.uint64).tolist():
        counters = [(first + i * 0x9E3779B97F4A7C15) & MASK for i in range(1, count + 1)]
        rows.append([(mixed(mixed(c) ^ second) >> 40) / 2**24 for c in counters])
    return np.array(rows, np.float32)


def seeds_of(count, start=0):
    return tf.constant(augmentation_seeds(seed=SEED, start=start, count=count))


def images(count=40, size=6):
    draw = np.random.default_rng(0)
    return draw.random((count, size, size + 1, 2), np.float32)


def changed(change, values, seeds=None, **more):
    fields = {"images": tf.constant(values), **more}
    seeds = seeds_of(len(values)) if seeds is None else seeds
    return change(fields, seeds)["images"].numpy()


class TestNumbers:
    def test_seeds_are_a_function_of_seed_and_position(self):
        whole = augmentation_seeds(seed=SEED, start=0, count=100)
        part = augmentation_seeds(seed=SEED, start=70, count=30)
        assert whole[70:].tolist() == part.tolist()
        assert len(np.unique(whole)) == 200
        assert not (whole == augmentation_seeds(seed=SEED + 1, start=0, count=100)).any()

    def test_seeds_stay_what_they_are(self):
        """They are part of what a run is."""
        found = augmentation_seeds(seed=3, start=10**12, count=2)
        assert found.tolist() == [
            [-7360181241052325893, 8342423105069222401],
            [5418061176788891974, -9119706983797156492],
        ]

    def test_uniform_numbers_are_those_of_their_definition(self):
        seeds = seeds_of(30)
        np.testing.assert_array_equal(uniform(seeds, 7).numpy(), by_hand(seeds, 7))

    def test_uniform_numbers_are_even_and_independent(self):
        draws = uniform(seeds_of(20_000), 4).numpy()
        assert draws.min() >= 0 and draws.max() < 1
        np.testing.assert_allclose(draws.mean(0), 0.5, atol=0.01)
        np.testing.assert_allclose(draws.var(0), 1 / 12, atol=0.002)
        others = np.corrcoef(np.concatenate([draws[1:].T, draws[:-1].T])) - np.eye(8)
        assert np.abs(others).max() < 0.03

    @pytest.mark.parametrize("count", [4, 5])
    def test_normal_numbers_have_mean_0_and_variance_1(self, count):
        draws = normal(seeds_of(20_000), count).numpy()
        assert draws.shape == (20_000, count)
        np.testing.assert_allclose(draws.mean(0), 0, atol=0.03)
        np.testing.assert_allclose(draws.std(0), 1, atol=0.02)
        assert np.abs(np.corrcoef(draws.T) - np.eye(count)).max() < 0.03


class TestShipped:
    @pytest.mark.parametrize(("vertical", "axis"), [(False, 2), (True, 1)])
    def test_flip_mirrors_those_whose_number_is_below_a_half(self, vertical, axis):
        before = images()
        mirrored = by_hand(seeds_of(40), 1)[:, 0] < 0.5
        expected = np.where(mirrored[:, None, None, None], np.flip(before, axis), before)
        np.testing.assert_array_equal(changed(random_flip("images", vertical), before), expected)
        assert 10 < mirrored.sum() < 30

    @pytest.mark.parametrize(("padding", "size"), [(2, None), (0, (4, 3)), (1, (7, 7))])
    def test_crop_cuts_where_its_numbers_say(self, padding, size):
        before = images()
        sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        padded = np.pad(before, sides)
        height, width = size or (6, 7)
        spare = np.array([padded.shape[1] - height, padded.shape[2] - width])
        first = np.floor(by_hand(seeds_of(40), 2) * (spare + 1)).astype(int)
        expected = [
            image[y : y + height, x : x + width]
            for image, (y, x) in zip(padded, first.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(
            changed(random_crop("images", padding, size), before), expected
        )
        assert len(np.unique(first[:, 0])) == spare[0] + 1

    def test_noise_and_brightness(self):
        before = np.zeros((500, 8, 8), np.float32)
        noise = changed(random_noise("images", 0.3), before)
        np.testing.assert_allclose([noise.mean(), noise.std()], [0, 0.3], atol=0.01)
        brighter = changed(random_brightness("images", 0.2), before)
        assert (brighter == brighter[:, :1, :1]).all()
        assert 0.19 < np.abs(brighter).max() <= 0.2

    @pytest.mark.parametrize(
        "change",
        [
            random_flip("images"),
            random_crop("images", 1),
            random_noise("images", 0.1),
            random_brightness("images", 0.1),
        ],
    )
    def test_an_example_does_not_depend_on_its_neighbours(self, change):
        before, seeds = images(), seeds_of(40)
        whole = changed(change, before)
        alone = changed(change, before[13:17], seeds[13:17])
        np.testing.assert_array_equal(whole[13:17], alone)

    def test_other_fields_stay(self):
        fields = {"images": tf.constant(images()), "labels": tf.range(40)}
        after = random_flip("images")(fields, seeds_of(40))
        assert after["labels"] is fields["labels"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (random_flip("image"), "random_flip: field = 'image' is no field.*are images, labels"),
            (random_flip("labels"), r"field 'labels' has the shape \(\); images of"),
            (random_noise("labels", 1), "field 'labels' is int64; floating-point"),
            (random_crop("images", 0, (9, 9)), "pieces of 9 do not fit into the 4 that axis 1"),
        ],
    )
    def test_fields_that_do_not_fit_are_refused_at_the_start(self, change, words):
        with pytest.raises(SpecError, match=words):
            feed(augment=[change])


CHANGES = (random_flip("images"), random_crop("images", 1), random_noise("images", 0.1))


def feed(source=None, **options):
    return Feed(source or pictures(), **{"seed": SEED, "batch_size": BATCH, **options})


def batches(count, position=0, **options):
    iterator = feed(**options).iterator(position)
    return [{k: v.numpy() for k, v in next(iterator).items()} for _ in range(count)]


class Reader:
    def __len__(self):
        return 20

    def take(self, indices):
        return pictures().take(indices)


class Rows:
    def __iter__(self):
        while True:
            for i in range(20):
                yield {name: value[i] for name, value in pictures().fields.items()}


KINDS = pytest.mark.parametrize("kind", [pictures, Reader, Rows])


class TestInFeeds:
    @KINDS
    def test_changes_are_those_of_seed_and_position(self, kind):
        got = batches(4, source=kind(), augment=CHANGES)
        plain = batches(4, source=kind())
        for i, (batch, before) in enumerate(zip(got, plain, strict=True)):
            fields = {k: tf.constant(v) for k, v in before.items()}
            for k, change in enumerate(CHANGES):
                seeds = seeds_of(BATCH, i * BATCH) + tf.constant([0, k], tf.int64)
                fields = change(fields, seeds)
            assert_close(batch, {k: v.numpy() for k, v in fields.items()})

    @KINDS
    def test_continues_with_the_same(self, kind):
        whole = batches(7, source=kind(), augment=CHANGES)
        again = batches(3, 4 * BATCH, source=kind(), augment=CHANGES)
        for one, other in zip(again, whole[4:], strict=True):
            assert_equal(one, other)

    @KINDS
    def test_does_not_depend_on_readers(self, kind):
        one = batches(5, source=kind(), augment=CHANGES, readers=1, prefetch=1)
        many = batches(5, source=kind(), augment=CHANGES, readers=6, prefetch=9)
        for got, expected in zip(many, one, strict=True):
            assert_equal(got, expected)

    def test_does_not_depend_on_the_batch_size(self):
        small = batches(4, augment=CHANGES, batch_size=4)
        large = batches(2, augment=CHANGES, batch_size=8)
        joined = [
            {k: np.concatenate([a[k], b[k]]) for k in a}
            for a, b in zip(small[::2], small[1::2], strict=True)
        ]
        for got, expected in zip(joined, large, strict=True):
            assert_close(got, expected)

    def test_differs_from_epoch_to_epoch(self):
        source = Arrays(images=np.zeros((4, 2, 2), np.float32))
        one, two = batches(2, source=source, augment=[random_noise("images", 1)], batch_size=4)
        assert not (one["images"] == two["images"]).any()

    def test_the_same_change_twice_draws_twice(self):
        source = Arrays(images=np.zeros((4, 2, 2), np.float32))
        change = random_noise("images", 1)
        once = batches(1, source=source, augment=[change], batch_size=4)[0]["images"]
        twice = batches(1, source=source, augment=[change, change], batch_size=4)[0]["images"]
        assert not np.isclose(twice, 2 * once).any()

    def test_overfitting_repeats_the_changes_too(self):
        got = batches(5, augment=CHANGES, overfit=2)
        for i in range(2, 5):
            assert_equal(got[i], got[i - 2])

    def test_the_example_to_build_a_model_with_is_changed(self):
        example = feed(augment=[random_crop("images", 0, (3, 2))]).example()
        assert example["images"].shape == (1, 3, 2, 1)

    def test_validation_reads_the_examples_as_they_are(self):
        got = next(iter(validation_batches(pictures(), 20)))
        np.testing.assert_array_equal(got["images"], pictures().fields["images"])

    @pytest.mark.parametrize("devices", [1, 2])
    def test_a_training_continues_exactly_with_it(self, devices):
        def trainer():
            augmented = feed(augment=CHANGES)
            return make_trainer(small_convnet, feed=augmented, devices=devices)

        whole, part, again = (trainer() for _ in range(3))
        whole.run(6)
        part.run(2)
        again.restore({name: value.numpy() for name, value in part.snapshot().items()})
        again.run(4)
        assert_equal(weights(again), weights(whole))

    def test_a_training_is_the_same_on_one_and_two_devices(self):
        one, two = (
            make_trainer(feed=Feed(rows(), seed=SEED, batch_size=BATCH, augment=[noisy]), devices=d)
            for d in (1, 2)
        )
        one.run(5)
        two.run(5)
        assert_close(weights(one), weights(two))


def rows():
    draw = np.random.default_rng(0)
    return Arrays(x=draw.normal(size=(20, 6)).astype(np.float32), labels=np.arange(20) % 3)


def noisy(fields, seeds):
    return random_noise("x", 0.5)(fields, seeds)


def stateful(fields, seeds):
    return {**fields, "images": fields["images"] + tf.random.uniform([])}


def shuffled(fields, seeds):
    return {name: tf.random.shuffle(value) for name, value in fields.items()}


def of_keras(fields, seeds, layer=keras.layers.RandomFlip()):  # noqa: B008
    return {**fields, "images": layer(fields["images"], training=True)}


class TestRefused:
    @pytest.mark.parametrize("change", [stateful, shuffled, of_keras])
    def test_random_numbers_whose_state_is_not_saved(self, change):
        name = change.__name__
        words = rf"augment\[1\] \({name}\): .* has state that is not saved.*stateless_uniform"
        with pytest.raises(TrainingError, match=words):
            feed(augment=[CHANGES[0], change])

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (lambda f: list(f.values()), "must return a dict of tensors, not list"),
            (lambda f: {}, "must return a dict of tensors"),
            (lambda f: {**f, "images": f["images"][:4]}, r"has shape \(4, 4, 4, 1\) for 8 exam"),
            (lambda f: {**f, "mean": tf.reduce_mean(f["images"])}, r"'mean' has shape \(\) for 8"),
            (lambda f: {**f, "images": tf.boolean_mask(f["images"], f["labels"] > 0)}, "None"),
        ],
    )
    def test_results_that_are_no_batch(self, result, words):
        with pytest.raises(DataError, match=words):
            feed(augment=[lambda fields, seeds: result(fields)])

    def test_an_operation_that_fails_is_told_as_one_of_the_data(self):
        def failing(fields, seeds):
            return {
                **fields,
                "images": tf.debugging.check_numerics(fields["images"] / 0.0, "not finite"),
            }

        trainer = make_trainer(small_convnet, feed=feed(augment=[failing]))
        with pytest.raises(DataError, match=r"^the data: InvalidArgumentError: not finite"):
            trainer.run(1)


def test_changes_are_made_to_the_examples_in_their_order():
    source = Arrays(x=np.arange(20.0, dtype=np.float32))
    order = examples(seed=SEED, start=0, count=16, n=20)
    iterator = Feed(
        source, seed=SEED, batch_size=8, augment=[lambda f, s: {"x": f["x"] + 100}]
    ).iterator(0)
    got = np.concatenate([next(iterator)["x"].numpy() for _ in range(2)])
    assert (got == order + 100).all()
