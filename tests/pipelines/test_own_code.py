"""Loops, targets and classes of users' own, through the command, the worker and the database."""

import json

import numpy as np
import pytest

from pipefit.data import Arrays
from pipefit.errors import NotFound
from tests.pipelines.conftest import kill, same_results, worker_of

DRAWING = "configs/drawing.toml"
SHORT = {
    "train.steps": 30,
    "model.units": 8,
    "data.train.batch_size": 20,
    "save.validate_every": 15,
    "train.loop.until": 20,
}


def test_the_drawing_is_trained_and_later_validated_by_its_own_loops(job):
    """A recurrent model that draws pixel by pixel (configs/drawing.py)."""
    made = job(DRAWING, **SHORT)
    made.run()
    assert made.reader.metrics().index.tolist() == list(range(1, 31))
    drawn = made.reader.outputs("test")["drawn"]
    assert drawn.shape == (360, 64) and set(np.unique(drawn)) <= {0.0, 1.0}


MINE = '''
import keras
import numpy as np
import tensorflow as tf

import pipefit
from pipefit.data import Arrays


def points(count=40, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")
    return Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))


def model():
    x = keras.Input((4,), name="x")
    y = keras.layers.Dense(3, activation="relu", name="a")(x)
    return keras.Model(x, {"logits": keras.layers.Dense(2, name="b")(y)}, name="net")


class Watch:
    """A target without a __name__."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, inputs, outputs, mode):
        first = tf.reduce_mean(inputs["x"][:, 0])
        values = {"mean": first, "first": inputs["x"][0], "table": tf.fill([self.rows], first)}
        if mode == "train":
            values |= {"text": tf.strings.as_string(inputs["labels"]), "mode": mode}
        return values


class Mine(pipefit.training.Experiment):
    def loss(self):
        return self.squared

    def squared(self, labels, logits):
        return tf.reduce_sum((logits - tf.one_hot(labels, 2)) ** 2, axis=1)

    def targets(self, mode):
        return {**super().targets(mode), "own": lambda inputs, outputs, mode: {mode: 1.0}}

    def validation_loop(self):
        def loop(step, iterator):
            for batch in iterator:
                step(batch, step.call(forward, batch))

        return loop


def forward(model, fields):
    return model(fields["x"])


def fading():
    """A loop that depends on the number of the step."""

    def loop(step, iterator, steps):
        for batch in iterator:
            noise = tf.random.stateless_normal(batch["x"].shape, [0, step.number])
            step({**batch, "x": batch["x"] + noise / (1.0 + step.number)})

    return loop


def counting():
    """A loop that keeps a number, which is not saved."""
    count = 0

    def loop(step, iterator, steps):
        nonlocal count
        for batch in iterator:
            count += 1
            step({**batch, "x": batch["x"] * count})

    return loop


class NoExperiment:
    pass
'''

TOML = """
name = "run"
collection = "jobs"

[data.train]
builder = "mine:points"
batch_size = 10

[model]
builder = "mine:model"

[optimizer]
builder = "keras.optimizers:Adam"
learning_rate = 0.01

[train]
data = "train"
steps = 30
record = ["gradient_norms", "update_norms"]
targets.watch = { builder = "mine:Watch", rows = 400 }

[validation.test]
data = { builder = "mine:points", count = 25, seed = 1, batch_size = 10 }
targets.watch = { builder = "mine:Watch", rows = 400 }

[save]
metrics_every = 7
validate_every = 10
recent_every = 10
best = { metric = "test/watch/mean", mode = "max" }
"""


@pytest.fixture(scope="module")
def mine(shared_job, tmp_path_factory):
    """Makes jobs of the files above."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.toml").write_text(TOML)
    (folder / "mine.py").write_text(MINE.replace("import pipefit\n", "import pipefit.training\n"))

    def make(**changes):
        return shared_job("mine.toml", cwd=folder, **changes)

    return make


@pytest.fixture(scope="module")
def trained(mine):
    job = mine(name="trained")
    job.run()
    return job.reader


def batches(steps, batch=10, count=40):
    from pipefit.data import examples

    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    source = Arrays(x=x, labels=(x.sum(axis=1) > 0).astype("int64"))
    return [
        source.take(examples(seed=0, start=step * batch, count=batch, n=count))
        for step in range(steps)
    ]


class TestTargets:
    def test_numbers_are_columns(self, trained):
        metrics = trained.metrics()
        expected = [fields["x"][:, 0].mean() for fields in batches(30)]
        np.testing.assert_allclose(metrics["watch/mean"], expected, rtol=1e-4, atol=1e-7)
        assert metrics["watch/mode"].tolist() == [b"train"] * 30

    def test_small_arrays_and_texts_are_columns_of_arrays(self, trained):
        metrics = trained.metrics()
        for row, text, fields in zip(
            metrics["watch/first"], metrics["watch/text"], batches(30), strict=True
        ):
            np.testing.assert_array_equal(row, fields["x"][0])
            assert [int(label) for label in text] == fields["labels"].tolist()

    def test_large_ones_are_read_one_by_one(self, trained):
        assert "watch/table" not in trained.metrics()
        values = trained.values("watch/table")
        assert len(values) == 30
        means = [fields["x"][:, 0].mean() for fields in batches(30)]
        for step, value in values:
            assert value.shape == (400,) and value.dtype == np.float32
            np.testing.assert_allclose(value, means[step - 1], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(values[17], trained.values("watch/table")[17])
        with pytest.raises(NotFound, match=r"step 31 has no value 'watch/table'"):
            values[31]

    def test_of_validations(self, trained):
        x = np.random.default_rng(1).normal(size=(25, 4)).astype("float32")
        validations = trained.validations()
        assert validations["step"].tolist() == [10, 20, 30]
        np.testing.assert_allclose(validations["watch/mean"], x[:, 0].mean(), rtol=1e-4)
        values = trained.values("test/watch/table")
        assert [step for step, _ in values] == [10, 20, 30]
        np.testing.assert_allclose(values[20], np.full(400, x[:, 0].mean()), rtol=1e-4)
        first = trained.values("test/watch/first")[30]
        expected = (10 * x[0] + 10 * x[10] + 5 * x[20]) / 25
        np.testing.assert_allclose(first, expected, rtol=1e-5)

    def test_may_decide_which_checkpoint_is_the_best(self, trained):
        kinds = trained.checkpoints().set_index("step")["kinds"]
        assert "best" in kinds[10]  # it is the same at every step


def test_norms_and_rates_are_columns(trained):
    metrics = trained.metrics()
    assert (metrics["learning_rate"] == np.float32(0.01)).all()
    for path in ("a/kernel", "a/bias", "b/kernel", "b/bias"):
        assert (metrics[f"gradient_norm/{path}"] > 0).all()
        # No update of Adam's first steps moves an element further than its rate.
        assert metrics[f"update_norm/{path}"].between(1e-6, 0.01 * np.sqrt(12) * 1.1).all()


class TestTheDescription:
    def test_rebuilds_the_model_in_another_process(self, trained):
        import keras

        model = keras.models.model_from_json(trained.artifact("model.json").decode())
        weights = trained.weights()
        paths = json.loads(trained.artifact("variables.json"))
        for variable, path in zip(model.variables, paths, strict=True):
            variable.assign(weights[f"model/{path}"])
        x = np.random.default_rng(1).normal(size=(25, 4)).astype("float32")
        right = np.argmax(model(x)["logits"], axis=1) == (x.sum(axis=1) > 0)
        assert right.mean() == pytest.approx(trained.validations()["accuracy"].iloc[-1])

    def test_is_part_of_the_runs_document(self, trained):
        document = trained.document()
        facts = document["model"]
        assert (facts["name"], facts["parameters"]) == ("net", 4 * 3 + 3 + 3 * 2 + 2)
        assert [layer["name"] for layer in facts["layers"]] == ["x", "a", "b"]
        assert facts["optimizers"][0]["type"] == "Adam"
        assert facts["config"] == "model.json"
        text = trained.artifact("model.txt").decode()
        assert "b/kernel  float32[3, 2]  trained" in text
        program = document["program"]
        assert program["devices"] == "1 x cpu"
        assert "luigi" in program["command"] and program["data_digest"]
        assert {"keras", "numpy", "luigi"} <= set(program["versions"])


@pytest.fixture(scope="module")
def classy(mine):
    """The job of an own class with an own loop: killed, continued, validated, and uninterrupted."""
    often = {"save.recent_every": 5, "save.validate_every": 5}
    own = {"experiment": "mine:Mine", "train.loop.builder": "mine:fading", **often}
    job = mine(name="killed", **own)
    process = job.start("Train", **{"train.steps": 100000})
    worker = worker_of(process)
    job.wait_for_step(5, process)
    kill(worker)
    assert process.wait(timeout=60) == 30
    process.stdout.close()
    steps = {"train.steps": job.reader.status().step + 40}
    assert "continuing after step" in job.run(**steps)
    whole = mine(name="whole", **own, **steps)
    whole.run("Train")
    return job.reader, whole.reader


class TestAClass:
    def test_trains_and_validates(self, classy):
        reader, _ = classy
        metrics = reader.metrics()
        assert (metrics["own/train"] == 1.0).all()
        assert "watch/mean" in metrics
        validations = reader.validations()
        assert (validations["own/validation"] == 1.0).all()
        assert "accuracy" not in validations
        assert metrics["loss"].iloc[-1] < metrics["loss"].iloc[0]
        assert reader.artifact("report.html")

    def test_its_loop_and_targets_are_bit_equal_after_a_kill(self, classy):
        reader, whole = classy
        same_results(reader, whole)
        assert [attempt.state for attempt in reader.attempts()] == ["INTERRUPTED", "FINISHED"]
        for name in ("watch/table", "watch/first", "watch/text", "gradient_norm/a/kernel"):
            one, other = reader.values(name), whole.values(name)
            assert one.steps.tolist() == other.steps.tolist() == list(range(1, len(one) + 1))
            assert all((a == b).all() for (_, a), (_, b) in zip(one, other, strict=True)), name

    def test_another_class_is_another_experiment(self, mine, trained):
        message = mine(name="trained", experiment="mine:Mine").refused(code=35)
        assert "was made by another experiment" in message
        assert 'experiment: (absent) -> "mine:Mine"' in message

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("NoExperiment", "must be a class derived from pipefit.training:Experiment"),
            ("Absent", "has no 'Absent'"),
        ],
    )
    def test_a_wrong_one_is_refused_before_anything_starts(self, mine, name, told):
        job = mine(name="wrong", experiment=f"mine:{name}")
        message = job.refused(code=35)
        assert f'experiment = "mine:{name}": ' in message and told in message
        assert job.store.statuses("jobs", ["wrong"]) == {}


def test_a_loop_that_cannot_be_continued_ends_the_run_with_the_reason(mine):
    job = mine(name="counting", **{"train.loop.builder": "mine:counting"})
    message = job.refused("Train", code=30)
    assert "train.loop: step 1, done twice from the same state, gave two different" in message
    status = job.reader.status()
    assert status.state == "FAILED" and status.step is None
