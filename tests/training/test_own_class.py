"""A class of one's own in place of the builders that the file names; used from plain Python."""

import functools
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import assert_close, assert_equal, counting, points

from pipefit.data import Arrays, examples
from pipefit.errors import SpecError
from pipefit.spec import Spec, check_builders
from pipefit.training import Experiment, experiment_class, per_example

ROOT = Path(__file__).parents[2]


# ---- builders that the file names ----


def data(count=20, seed=0):
    return points(count, seed)


def model(units=5):
    x = keras.Input((6,), name="x")
    hidden = keras.layers.Dense(units, activation="relu", name="a")(x)
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(hidden)})


def tables(**changes):
    whole = {
        "name": "own",
        "collection": "own",
        "data": {"train": {"builder": f"{__name__}:data", "batch_size": 8}},
        "model": {"builder": f"{__name__}:model"},
        "optimizer": {"builder": "keras.optimizers:SGD", "learning_rate": 0.1},
        "train": {"data": "train", "steps": 10},
        "validation": {
            "test": {"data": {"builder": f"{__name__}:data", "count": 10, "batch_size": 4}}
        },
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        table = functools.reduce(lambda table, name: table.setdefault(name, {}), path, whole)
        table[last] = value
    return Spec.of_tables({key: value for key, value in whole.items() if value is not None})


def run(cls=Experiment, steps=4, **changes):
    return cls(tables(**changes)).trainer().run(steps)


@pytest.fixture(scope="module")
def plain():
    """What the file says, without a class."""
    return run()


class TestEveryMethod:
    """One is overridden at a time: its effect is that of the file that says the same."""

    def test_none(self, plain):
        class Mine(Experiment):
            pass

        assert_equal(run(Mine), plain)

    def test_data(self, plain):
        class Mine(Experiment):
            def data(self):
                return points(30, seed=3)

        rows = run(Mine)
        assert_equal(
            rows,
            run(
                data__train={"builder": f"{__name__}:data", "batch_size": 8, "count": 30, "seed": 3}
            ),
        )
        assert rows["loss"].tobytes() != plain["loss"].tobytes()

    def test_data_are_not_shared_with_what_the_file_names(self):
        class Mine(Experiment):
            def data(self):
                return Arrays(x=np.ones((9, 6), np.float32), labels=np.zeros(9, np.int64))

        made = Mine(tables())
        assert len(made.trainer().feed.source) == 9
        assert made.validator("test").run().examples == 10

    def test_model(self):
        class Mine(Experiment):
            def model(self):
                return model(units=9)

        made = Mine(tables())
        assert made.network.get_layer("a").units == 9
        assert_equal(made.trainer().run(4), run(model__units=9))

    def test_loss(self):
        class Mine(Experiment):
            def loss(self):
                return lambda labels, logits: (
                    3 * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                )

        plain = Experiment(tables())
        made = Mine(tables())
        first = plain.trainer().run(1)["loss"]
        assert made.trainer().run(1)["loss"] == pytest.approx(3 * first, rel=1e-6)
        made, plain = Mine(tables()), Experiment(tables())
        numbers, expected = made.validator("test").run().metrics, plain.validator("test").run()
        assert numbers == {"loss": pytest.approx(3 * expected.metrics["loss"], rel=1e-6)}

    @pytest.mark.parametrize("kind", ["number", "schedule"])
    def test_learning_rate(self, kind):
        halving = keras.optimizers.schedules.ExponentialDecay(0.3, 1, 0.5)
        rate = {"number": 0.3, "schedule": halving}[kind]

        class Mine(Experiment):
            def learning_rate(self):
                return rate

        expected = [0.3] * 4 if kind == "number" else [0.3, 0.15, 0.075, 0.0375]
        for changes in ({}, {"optimizer": {"builder": "keras.optimizers:SGD"}}):
            rows = run(Mine, **changes)
            np.testing.assert_allclose(rows["learning_rate"], expected, rtol=1e-6)

    def test_optimizer(self):
        class Mine(Experiment):
            def optimizer(self):
                return keras.optimizers.Adam(self.learning_rate() / 10)

        assert_equal(
            run(Mine, optimizer__groups=[{"match": "^a/", "scale": 0.5}]),
            run(
                optimizer={
                    "builder": "keras.optimizers:Adam",
                    "learning_rate": 0.01,
                    "groups": [{"match": "^a/", "scale": 0.5}],
                }
            ),
        )

    def test_several_optimizers(self):
        class Mine(Experiment):
            def optimizer(self):
                return {**super().optimizer(), "one": keras.optimizers.Adam(0.01)}

        parts = {
            "one": {"builder": "keras.optimizers:SGD", "match": "^a/", "learning_rate": 0.1},
            "two": {"builder": "keras.optimizers:SGD", "match": "^b/", "learning_rate": 0.2},
        }
        rows = run(Mine, optimizer=None, optimizers=parts)
        parts["one"] |= {"builder": "keras.optimizers:Adam", "learning_rate": 0.01}
        assert_equal(rows, run(optimizer=None, optimizers=parts))

    def test_targets(self, plain):
        class Mine(Experiment):
            def targets(self, mode):
                both = {**super().targets(mode), "own": of_mode(mode)}
                return both if mode == "train" else {"own": of_mode(mode)}

        made = Mine(tables())
        rows = made.trainer().run(4)
        assert rows.pop("own/train").tolist() == [1.0] * 4
        assert_equal(rows, plain)
        found = made.validator("test").run()
        assert found.metrics["own/validation"] == 1.0

    def test_train_loop(self, plain):
        calls = []

        class Mine(Experiment):
            def train_loop(self):
                def loop(step, iterator, steps):
                    calls.append(steps)
                    for batch in iterator:
                        step(batch)

                return loop

        assert_equal(run(Mine), plain)
        assert calls == [1, 1, 3]  # the first step is done twice

    def test_validation_loop(self):
        calls = []

        class Mine(Experiment):
            def validation_loop(self):
                def loop(step, iterator):
                    for batch in iterator:
                        calls.append(len(batch["x"]))
                        step(batch)

                return loop

        found = Mine(tables()).validator("test").run()
        assert found == Experiment(tables()).validator("test").run()
        assert calls[-3:] == [4, 4, 2]


def of_mode(mode):
    def target(inputs, outputs, told):
        assert told == mode
        return {mode: 1.0}

    return target


def test_a_table_comes_before_the_classs_validation_loop():
    class Mine(Experiment):
        def validation_loop(self):
            pytest.fail("the file names one")

    loop = {"builder": f"{__name__}:each_batch"}
    assert Mine(tables(validation__test__loop=loop)).validator("test").run().examples == 10


def each_batch():
    def loop(step, iterator):
        for batch in iterator:
            step(batch)

    return loop


class TestRefused:
    def test_optimizers_of_other_names_than_the_tables(self):
        class Mine(Experiment):
            def optimizer(self):
                return {"head": keras.optimizers.SGD(0.1)}

        with pytest.raises(SpecError, match=r"gave optimizers named \['head'\], the file has tab"):
            run(Mine)

    def test_a_learning_rate_that_would_not_be_used(self):
        class Mine(Experiment):
            def learning_rate(self):
                return 0.1

        parts = {"one": {"builder": "keras.optimizers:SGD", "match": "."}}
        with pytest.raises(SpecError, match=r"^Mine\.learning_rate\(\): is for \[optimizer\], but"):
            run(Mine, optimizer=None, optimizers=parts)

    @pytest.mark.parametrize("method", ["train_loop", "validation_loop"])
    @pytest.mark.parametrize("loop", [7, lambda: None])
    def test_a_loop_that_cannot_be_called_as_one(self, method, loop):
        made = type("Mine", (Experiment,), {method: lambda self: loop})(tables())
        with pytest.raises(SpecError, match=r"loop: must be a function \(step, iterator"):
            made.trainer() if method == "train_loop" else made.validator("test")

    @pytest.mark.parametrize("name", ["Wrong", "Absent"])
    def test_what_is_no_subclass_before_anything_is_imported(self, name, tmp_path, monkeypatch):
        module = tmp_path / "named_class.py"
        module.write_text("raise SystemExit\nclass Wrong:\n    pass\n")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SpecError, match=rf'^experiment = "named_class:{name}": '):
            check_builders(tables(experiment=f"named_class:{name}"))

    def test_also_when_it_is_imported(self):
        with pytest.raises(SpecError, match="must be a subclass of pipefit"):
            experiment_class(tables(experiment=f"{__name__}:data"))

    def test_several_models_at_once(self):
        two = {"a": {"builder": f"{__name__}:model"}, "b": {"builder": f"{__name__}:model"}}
        with pytest.raises(SpecError, match=r"has several models \(a, b\); take one of Spec.runs"):
            Experiment(tables(model=None, models=two))


class Mine(Experiment):
    """Named by the file."""


def test_the_class_that_the_file_names_is_found():
    assert experiment_class(tables(experiment=f"{__name__}:Mine")) is Mine
    assert experiment_class(tables()) is Experiment


# ---- callables without a name, and with arguments bound before ----


class Scaled:
    """A callable without a __name__."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, labels, logits):
        return self.factor * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def method(self, labels, logits):
        return self(labels, logits)


def scaled(labels, logits, factor=1.0, *, offset=0.0):
    return Scaled(factor)(labels, logits) + offset


def positional(factor, labels, logits):
    return Scaled(factor)(labels, logits)


#: Each is three times the default loss.
LOSSES = {
    "instance": lambda: Scaled(3.0),
    "method": lambda: Scaled(3.0).method,
    "keywords": lambda: functools.partial(scaled, factor=3.0, offset=0.0),
    "positional": lambda: functools.partial(positional, 3.0),
    "of_an_instance": lambda: functools.partial(Scaled(3.0)),
    "compiled": lambda: tf.function(Scaled(3.0).method),
}


def odd_loss(kind):
    return LOSSES[kind]()


#: A builder that is itself a callable without a name, and one with arguments bound before.
instance = type("Builder", (), {"__call__": lambda self, kind: LOSSES[kind]()})()
partial = functools.partial(odd_loss, kind="positional")


def loop(step, iterator, steps, *, log):
    for batch in iterator:
        log.append(step.number)
        step(batch)


class Loop:
    def __init__(self):
        self.log = []

    def __call__(self, step, iterator, steps):
        loop(step, iterator, steps, log=self.log)


def odd_loop(kind):
    return Loop() if kind == "instance" else functools.partial(loop, log=[])


class TestOddCallables:
    @pytest.mark.parametrize("kind", LOSSES)
    def test_as_a_loss_and_a_metric(self, kind, plain):
        builder = {"builder": f"{__name__}:odd_loss", "kind": kind}
        spec = tables(
            loss=builder,
            train__metrics={"three": builder},
            validation__test__metrics={"three": builder},
        )
        check_builders(spec)
        made = Experiment(spec)
        rows = made.trainer().run(1)
        assert rows["loss"] == pytest.approx(3 * plain["loss"][:1], rel=1e-6)
        assert rows["three"] == pytest.approx(rows["loss"], rel=1e-6)
        numbers = made.validator("test").run().metrics
        assert numbers["three"] == pytest.approx(numbers["loss"])

    @pytest.mark.parametrize(
        "builder", [{"builder": "instance", "kind": "instance"}, {"builder": "partial"}]
    )
    def test_as_a_builder(self, builder, plain):
        spec = tables(loss={**builder, "builder": f"{__name__}:{builder['builder']}"})
        check_builders(spec)
        again = Spec.from_json(spec.to_json())
        assert again.identity == spec.identity
        rows = Experiment(again).trainer().run(1)
        assert rows["loss"] == pytest.approx(3 * plain["loss"][:1], rel=1e-6)

    @pytest.mark.parametrize("kind", ["instance", "partial"])
    def test_as_a_loop(self, kind, plain):
        assert_equal(run(train__loop={"builder": f"{__name__}:odd_loop", "kind": kind}), plain)

    def test_what_tells_nothing_of_its_arguments_is_refused(self):
        with pytest.raises(SpecError, match=r"^loss: the names of its arguments cannot be read"):
            per_example(map, "loss")


# ---- from plain Python ----


def test_equals_a_loop_written_by_hand(plain):
    """No Pipefit in it but the order of the examples."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    network, optimizer = model(), keras.optimizers.SGD(0.1)
    source, losses = points(), []
    for step in range(4):
        order = examples(seed=0, start=step * 8, count=8, n=20)
        with tf.GradientTape() as tape:
            logits = network(source.fields["x"][order], training=True)["logits"]
            labels = source.fields["labels"][order]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)
        losses.append(float(loss))
    assert_close({"loss": plain["loss"]}, {"loss": np.array(losses, np.float32)}, tolerance=1e-5)
    assert set(counting(plain)) == {"loss", "learning_rate"}


_SCRIPT = """
import sys
import pipefit
from pipefit.training import Experiment

assert "mine" not in sys.modules
spec = pipefit.read_spec("somewhere/mine.toml")
experiment = Experiment(spec)
rows = experiment.trainer().run(10)
assert rows["loss"][-1] < rows["loss"][0], rows["loss"]
print(len(rows["loss"]), experiment.validator("test").run().examples)
assert not {"luigi", "pymongo"} & set(sys.modules)
"""


def test_in_a_process_without_luigi_and_database_beside_the_file(tmp_path):
    """As in a notebook: modules beside the file are found."""
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "somewhere" / "mine.toml").write_text(
        tables(
            data__train={"builder": "mine:data", "batch_size": 8},
            model={"builder": "mine:model"},
            validation={"test": {"data": "train"}},
        ).to_toml()
    )
    (tmp_path / "somewhere" / "mine.py").write_text(
        "import keras, numpy as np\n"
        "from pipefit.data import Arrays\n"
        "def data():\n"
        "    labels = np.arange(16) % 2\n"
        "    return Arrays(x=np.eye(2, dtype='float32')[labels], labels=labels)\n"
        "def model():\n"
        "    x = keras.Input((2,), name='x')\n"
        "    return keras.Model(x, {'logits': keras.layers.Dense(2, name='b')(x)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "16"]
