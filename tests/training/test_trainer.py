"""The inner loop on one device does what a loop written out in NumPy does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    SEED,
    adam,
    arrays,
    assert_close,
    assert_equal,
    bare_loop,
    linear,
    make_trainer,
    perceptron,
    points,
    sgd,
    weights,
    with_layers,
)

from pipefit.data import Arrays, examples
from pipefit.errors import SpecError, TrainingError
from pipefit.records import TIMING
from pipefit.training import Clip
from pipefit.training.objective import accuracy

OPTIMIZERS = {
    "SGD": (lambda: keras.optimizers.SGD(0.2, momentum=0.9), sgd(0.2, momentum=0.9)),
    "Adam": (lambda: keras.optimizers.Adam(0.01), adam(0.01)),
    "AdamW": (
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        adam(0.01, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_bare_loop(name):
    optimizer, rule = OPTIMIZERS[name]
    trainer = make_trainer(optimizer=optimizer, metrics={"accuracy": accuracy()})
    start = weights(trainer)
    rows = trainer.run(7)
    expected, losses, accuracies = bare_loop(start, 7, rule)
    assert_close(weights(trainer), expected)
    assert_close(
        rows, {"loss": losses, "accuracy": accuracies, "learning_rate": rows["learning_rate"]}
    )
    assert len(set(accuracies)) > 1


def test_counts_steps_and_positions():
    trainer = make_trainer(batch=8)
    assert (trainer.step, trainer.position) == (0, 0)
    rows = trainer.run(3)
    assert (trainer.step, trainer.position) == (3, 24)
    names = {"loss", "learning_rate", *TIMING}
    assert {name: (row.shape, row.dtype) for name, row in rows.items()} == dict.fromkeys(
        names, ((3,), np.float32)
    )


def test_one_call_of_ten_steps_is_bit_equal_to_ten_calls():
    model = with_layers(lambda: keras.layers.Dropout(0.5, name="drop"))
    one, ten = (
        make_trainer(model, optimizer=lambda: keras.optimizers.Adam(0.01)) for _ in range(2)
    )
    rows = one.run(10)
    parts = [ten.run(1) for _ in range(10)]
    assert_equal({name: np.concatenate([p[name] for p in parts]) for name in rows}, rows)
    assert_equal(arrays(ten), arrays(one))


def test_slices_of_a_batch_give_the_update_of_the_whole():
    whole, sliced = (
        make_trainer(
            lambda: perceptron(kernel_regularizer=keras.regularizers.L2(0.03)),
            metrics={"accuracy": accuracy()},
            optimizer=lambda: keras.optimizers.SGD(0.2, momentum=0.9),
            clip=Clip(global_norm=0.3),
            accumulate=n,
        )
        for n in (1, 4)
    )
    assert_close(sliced.run(5), whole.run(5))
    assert_close(weights(sliced), weights(whole))


def test_one_example_per_step():
    trainer = make_trainer(batch=1)
    start = weights(trainer)
    rows = trainer.run(4)
    expected, losses, _ = bare_loop(start, 4, sgd(0.1), batch=1)
    assert_close(weights(trainer), expected)
    np.testing.assert_allclose(rows["loss"], losses, rtol=1e-6)


def test_a_batch_larger_than_the_source_spans_epochs():
    source = points(5)
    trainer = make_trainer(source=source, batch=12)
    start = weights(trainer)
    trainer.run(3)
    expected, _, _ = bare_loop(start, 3, sgd(0.1), batch=12, source=source)
    assert_close(weights(trainer), expected)


@pytest.fixture(scope="module")
def gradient():
    """Of the first batch, by one step of size 1."""
    return first_update()


def first_update(**options):
    trainer = make_trainer(optimizer=lambda: keras.optimizers.SGD(1.0), **options)
    before = weights(trainer)
    trainer.run(1)
    return {name: before[name] - after for name, after in weights(trainer).items()}


class TestClipping:
    """Expected values by hand, from the gradient that is not clipped."""

    def test_by_value(self, gradient):
        assert any(np.abs(g).max() > 0.05 for g in gradient.values())
        assert_close(
            first_update(clip=Clip(value=0.05)),
            {n: np.clip(g, -0.05, 0.05) for n, g in gradient.items()},
        )

    def test_by_the_norm_of_each(self, gradient):
        norms = {name: np.sqrt((g**2).sum()) for name, g in gradient.items()}
        assert min(norms.values()) < 0.25 < max(norms.values())
        assert_close(
            first_update(clip=Clip(norm=0.25)),
            {n: g * min(1, 0.25 / norms[n]) for n, g in gradient.items()},
        )

    def test_by_their_common_norm(self, gradient):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        assert norm > 0.2
        assert_close(
            first_update(clip=Clip(global_norm=0.2)),
            {n: g * 0.2 / norm for n, g in gradient.items()},
        )

    def test_not_at_all_below_the_limit(self, gradient):
        for limit in ({"value": 100.0}, {"norm": 100.0}, {"global_norm": 100.0}):
            assert_close(first_update(clip=Clip(**limit)), gradient)


def test_the_common_norm_of_sparse_gradients_is_that_of_the_dense_ones():
    """Rows that a batch names twice are added before their norm is taken."""

    class Dense(keras.layers.Embedding):
        """Looks up by a matrix product: its gradient is dense."""

        def call(self, inputs):
            return tf.one_hot(inputs, self.input_dim) @ self.embeddings

    def model(layer):
        def make():
            words = keras.Input((4,), name="words", dtype="int64")
            y = keras.layers.Flatten(name="flat")(layer(3, 2, name="e")(words))
            return keras.Model(words, keras.layers.Dense(3, name="b")(y))

        return make

    words = np.random.default_rng(0).integers(0, 3, (20, 4))
    source = Arrays(words=words, labels=np.arange(20) % 3)
    sparse, dense = (
        make_trainer(model(layer), source, clip=Clip(global_norm=0.1))
        for layer in (keras.layers.Embedding, Dense)
    )
    assert_close(sparse.run(5), dense.run(5))
    assert_close(weights(sparse), weights(dense))


class TestLearningRates:
    def test_the_column_is_the_schedules_formula(self):
        def schedule():
            return keras.optimizers.schedules.ExponentialDecay(0.3, 4, 0.5, staircase=True)

        trainer = make_trainer(optimizer=lambda: keras.optimizers.SGD(schedule()))
        start = weights(trainer)
        rows = trainer.run(10)
        np.testing.assert_allclose(
            rows["learning_rate"], [0.3] * 4 + [0.15] * 4 + [0.075] * 2, rtol=1e-6
        )
        expected, _, _ = bare_loop(start, 10, sgd(lambda step: 0.3 * 0.5 ** ((step - 1) // 4)))
        assert_close(weights(trainer), expected)

    def test_a_constant_one_is_in_every_row(self):
        assert make_trainer().run(3)["learning_rate"].tolist() == [np.float32(0.1)] * 3

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_a_scale_of_zero_leaves_a_variable_as_it_is(self, name):
        trainer = make_trainer(optimizer=OPTIMIZERS[name][0], groups=[("^a/", 0.0)])
        before = weights(trainer)
        trainer.run(5)
        after = weights(trainer)
        for path in before:
            assert (before[path].tobytes() == after[path].tobytes()) == path.startswith("a/")

    def test_a_tenth_is_a_tenth_of_the_update(self):
        groups = [("^a/kernel$", 0.1), ("^b", 0.01), ("kernel", 0.5)]
        full, scaled = (make_trainer(groups=g) for g in ((), groups))
        start = weights(full)
        full.run(1)
        scaled.run(1)
        factors = {"a/kernel": 0.1, "a/bias": 1.0, "b/kernel": 0.01, "b/bias": 0.01}
        got = {n: (w - start[n]).astype(np.float64) for n, w in weights(scaled).items()}
        expected = {n: (w - start[n]) * factors[n] for n, w in weights(full).items()}
        assert_close(got, expected, tolerance=1e-7)

    @pytest.mark.parametrize("name", ["Adam", "AdamW"])
    def test_a_scale_is_a_learning_rate_of_its_own(self, name):
        """Also of the weight decay, whose strength is the learning rate times the decay."""
        decay = {"Adam": 0.0, "AdamW": 0.1}[name]
        rules = {"a": adam(0.001, decay), "b": adam(0.01, decay)}
        trainer = make_trainer(optimizer=OPTIMIZERS[name][0], groups=[("^a/", 0.1)])
        start = weights(trainer)
        trainer.run(6)
        expected, _, _ = bare_loop(start, 6, lambda n, w, g, t: rules[n[0]](n, w, g, t))
        assert_close(weights(trainer), expected)


class TestAddedLosses:
    def test_what_a_layer_adds_is_in_the_loss(self):
        class Adds(keras.layers.Layer):
            def call(self, x):
                self.add_loss(2.0 + 0.0 * tf.reduce_sum(x))
                return x

        plain, adding = (
            make_trainer(with_layers(lambda layer=layer: layer(name="extra")))
            for layer in (keras.layers.Identity, Adds)
        )
        np.testing.assert_allclose(adding.run(3)["loss"], plain.run(3)["loss"] + 2, rtol=1e-6)


class TestFrozen:
    def test_a_frozen_layer_stays_as_it_is(self):
        def model():
            made = perceptron()
            made.get_layer("a").trainable = False
            return made

        trainer = make_trainer(model)
        before = weights(trainer)
        trainer.run(4)
        after = weights(trainer)
        for path in before:
            assert (before[path].tobytes() == after[path].tobytes()) == path.startswith("a/")

    def test_the_statistics_of_a_frozen_batch_normalisation_stay_as_they_are(self):
        def layer():
            return keras.layers.BatchNormalization(trainable=False, name="norm")

        trainer = make_trainer(with_layers(layer))
        before = weights(trainer)
        trainer.run(4)
        moved = {n for n, w in weights(trainer).items() if w.tobytes() != before[n].tobytes()}
        assert moved == {"a/kernel", "a/bias", "b/kernel", "b/bias"}


def test_xla_computes_the_same():
    plain, compiled = (make_trainer(jit_compile=jit) for jit in (False, True))
    assert_close(compiled.run(4), plain.run(4))
    assert_close(weights(compiled), weights(plain))


def test_a_model_of_several_losses_is_trained_on_their_sum():
    """A loss may take any field and any output, and everything by `inputs` and `outputs`."""

    def two(labels, logits, inputs, outputs):
        assert (inputs["labels"], outputs["logits"]) == (labels, logits)
        first = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return first + 0.5 * tf.reduce_sum(logits**2, axis=1)

    trainer = make_trainer(linear, loss=two)
    start = weights(trainer)
    kernel = tf.Variable(start["b/kernel"])
    bias = tf.Variable(start["b/bias"])
    rows = trainer.run(1)
    order = examples(seed=SEED, start=0, count=8, n=20)
    x, labels = (points().fields[name][order] for name in ("x", "labels"))
    with tf.GradientTape() as tape:
        logits = x @ kernel + bias
        cross = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(cross) + 0.5 * tf.reduce_sum(logits**2) / 8
    gradients = tape.gradient(loss, [kernel, bias])
    np.testing.assert_allclose(rows["loss"], [loss], rtol=1e-6)
    expected = {
        "b/kernel": start["b/kernel"] - 0.1 * gradients[0].numpy(),
        "b/bias": start["b/bias"] - 0.1 * gradients[1].numpy(),
    }
    assert_close(weights(trainer), expected)


class TestRefused:
    def test_an_optimizer_that_counts_otherwise(self):
        class Twice(keras.optimizers.SGD):
            def apply(self, grads, trainable_variables=None):
                super().apply(grads, trainable_variables)
                self.iterations.assign_add(1)

        with pytest.raises(TrainingError, match="3 steps were asked for, the optimizer did 6"):
            make_trainer(optimizer=lambda: Twice(0.1)).run(3)

    def test_slices_that_do_not_divide_the_batch(self):
        told = r"accumulate = 3: must divide the batch size, which is 8; nearest .*: 6 and 9$"
        with pytest.raises(SpecError, match=told):
            make_trainer(accumulate=3)

    @pytest.mark.parametrize("name", ["loss", "learning_rate"])
    def test_a_metric_with_the_name_of_a_column_that_is_always_there(self, name):
        with pytest.raises(SpecError, match=f"a metric cannot be called {name}"):
            make_trainer(metrics={name: accuracy()})

    def test_errors_in_the_model_or_the_loss_keep_their_first_line(self):
        def broken(labels):
            raise RuntimeError("the third thing is missing")

        with pytest.raises(RuntimeError) as raised:
            make_trainer(loss=broken).run(1)
        assert str(raised.value) == "the third thing is missing"
        with pytest.raises(SpecError) as refused:
            make_trainer(loss=lambda nothing: nothing).run(1)
        assert str(refused.value).startswith(
            "loss: argument 'nothing' is neither a field (x, labels)"
        )
