"""Values that users' targets record: of the whole batch, whatever the devices; in both modes."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import SEED, linear, make_trainer, points, weights

from pipefit.data import examples
from pipefit.errors import SpecError
from pipefit.training import Objective, Replicas, Targets, Validator, per_example
from pipefit.training.objective import sparse_softmax_cross_entropy


def batches(steps, batch=8, count=20):
    """The examples that each step reads, [steps, batch]."""
    return examples(seed=SEED, start=0, count=steps * batch, n=count).reshape(steps, batch)


def everything(inputs, outputs, mode):
    labels = tf.cast(inputs["labels"], tf.int32)
    return {
        "x": inputs["x"],
        "logits": outputs["logits"],
        "mean": tf.reduce_mean(inputs["x"]),
        "counts": tf.ensure_shape(tf.math.bincount(labels, minlength=3, maxlength=3), [3]),
        "right": tf.argmax(outputs["logits"], axis=1) == inputs["labels"],
        "mode": mode,
        "words": tf.strings.as_string(inputs["labels"]),
        "constant": 7,
        "half": tf.cast(inputs["x"][0, 0], tf.bfloat16),
        "table": np.eye(2),
    }


def not_moving(**options):
    """A trainer whose weights stay, so that its logits are known."""
    return make_trainer(linear, optimizer=lambda: keras.optimizers.SGD(0.0), **options)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (1, {}),
        (1, {"accumulate": 4}),
        (2, {}),
        (2, {"accumulate": 2}),
        (3, {}),  # slices of 3, 3 and 2
        (4, {"accumulate": 4}),  # slices of 1, 1, 0 and 0
        (1, {"jit_compile": True}),
    ],
)
def test_are_those_of_the_whole_batch_of_every_step(devices, options):
    trainer = not_moving(targets={"t": everything}, devices=devices, **options)
    start, source = weights(trainer), points()
    parts = [trainer.run(2), trainer.run(3)]
    rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    order = batches(5)
    x, labels = source.fields["x"][order], source.fields["labels"][order]
    logits = x @ start["b/kernel"] + start["b/bias"]
    np.testing.assert_array_equal(rows["t/x"], x)
    np.testing.assert_allclose(rows["t/logits"], logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["t/mean"], x.mean(axis=(1, 2)), rtol=1e-4, atol=1e-7)
    expected = [np.bincount(row, minlength=3) for row in labels]
    np.testing.assert_array_equal(rows["t/counts"], expected)
    np.testing.assert_array_equal(rows["t/right"], logits.argmax(axis=2) == labels)
    assert rows["t/right"].dtype == bool
    assert rows["t/mode"].tolist() == [b"train"] * 5
    assert rows["t/words"].tolist() == [[str(v).encode() for v in row] for row in labels]
    assert rows["t/constant"].tolist() == [7] * 5
    assert rows["t/half"].dtype == np.float32
    np.testing.assert_allclose(rows["t/half"], x[:, 0, 0], rtol=1e-2)
    np.testing.assert_array_equal(rows["t/table"], [np.eye(2)] * 5)


def test_change_no_other_number():
    plain = make_trainer(optimizer=lambda: keras.optimizers.Adam(0.01))
    watched = make_trainer(
        optimizer=lambda: keras.optimizers.Adam(0.01), targets={"t": everything, "u": everything}
    )
    ours, theirs = plain.run(5), watched.run(5)
    assert theirs["loss"].tobytes() == ours["loss"].tobytes()
    for name, value in weights(plain).items():
        assert weights(watched)[name].tobytes() == value.tobytes()


class Instance:
    """A callable without a __name__."""

    def __init__(self, factor=2.0):
        self.factor = factor

    def __call__(self, inputs, outputs, mode):
        return {"v": self.factor * tf.reduce_sum(inputs["labels"])}

    def method(self, inputs, outputs, mode):
        return self(inputs, outputs, mode)


def total(factor, inputs, outputs, mode, *, offset=0):
    return {"v": factor * tf.reduce_sum(inputs["labels"]) + offset}


@pytest.mark.parametrize(
    "function",
    [
        Instance(2),
        Instance(2).method,
        functools.partial(total, 2),
        functools.partial(total, 2, offset=0),
        lambda *args: {"v": 2 * tf.reduce_sum(args[0]["labels"])},
        tf.function(lambda inputs, outputs, mode: {"v": 2 * tf.reduce_sum(inputs["labels"])}),
    ],
    ids=["instance", "method", "partial", "keyword", "arguments", "compiled"],
)
def test_may_be_any_callable(function):
    rows = not_moving(targets={"t": function}).run(2)
    assert rows["t/v"].tolist() == (2 * points().fields["labels"][batches(2)].sum(axis=1)).tolist()


def of_each(value):
    return lambda inputs, outputs, mode: value(inputs, outputs)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (7, r"^targets\.t: must be a function \(inputs, outputs, mode\), not int$"),
        (
            lambda inputs, outputs: {},
            r"^targets\.t: must be a function \(inputs, outputs, mode\); this one has the param",
        ),
        (of_each(lambda i, o: i["x"]), r"^targets\.t: must return a dict of values by name, not"),
        (
            of_each(lambda i, o: {"v": tf.boolean_mask(i["x"], i["x"] > 0)}),
            r"^targets\.t: value 'v' has shape \(None,\): every step must give the same shape; pad",
        ),
        (
            of_each(lambda i, o: {"v": tf.RaggedTensor.from_row_lengths(i["labels"], [3, 5])}),
            r"^targets\.t: value 'v' is RaggedTensor, not a tensor: ",
        ),
        (of_each(lambda i, o: {"v": None}), r"^targets\.t: value 'v' is NoneType, not a tensor: "),
        (
            of_each(lambda i, o: {"v": tf.cast(i["x"], tf.complex64)}),
            r"^targets\.t: value 'v' is complex64: give numbers \(not complex\), booleans or texts",
        ),
    ],
)
def test_others_are_refused(function, message):
    with pytest.raises(SpecError, match=message):
        not_moving(targets={"t": function}).run(1)


def test_an_output_that_slices_do_not_have_rows_of_is_refused_on_several_only():
    def model():
        x = keras.Input((6,), name="x")
        y = keras.layers.Dense(3, name="b")(x)
        return keras.Model(x, {"logits": y, "mean": keras.ops.mean(y)})

    loss = sparse_softmax_cross_entropy(logits="logits")
    target = {"t": of_each(lambda i, o: {"mean": o["mean"]})}
    assert make_trainer(model, loss=loss, targets=target).run(2)["t/mean"].shape == (2,)
    for options in ({"devices": 2}, {"accumulate": 2}):
        with pytest.raises(SpecError, match=r"output 'mean' has shape .* cannot be joined"):
            make_trainer(model, loss=loss, targets=target, **options).run(1)


@pytest.mark.parametrize(
    ("name", "key", "options"),
    [
        ("gradient_norm", "b/kernel", {"record": frozenset({"gradient_norms"})}),
        ("learning_rate", "^b", {"groups": [("^b", 0.5)]}),
        ("m", "v", {"metrics": {"m/v": lambda labels: labels}}),
    ],
)
def test_a_name_that_is_taken_is_refused(name, key, options):
    target = {name: of_each(lambda i, o: {key: 1.0})}
    with pytest.raises(SpecError, match=rf"'{name}/.*{key[1:]}' is recorded already under this"):
        not_moving(targets=target, **options).run(1)


# ---- in validation ----


def validator(targets, count=10, devices=1, metrics=None, model=linear):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    replicas = Replicas(count=devices)
    with replicas.scope():
        built = model()
    called = {name: per_example(value, name) for name, value in (metrics or {}).items()}
    return Validator(
        objective=Objective(
            built, per_example(sparse_softmax_cross_entropy(logits="logits"), "loss"), called
        ),
        source=points(count),
        replicas=replicas,
        batch_size=4,
        targets=Targets(targets, "validation"),
    )


class TestInValidation:
    @pytest.mark.parametrize("devices", [1, 2, 4])
    def test_means_over_all_examples_are_recorded(self, devices):
        """The last batch, of two examples, weighs half of the others."""

        def stats(inputs, outputs, mode):
            assert mode == "validation"
            return {
                "mean": tf.reduce_mean(inputs["x"][:, 0]),
                "means": tf.reduce_mean(inputs["x"], axis=0),
                "label": tf.reduce_max(inputs["labels"]),
                "some": tf.reduce_any(inputs["x"] > 1.5),
                "logits": tf.reduce_mean(outputs["logits"], axis=0),
            }

        made = validator({"t": stats}, devices=devices)
        found = made.run()
        x = points(10).fields["x"].astype(np.float64)
        assert found.metrics["t/mean"] == pytest.approx(x[:, 0].mean(), rel=1e-5)
        assert found.metrics["t/label"] == pytest.approx((4 * 2 + 4 * 2 + 2 * 2) / 10)
        some = [(x[a:b] > 1.5).any() for a, b in ((0, 4), (4, 8), (8, 10))]
        assert found.metrics["t/some"] == pytest.approx(np.average(some, weights=[4, 4, 2]))
        assert set(found.metrics) == {"loss", "t/mean", "t/label", "t/some"}
        assert set(found.values) == {"t/means", "t/logits"}
        np.testing.assert_allclose(found.values["t/means"], x.mean(axis=0), rtol=1e-5)
        kernel = made.objective.model.get_layer("b").kernel.numpy()
        logits = (x @ kernel).mean(axis=0)
        np.testing.assert_allclose(found.values["t/logits"], logits, rtol=1e-4, atol=1e-6)
        assert found.values["t/means"].dtype == np.float64

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (lambda i, o: tf.strings.as_string(i["labels"][0]), "'t/v' is .*: in validation the m"),
            (
                lambda i, o: tf.strings.as_string(i["labels"]),
                "'t/v' is object: in validation the",
            ),
            (lambda i, o: o["logits"], r"'t/v' has shape \[2, 3\] for one batch and \[4, 3\] for"),
        ],
    )
    def test_what_has_no_mean_is_refused(self, value, message):
        made = validator({"t": lambda i, o, mode: {"v": value(i, o)}})
        with pytest.raises(SpecError, match=message):
            made.run()

    def test_an_output_that_devices_do_not_have_rows_of_is_refused_on_several_only(self):
        def model():
            x = keras.Input((6,), name="x")
            y = keras.layers.Dense(3, name="b")(x)
            return keras.Model(x, {"logits": y, "mean": keras.ops.mean(y)})

        target = {"t": lambda i, o, mode: {"mean": o["mean"]}}
        assert validator(target, model=model).run().metrics["t/mean"]
        with pytest.raises(
            SpecError, match=r"output 'mean' has shape \(\) for 2 examples: it cann"
        ):
            validator(target, model=model, devices=2).run()

    def test_a_name_that_is_taken_is_refused(self):
        target = {"m": lambda i, o, mode: {"v": 1.0}}
        made = validator(target, metrics={"m/v": lambda labels: labels})
        with pytest.raises(SpecError, match="'m/v' is recorded already under this name"):
            made.run()
