"""What is told of a model: numbers by hand, a table for people, what rebuilds it."""

import json

import keras
import numpy as np
import pytest
from training_helpers import arrays, make_trainer, perceptron, points

from pipefit.training import Part, description


def described(model, **options):
    trainer = make_trainer(model, **options)
    facts, texts = description(trainer.objective.model, trainer.updates)
    return trainer, facts, {name: text.decode() for name, text in texts.items()}


def nested():
    """A model within a model, with weights that are not trained."""
    inner = keras.Sequential(
        [keras.Input((5,)), keras.layers.BatchNormalization(name="norm")], name="inner"
    )
    x = keras.Input((6,), name="x")
    y = keras.layers.Dropout(0.5, name="drop")(inner(keras.layers.Dense(5, name="a")(x)))
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(y)}, name="whole")


class TestFacts:
    def test_are_counted_right(self):
        _, facts, _ = described(perceptron, trainable="^a/")
        a, b = 6 * 5 + 5, 5 * 3 + 3
        assert (facts["parameters"], facts["trainable_parameters"]) == (a + b, a)
        assert [tuple(layer.values()) for layer in facts["layers"]] == [
            ("x", "InputLayer", "(None, 6)", 0, False),
            ("a", "Dense", "(None, 5)", a, True),
            ("b", "Dense", "(None, 3)", b, False),
        ]
        assert list(facts["layers"][0]) == ["name", "type", "shape", "parameters", "trainable"]
        assert facts["optimizers"] == [
            {"table": "optimizer", "type": "SGD", "variables": 2, "parameters": a}
        ]
        assert facts["config"] == "model.json"
        json.dumps(facts)

    def test_of_a_model_within_a_model(self):
        _, facts, texts = described(nested)
        assert facts["parameters"] == 6 * 5 + 5 + 4 * 5 + 5 * 3 + 3
        assert facts["trainable_parameters"] == facts["parameters"] - 2 * 5
        assert [layer["parameters"] for layer in facts["layers"]] == [0, 35, 20, 0, 18]
        assert "norm (BatchNormalization)" in texts["model.txt"]

    def test_of_several_optimizers(self):
        _, facts, _ = described(
            perceptron,
            parts=lambda: [
                Part(keras.optimizers.Adam(), name="one", match="^a/"),
                Part(keras.optimizers.SGD(), name="two", match="^b/"),
            ],
        )
        assert [(o["table"], o["type"], o["parameters"]) for o in facts["optimizers"]] == [
            ("optimizers.one", "Adam", 35),
            ("optimizers.two", "SGD", 18),
        ]

    def test_stay_short_however_many_layers_there_are(self):
        def deep():
            x = keras.Input((6,), name="x")
            y = x
            for i in range(400):
                y = keras.layers.Identity(name=f"same{i}")(y)
            return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(y)})

        _, facts, texts = described(deep)
        assert len(facts["layers"]) == 300 and facts["more_layers"] == 102
        assert "same399" in texts["model.txt"] and "same399" in texts["model.json"]


def test_the_table_has_layers_shapes_parameters_and_variables():
    _, _, texts = described(perceptron, trainable="^a/")
    table = texts["model.txt"]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "│ a (Dense) │ (None, 5) │ 35 │" in lines
    assert any(line.startswith("Total params: 53") for line in lines)
    assert lines[-5:] == [
        "Variables",
        "a/kernel float32[6, 5] trained",
        "a/bias float32[5] trained",
        "b/kernel float32[5, 3] not trained",
        "b/bias float32[3] not trained",
    ]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("model", [perceptron, nested])
def test_the_configuration_rebuilds_the_model_and_variables_fit_in_their_order(model, devices):
    trainer, _, texts = described(model, devices=devices)
    trainer.run(3)
    saved, x = arrays(trainer), points().fields["x"]
    expected = trainer.objective.model(x, training=False)["logits"].numpy()
    keras.utils.clear_session(free_memory=False)
    rebuilt = keras.models.model_from_json(texts["model.json"])
    for variable, path in zip(rebuilt.variables, json.loads(texts["variables.json"]), strict=True):
        variable.assign(saved[f"model/{path}"])
    np.testing.assert_array_equal(rebuilt(x, training=False)["logits"], expected)


class Plain(keras.Model):
    """Keras would rebuild it with 4 units, whatever it was made with."""

    def __init__(self, units=4, name="plain"):
        super().__init__(name=name)
        self.dense = keras.layers.Dense(units, name="dense")

    def call(self, fields, training=False):
        return {"logits": self.dense(fields["x"])}


class Telling(Plain):
    def __init__(self, units):
        super().__init__(units, name="telling")
        self.units = units

    def get_config(self):
        return {"units": self.units}


class Failing(Plain):
    def get_config(self):
        raise ZeroDivisionError("no\nconfiguration")


def built(make):
    def model():
        made = make()
        made({"x": np.zeros((1, 6), np.float32)})
        return made

    return model


class TestASubclass:
    def test_without_get_config_has_no_configuration_rather_than_a_wrong_one(self):
        _, facts, texts = described(built(lambda: Plain(3)))
        assert list(texts) == ["model.txt", "variables.json"]
        assert facts["config"] == "none: Plain is a subclass of keras.Model without get_config()"
        assert facts["parameters"] == 21
        assert [(layer["name"], layer["shape"]) for layer in facts["layers"]] == [("dense", None)]
        assert "plain/dense/kernel  float32[6, 3]  trained" in texts["model.txt"]

    def test_within_another_model_likewise(self):
        def model():
            x = keras.Input((6,), name="x")
            return keras.Model(x, Plain(3)({"x": x}))

        _, facts, texts = described(model)
        assert "model.json" not in texts and "Plain" in facts["config"]

    def test_that_tells_its_arguments_is_rebuilt(self):
        _, _, texts = described(built(lambda: Telling(3)))
        rebuilt = keras.models.model_from_json(
            texts["model.json"], custom_objects={"Telling": Telling}
        )
        assert rebuilt.units == 3

    def test_whose_get_config_fails_is_trained_all_the_same(self):
        _, facts, texts = described(built(lambda: Failing(3)))
        assert facts["config"] == "none: ZeroDivisionError: no configuration"
        assert "model.json" not in texts
