"""Losses and metrics called by names; models with inputs and outputs of every structure."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import linear, perceptron

from pipefit.errors import SpecError
from pipefit.training import Objective, per_example
from pipefit.training.objective import (
    accuracy,
    model_inputs,
    named_outputs,
    sparse_softmax_cross_entropy,
)

LABELS = tf.constant([0, 2, 1], tf.int64)
LOGITS = tf.constant([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 3.0, -1.0]])
FIELDS = {"x": tf.ones((3, 6)), "labels": LABELS}
OUTPUTS = {"logits": LOGITS}
#: Minus the logarithm of the softmax at the label, by hand.
CROSS_ENTROPY = [
    np.log(np.exp(2) + 1 + np.exp(1)) - 2,
    np.log(3),
    np.log(np.exp(1) + np.exp(3) + np.exp(-1)) - 3,
]


def value(function, fields=FIELDS, outputs=OUTPUTS):
    return per_example(function, "loss")(fields, outputs).numpy()


class TestCalledByNames:
    def test_the_order_of_the_arguments_does_not_matter(self):
        def one(labels, logits):
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

        def other(logits, labels):
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

        np.testing.assert_allclose(value(one), CROSS_ENTROPY, rtol=1e-6)
        np.testing.assert_allclose(value(other), CROSS_ENTROPY, rtol=1e-6)

    def test_labels_and_logits_swapped_raise(self):
        swapped = sparse_softmax_cross_entropy(labels="logits", logits="labels")
        with pytest.raises(SpecError, match="'labels' is not among the outputs; they are logits"):
            value(swapped)

    def test_inputs_and_outputs_are_everything(self):
        def loss(inputs, outputs):
            return tf.gather(outputs["logits"], inputs["labels"], axis=1, batch_dims=1)

        assert value(loss).tolist() == [2.0, 0.0, 3.0]

    def test_y_true_and_y_pred_are_the_labels_and_the_only_output(self):
        def loss(y_pred, y_true):
            return tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)

        np.testing.assert_allclose(value(loss), CROSS_ENTROPY, rtol=1e-6)

    def test_arguments_with_a_value_are_left_alone(self):
        def loss(labels, scale=2.0, *rest, **more):
            assert not rest
            assert not more
            return scale * tf.cast(labels, tf.float32)

        assert value(loss).tolist() == [0, 4, 2]
        assert value(functools.partial(loss, scale=10.0)).tolist() == [0, 20, 10]

    def test_an_object_that_can_be_called(self):
        class Distance:
            def __call__(self, labels):
                return tf.cast(labels, tf.float32) ** 2

        assert value(Distance()).tolist() == [0, 4, 1]

    def test_a_name_that_is_nowhere(self):
        with pytest.raises(SpecError) as refused:
            value(lambda label: label)
        assert str(refused.value) == (
            "loss: argument 'label' is neither a field (x, labels) nor an output (logits) nor one "
            "of inputs, outputs, y_true, y_pred"
        )

    def test_a_name_that_is_a_field_and_an_output(self):
        with pytest.raises(SpecError, match="argument 'x' is both a field and an output"):
            value(lambda x: x, outputs={"x": LOGITS})

    def test_y_pred_of_several_outputs(self):
        with pytest.raises(SpecError, match=r"the model has 2 outputs \(a, b\); name one"):
            value(lambda y_pred: y_pred, outputs={"a": LOGITS, "b": LOGITS})

    def test_y_true_without_labels(self):
        with pytest.raises(SpecError, match="'labels' is not among the fields; they are x"):
            value(lambda y_true: y_true, fields={"x": tf.ones(3)})


class TestOneValuePerExample:
    def test_further_dimensions_are_averaged(self):
        assert value(lambda logits: logits).tolist() == [1.0, 0.0, 1.0]
        assert value(lambda logits: tf.reshape(logits, (3, 3, 1, 1))).tolist() == [1.0, 0.0, 1.0]

    @pytest.mark.parametrize("dtype", [tf.float16, tf.float64, tf.int32, tf.bool])
    def test_becomes_float32(self, dtype):
        got = value(lambda labels: tf.cast(labels, dtype))
        assert got.dtype == np.float32
        assert got.tolist() == np.minimum([0, 2, 1], 1 if dtype == tf.bool else 2).tolist()

    @pytest.mark.parametrize("part", [(0, 0), slice(2)])
    def test_something_else_is_refused(self, part):
        with pytest.raises(
            SpecError, match=r"one value per example, shape \[3, ...\], not \("
        ) as e:
            value(lambda logits: logits[part])
        assert "do not reduce over the batch" in str(e.value)


class TestKeras:
    @pytest.mark.parametrize("reduction", ["sum_over_batch_size", "none", None])
    def test_a_loss_object_gives_its_unreduced_values(self, reduction):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        np.testing.assert_allclose(value(loss), CROSS_ENTROPY, rtol=1e-6)

    def test_a_loss_over_vectors(self):
        loss = keras.losses.MeanSquaredError()
        fields = {"labels": tf.zeros((3, 3))}
        np.testing.assert_allclose(value(loss, fields), [5 / 3, 0, 11 / 3], rtol=1e-6)

    def test_a_loss_function(self):
        fields = {"labels": tf.zeros((3, 3))}
        got = value(keras.losses.mean_absolute_error, fields)
        np.testing.assert_allclose(got, [1, 0, 5 / 3], rtol=1e-6)

    def test_a_sum_is_refused(self):
        with pytest.raises(SpecError, match="loss: reduction = 'sum': the mean over the batch"):
            per_example(keras.losses.MeanSquaredError(reduction="sum"), "loss")

    @pytest.mark.parametrize("thing", [keras.metrics.Mean(), 3, None])
    def test_a_stateful_metric_or_something_else_is_refused(self, thing):
        with pytest.raises(
            SpecError, match=r"train\.metrics\.m: the builder must return a function"
        ):
            per_example(thing, "train.metrics.m")


class TestShipped:
    def test_cross_entropy(self):
        np.testing.assert_allclose(value(sparse_softmax_cross_entropy()), CROSS_ENTROPY, rtol=1e-6)

    def test_accuracy(self):
        assert value(accuracy()).tolist() == [1, 0, 1]

    def test_of_names(self):
        fields, outputs = {"digit": LABELS}, {"scores": LOGITS, "other": LOGITS}
        loss = sparse_softmax_cross_entropy(labels="digit", logits="scores")
        np.testing.assert_allclose(value(loss, fields, outputs), CROSS_ENTROPY, rtol=1e-6)
        assert value(accuracy("digit", "scores"), fields, outputs).tolist() == [1, 0, 1]

    @pytest.mark.parametrize("dtype", [tf.int32, tf.uint8])
    def test_other_labels_and_half_precision(self, dtype):
        fields, outputs = {"labels": tf.cast(LABELS, dtype)}, {"y": tf.cast(LOGITS, tf.float16)}
        loss = value(sparse_softmax_cross_entropy(), fields, outputs)
        np.testing.assert_allclose(loss, CROSS_ENTROPY, rtol=1e-6)
        assert value(accuracy(), fields, outputs).tolist() == [1, 0, 1]


def objective(model):
    return Objective(model, per_example(lambda inputs: tf.ones(3), "loss"), {})


COLUMNS = {"x": tf.constant([[1.0], [2.0], [3.0]]), "z": tf.constant([[10.0], [20.0], [30.0]])}


class TestModels:
    """Each doubles field x (and adds field z)."""

    def outputs(self, model):
        _, outputs = objective(model)(COLUMNS, training=False)
        return {name: tensor.numpy().ravel().tolist() for name, tensor in outputs.items()}

    def test_one_input_and_one_output(self):
        x = keras.Input((1,), name="x")
        assert self.outputs(keras.Model(x, x * 2)) == {"output": [2, 4, 6]}

    def test_a_list_of_inputs_and_outputs(self):
        x, z = keras.Input((1,), name="x"), keras.Input((1,), name="z")
        model = keras.Model([z, x], [x * 2, x + z])
        assert self.outputs(model) == {"output_0": [2, 4, 6], "output_1": [11, 22, 33]}

    def test_dicts_of_inputs_and_outputs(self):
        x, z = keras.Input((1,), name="x"), keras.Input((1,), name="z")
        model = keras.Model({"x": x, "z": z}, {"double": x * 2, "sum": x + z})
        assert self.outputs(model) == {"double": [2, 4, 6], "sum": [11, 22, 33]}

    def test_a_sequential_model(self):
        model = keras.Sequential([keras.Input((1,), name="z"), keras.layers.Rescaling(0.1)])
        np.testing.assert_allclose(self.outputs(model)["output"], [1, 2, 3], rtol=1e-6)

    def test_a_subclass_gets_all_fields(self):
        class Adds(keras.Model):
            def call(self, fields, training=False):
                assert isinstance(fields, dict)
                return {"sum": fields["x"] + fields["z"], "training": fields["x"] * training}

        assert self.outputs(Adds()) == {"sum": [11, 22, 33], "training": [0, 0, 0]}

    def test_an_input_that_is_no_field(self):
        with pytest.raises(SpecError, match="input 'y' is no field of the data; fields are x, z"):
            self.outputs(keras.Model(y := keras.Input((1,), name="y"), y * 2))

    def test_a_sequential_model_that_does_not_say_what_it_reads(self):
        with pytest.raises(SpecError, match=r"begin it with keras\.Input.*, fields are x, z"):
            self.outputs(keras.Sequential([keras.layers.Rescaling(2.0)]))

    def test_inputs_come_in_the_models_structure(self):
        x, z = keras.Input((1,), name="x"), keras.Input((1,), name="z")
        picked = model_inputs(keras.Model([z, x], x + z), COLUMNS)
        assert [tensor.numpy()[0, 0] for tensor in picked] == [10, 1]


def test_named_outputs_keep_dicts_and_number_lists():
    assert named_outputs({"a": 1}) == {"a": 1}
    assert named_outputs((1, 2)) == {"output_0": 1, "output_1": 2}
    assert named_outputs(5) == {"output": 5}


def test_an_objective_gives_the_loss_first_then_the_metrics_and_the_outputs():
    model = perceptron()
    metrics = {
        "accuracy": per_example(accuracy(), "m"),
        "zero": per_example(lambda x: x[:, 0] * 0, "m"),
    }
    whole = Objective(model, per_example(sparse_softmax_cross_entropy(), "loss"), metrics)
    values, outputs = whole(FIELDS, training=False)
    assert list(values) == ["loss", "accuracy", "zero"]
    assert all(v.shape == (3,) and v.dtype == tf.float32 for v in values.values())
    np.testing.assert_array_equal(outputs["logits"], model(FIELDS["x"])["logits"])


def test_dropout_works_in_training_only():
    x = keras.Input((6,), name="x")
    model = keras.Model(x, keras.layers.Dropout(0.5, seed=0)(x))
    whole = objective(model)
    still = [whole(FIELDS, training=False)[1]["output"].numpy() for _ in range(2)]
    moving = [whole(FIELDS, training=True)[1]["output"].numpy() for _ in range(2)]
    assert (still[0] == 1).all() and (still[1] == 1).all()
    assert set(moving[0].ravel()) == {0.0, 2.0}
    assert (moving[0] != moving[1]).any()


def test_a_metric_is_not_called_like_a_column_that_is_always_there():
    with pytest.raises(SpecError, match="a metric cannot be called learning_rate, loss"):
        Objective(linear(), per_example(accuracy(), "l"), dict.fromkeys(["loss", "learning_rate"]))
