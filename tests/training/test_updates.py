"""Each rule of an update against one written out in NumPy, on one device and on several."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    adam,
    assert_close,
    assert_equal,
    make_trainer,
    perceptron,
    sgd,
    weights,
)
from updates_helpers import Steps, by_hand, by_layer, gradients

from pipefit.data import Arrays
from pipefit.errors import SpecError, TrainingError
from pipefit.training.updating.gradients import Clip
from pipefit.training.updating.rates import Group
from pipefit.training.updating.updates import Part

DEVICES = pytest.mark.parametrize("devices", [1, 2])
PATHS = "a/kernel, a/bias, b/kernel, b/bias"


def one(make=lambda: keras.optimizers.SGD(0.1), **options):
    """Makes the only part."""
    return lambda: [Part(make(), **options)]


def two():
    return [
        Part(keras.optimizers.SGD(0.1, momentum=0.9), "first", "^a/"),
        Part(keras.optimizers.Adam(0.01), "second", "^b/"),
    ]


def hyperbolic(step):
    """What `Hyperbolic` computes, by step from 1."""
    return 0.3 / step


class Hyperbolic(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, iterations):
        return 0.3 / (keras.ops.cast(iterations, "float32") + 1)


class Signed(keras.optimizers.Optimizer):
    """A user's own: steps by the sign of a running sum, remembers each variable's sum."""

    def __init__(self, learning_rate=0.1, **options):
        super().__init__(learning_rate=learning_rate, **options)

    def build(self, variables):
        super().build(variables)
        self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.assign_add(total, gradient)
        # By its own attribute, which is not how Keras' optimizers read it.
        self.assign_sub(variable, self.learning_rate * keras.ops.sign(total))


def signed(rate):
    sums = {}

    def rule(name, weight, gradient, step):
        sums[name] = sums.get(name, 0.0) + gradient
        return weight - rate * np.sign(sums[name])

    return rule


@DEVICES
class TestSeveralOptimizers:
    def test_each_updates_its_own_variables(self, devices):
        steps = Steps(two, devices=devices)
        start, given = steps.weights(), gradients(5)
        rates = steps.run(given)
        rule = by_layer(a=sgd(0.1, momentum=0.9), b=adam(0.01))
        assert_close(steps.weights(), by_hand(start, given, rule))
        assert_close(
            rates, {"learning_rate/first": [0.1] * 5, "learning_rate/second": [0.01] * 5}, 1e-7
        )
        assert steps.updates.done() == 5

    def test_each_clips_its_own_gradients(self, devices):
        def parts():
            return [
                Part(keras.optimizers.SGD(0.1), "first", "^a/", Clip(global_norm=1.0)),
                Part(keras.optimizers.SGD(0.2), "second", "^b/", Clip(value=0.5)),
            ]

        steps = Steps(parts, devices=devices)
        start, given = steps.weights(), gradients(1)
        steps.run(given)
        g = given[0]
        norm = np.sqrt((g["a/kernel"] ** 2).sum() + (g["a/bias"] ** 2).sum())
        assert norm > 1
        expected = {
            "a/kernel": start["a/kernel"] - 0.1 * g["a/kernel"] / norm,
            "a/bias": start["a/bias"] - 0.1 * g["a/bias"] / norm,
            "b/kernel": start["b/kernel"] - 0.2 * np.clip(g["b/kernel"], -0.5, 0.5),
            "b/bias": start["b/bias"] - 0.2 * np.clip(g["b/bias"], -0.5, 0.5),
        }
        assert_close(steps.weights(), expected)


class TestLearningRates:
    @DEVICES
    def test_groups_of_one_optimizer(self, devices):
        groups = [
            Group("^a/kernel$", 0.5),
            Group("^a", learning_rate=0.02),
            Group("^b/b", learning_rate=Hyperbolic()),
            Group("bias", 100.0),
        ]
        steps = Steps(one(lambda: keras.optimizers.Adam(0.01), groups=groups), devices=devices)
        start, given = steps.weights(), gradients(4)
        rates = steps.run(given)

        def rule(path, *rest, rules={}):  # noqa: B006 - one per path, each with its moments
            rate = {"a/kernel": 0.005, "a/bias": 0.02, "b/kernel": 0.01}
            made = rules.setdefault(path, adam(rate.get(path, 0.0)))
            return made(path, *rest)

        moving = {k: v for k, v in start.items() if k != "b/bias"}
        expected = by_hand(moving, given, rule)
        after = steps.weights()
        assert_close({k: after[k] for k in expected}, expected)
        assert_close(
            rates,
            {
                "learning_rate": [0.01] * 4,
                "learning_rate/^a/kernel$": [0.005] * 4,
                "learning_rate/^a": [0.02] * 4,
                "learning_rate/^b/b": [hyperbolic(t) for t in (1, 2, 3, 4)],
                "learning_rate/bias": [1.0] * 4,
            },
        )

    @DEVICES
    def test_a_groups_own_schedule(self, devices):
        groups = [Group("^b/", learning_rate=Hyperbolic())]
        steps = Steps(one(groups=groups), devices=devices)
        start, given = steps.weights(), gradients(5)
        rates = steps.run(given)
        expected = by_hand(start, given, by_layer(a=sgd(0.1), b=sgd(hyperbolic)))
        assert_close(steps.weights(), expected)
        assert_close(
            rates,
            {"learning_rate": [0.1] * 5, "learning_rate/^b/": [hyperbolic(t) for t in range(1, 6)]},
        )

    @DEVICES
    def test_none_a_tenth_and_a_hundredth_beside_what_is_frozen(self, devices):
        def model():
            x = keras.Input((4,), name="x")
            y = x
            for name in "abcd":
                y = keras.layers.Dense(4, name=name)(y)
            return keras.Model(x, {"logits": y})

        groups = [
            Group("^b", learning_rate=0.0),
            Group("^c", learning_rate=0.1),
            Group("^d", learning_rate=0.01),
        ]
        steps = Steps(one(groups=groups), model=model, devices=devices, trainable="^[b-d]/")
        start = steps.weights()
        kernel = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
        given = {
            f"{n}/{v}": g for n in "abcd" for v, g in [("kernel", kernel), ("bias", kernel[0])]
        }
        steps.run([given] * 5)
        after = steps.weights()
        for path in start:
            assert (after[path].tobytes() == start[path].tobytes()) == (path[0] in "ab")
        for name in ("kernel", "bias"):
            change = {n: after[f"{n}/{name}"] - start[f"{n}/{name}"] for n in "cd"}
            np.testing.assert_allclose(change["c"], 10 * change["d"], rtol=1e-4, atol=1e-6)

    def test_the_scale_of_all_rates_may_change_between_steps(self):
        groups = [Group("^a/kernel", 0.5), Group("^a", learning_rate=Hyperbolic())]
        steps = Steps(one(groups=groups), rate_scale=0.5)
        start, given = steps.weights(), gradients(4)
        first = steps.run(given[:2])
        steps.updates.rate_scale = 0.25
        assert steps.updates.rate_scale == 0.25
        second = steps.run(given[2:])
        factors = np.array([0.5, 0.5, 0.25, 0.25])
        rates = {
            "learning_rate": 0.1 * factors,
            "learning_rate/^a/kernel": 0.05 * factors,
            "learning_rate/^a": np.array([hyperbolic(t) for t in (1, 2, 3, 4)]) * factors,
        }
        assert_close({k: np.concatenate([first[k], second[k]]) for k in rates}, rates)
        column = {"a/kernel": "learning_rate/^a/kernel", "a/bias": "learning_rate/^a"}
        expected = by_hand(
            start,
            given,
            lambda p, w, g, t: w - rates[column.get(p, "learning_rate")][t - 1] * g,
        )
        assert_close(steps.weights(), expected)

    def test_the_first_group_that_is_found_in_the_path_counts(self):
        groups = [Group("^a/k", 0.5), Group("kernel", 0.25), Group("b/kernel", 0.0)]
        steps = Steps(one(groups=groups))
        start, given = steps.weights(), gradients(1)
        steps.run(given)
        factors = {"a/kernel": 0.5, "a/bias": 1.0, "b/kernel": 0.25, "b/bias": 1.0}
        expected = by_hand(start, given, lambda p, w, g, t: w - 0.1 * factors[p] * g)
        assert_close(steps.weights(), expected)

    def test_a_function_as_in_keras(self):
        steps = Steps(
            one(
                lambda: keras.optimizers.SGD(lambda: 0.5),
                groups=[Group("^a", learning_rate=lambda: 0.25)],
            )
        )
        assert_close(steps.run(gradients(1)), {"learning_rate": [0.5], "learning_rate/^a": [0.25]})


@DEVICES
def test_constraints_hold_after_every_update(devices):
    def model():
        return perceptron(kernel_constraint=keras.constraints.MaxNorm(0.5))

    steps = Steps(two, model=model, devices=devices, average=0.9)
    start, given = steps.weights(), gradients(3)
    free = by_layer(a=sgd(0.1, momentum=0.9), b=adam(0.01))

    def rule(path, *rest):
        updated = free(path, *rest)
        if path == "a/kernel":
            norm = np.linalg.norm(updated, axis=0)
            updated = updated * np.minimum(norm, 0.5) / norm
        return updated

    steps.run(given)
    assert_close(steps.weights(), by_hand(start, given, rule), tolerance=1e-5)


@DEVICES
@pytest.mark.parametrize(
    "options",
    [{}, {"updates": {"loss_scaling": True}}, {"accumulate": 2}, {"jit_compile": True}],
    ids=["plain", "loss scaling", "accumulated", "compiled"],
)
def test_sparse_gradients_do_what_dense_ones_do(devices, options):
    class Product(keras.layers.Embedding):
        """Looks up by a matrix product: its gradient is dense."""

        def call(self, inputs):
            return tf.one_hot(inputs, self.input_dim) @ self.embeddings

    def trainer(layer, **options):
        def model():
            words = keras.Input((4,), name="words", dtype="int64")
            y = keras.layers.Flatten(name="flat")(layer(3, 2, name="e")(words))
            return keras.Model(words, keras.layers.Dense(3, name="b")(y))

        def parts():
            return [Part(keras.optimizers.Adam(0.1), groups=[Group("^e", 0.1)])]

        words = np.random.default_rng(0).integers(0, 3, (20, 4))
        source = Arrays(words=words, labels=np.arange(20) % 3)
        made = make_trainer(model, source, parts=parts, **options)
        made.run(4)
        return weights(made)

    sparse = trainer(keras.layers.Embedding, devices=devices, **options)
    assert_close(sparse, trainer(Product))


KERAS = [
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
]


class TestAnyOptimizer:
    def test_all_of_keras_are_tried(self):
        assert {"SGD", "Adam", "Nadam", "Lion", "Muon"} <= set(KERAS)

    @pytest.mark.parametrize("name", KERAS)
    def test_of_keras_is_equal_with_groups_and_on_two_devices(self, name):
        def make():
            return getattr(keras.optimizers, name)(0.01, weight_decay=0.1)

        groups = [Group("kernel", 1.0), Group("^a", learning_rate=0.01)]
        plain, grouped = Steps(one(make)), Steps(one(make, groups=groups), devices=2)
        start, given = plain.weights(), gradients(3)
        plain.run(given)
        grouped.run(given)
        assert_close(grouped.weights(), plain.weights())
        assert all(np.abs(w - start[p]).max() > 1e-7 for p, w in plain.weights().items())

    def test_stays_an_optimizer_of_its_class(self):
        made = keras.optimizers.Adam(0.1, name="mine")
        Steps(one(lambda: made))
        assert isinstance(made, keras.optimizers.Adam)
        assert type(made).__name__ == "Adam"
        assert made.get_config()["name"] == "mine"

    @DEVICES
    def test_of_a_user(self, devices):
        steps = Steps(one(Signed, groups=[Group("^b", 0.1)]), devices=devices)
        start, given = steps.weights(), gradients(4)
        steps.run(given)
        assert_close(
            steps.weights(), by_hand(start, given, by_layer(a=signed(0.1), b=signed(0.01)))
        )
        assert {"optimizer/signed/iteration", "optimizer/signed/a_kernel_sum"} < set(steps.arrays())


class TestWeightDecay:
    @DEVICES
    def test_only_what_matches_decays_by_its_own_learning_rate(self, devices):
        steps = Steps(
            one(
                lambda: keras.optimizers.AdamW(0.01, weight_decay=0.5),
                weight_decay_on="kernel$",
                groups=[Group("^b", 0.1)],
            ),
            devices=devices,
        )
        start, given = steps.weights(), gradients(5)
        steps.run(given)
        rules = {
            "a/kernel": adam(0.01, 0.5),
            "a/bias": adam(0.01),
            "b/kernel": adam(0.001, 0.5),
            "b/bias": adam(0.001),
        }
        expected = by_hand(start, given, lambda path, *rest: rules[path](path, *rest))
        assert_close(steps.weights(), expected)

    @DEVICES
    def test_of_an_optimizer_with_rules_of_its_own(self, devices):
        """Muon leaves biases to Adam, with another decay."""

        def make():
            return keras.optimizers.Muon(0.1, weight_decay=None, adam_weight_decay=0.5)

        groups = [Group("^b", 0.1)]
        steps = Steps(one(make, weight_decay_on="bias$", groups=groups), devices=devices)
        for variable in steps.model.variables:
            variable.assign(np.ones(variable.shape))
        nothing = {path: np.zeros_like(value) for path, value in steps.weights().items()}
        steps.run([nothing])
        after = {path: value.ravel()[0] for path, value in steps.weights().items()}
        expected = {"a/kernel": 1, "a/bias": 0.95, "b/kernel": 1, "b/bias": 0.995}
        assert after == pytest.approx(expected, rel=1e-6)

    @DEVICES
    def test_what_the_optimizer_excludes_itself_stays_excluded(self, devices):
        def make():
            made = keras.optimizers.SGD(0.1, weight_decay=0.5)
            made.exclude_from_weight_decay(var_names=["bias"])
            return made

        steps = Steps(one(make, weight_decay_on="^a"), devices=devices)
        start = steps.weights()
        nothing = {path: np.zeros_like(value) for path, value in start.items()}
        steps.run([nothing])
        expected = {**start, "a/kernel": start["a/kernel"] * (1 - 0.5 * 0.1)}
        assert_close(steps.weights(), expected)


class TestAverages:
    @DEVICES
    def test_the_formula_from_the_initial_weights(self, devices):
        steps = Steps(one(), devices=devices, average=0.9)
        average = {path: value.astype(np.float64) for path, value in steps.weights().items()}
        assert_equal(steps.averages(), steps.weights())
        for given in gradients(6):
            steps.run([given])
            average = {p: 0.9 * average[p] + 0.1 * w for p, w in steps.weights().items()}
        assert_close(steps.averages(), average)
        assert np.abs(steps.averages()["a/kernel"] - steps.weights()["a/kernel"]).max() > 0.01

    @DEVICES
    def test_are_state_and_continue_bit_for_bit(self, devices):
        whole, continued = (Steps(two, devices=devices, average=0.99) for _ in range(2))
        given = gradients(6)
        whole.run(given[:3])
        saved = whole.arrays()
        assert {f"average/{path}" for path in whole.weights()} < set(saved)
        whole.run(given[3:])
        continued.state.restore(saved)
        continued.run(given[3:])
        assert_equal(continued.arrays(), whole.arrays())

    def test_only_of_what_is_trained(self):
        steps = Steps(one(), trainable="^b", average=0.9)
        assert list(steps.updates.average_values()) == ["b/kernel", "b/bias"]

    def test_of_weights_of_16_bits_are_refused(self):
        def model():
            x = keras.Input((6,), name="x")
            return keras.Model(x, keras.layers.Dense(3, name="b", dtype="bfloat16")(x))

        with pytest.raises(SpecError, match="the variable 'b/kernel' is bfloat16, in which"):
            Steps(one(), model=model, average=0.999)

    def test_without_there_are_none(self):
        steps = Steps(one())
        assert steps.updates.average_values() == {}
        assert not any(name.startswith("average/") for name in steps.arrays())


class TestNamesOfState:
    def test_of_one_optimizer_are_its_own(self):
        steps = Steps(one(lambda: keras.optimizers.SGD(0.1, momentum=0.9)))
        assert list(steps.updates.variables) == [
            "optimizer/sgd/iteration",
            "optimizer/sgd/a_kernel_momentum",
            "optimizer/sgd/a_bias_momentum",
            "optimizer/sgd/b_kernel_momentum",
            "optimizer/sgd/b_bias_momentum",
        ]

    def test_of_two_of_one_class_begin_with_their_tables(self):
        def parts():
            return [
                Part(keras.optimizers.SGD(0.1, momentum=0.9), "first", "kernel"),
                Part(keras.optimizers.SGD(0.1, momentum=0.9), "second", "bias"),
            ]

        assert list(Steps(parts).updates.variables) == [
            "optimizer/first/sgd/iteration",
            "optimizer/first/sgd/a_kernel_momentum",
            "optimizer/first/sgd/b_kernel_momentum",
            "optimizer/second/sgd/iteration",
            "optimizer/second/sgd/a_bias_momentum",
            "optimizer/second/sgd/b_bias_momentum",
        ]

    def test_do_not_depend_on_what_else_the_process_holds(self):
        def crowded(make):
            def later():
                others = [make() for _ in range(3)]
                for other in others:
                    other.build([keras.Variable(1.0, name="v")])
                return [Part(make())]

            return later

        for make in (keras.optimizers.AdamW, keras.optimizers.Nadam):
            alone, among_others = Steps(one(make)), Steps(crowded(make))
            assert among_others.updates.trainable[0].path == "a/kernel"
            assert list(among_others.updates.variables) == list(alone.updates.variables)

    def test_a_name_of_ones_own_stays(self):
        steps = Steps(one(lambda: keras.optimizers.SGD(0.1, name="sgd_of_2")))
        assert list(steps.updates.variables) == ["optimizer/sgd_of_2/iteration"]

    def test_are_different_even_if_keras_gives_two_variables_one(self):
        def model():
            x = keras.Input((2,), name="x")
            inner = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(2, name="b_c")], name="a"
            )
            other = keras.Sequential(
                [keras.Input((2,)), keras.layers.Dense(2, name="c")], name="a_b"
            )
            return keras.Model(x, other(inner(x)))

        steps = Steps(one(lambda: keras.optimizers.SGD(0.1, momentum=0.9)), model=model)
        assert [n for n in steps.updates.variables if "kernel" in n] == [
            "optimizer/sgd/a_b_c_kernel_momentum",
            "optimizer/sgd/a_b_c_kernel_momentum_2",
        ]

    def test_constant_rates_are_no_state_and_known(self):
        def parts():
            return [
                Part(keras.optimizers.SGD(0.1), "first", "kernel"),
                Part(keras.optimizers.SGD(0.2), "second", "bias"),
            ]

        steps = Steps(parts, rate_scale=0.5)
        assert not any("rate" in name for name in steps.arrays())
        constants = steps.updates.constants
        assert sorted(float(v) for v in constants) == pytest.approx([0.1, 0.2, 0.5])
        assert steps.state.others(constants) == []


class TestRefused:
    @staticmethod
    def message(parts, **options):
        with pytest.raises(SpecError) as refused:
            Steps(parts, **options)
        return str(refused.value)

    @pytest.mark.parametrize("thing", ["sgd", keras.optimizers.SGD, None])
    def test_something_else_than_an_optimizer(self, thing):
        message = self.message(one(lambda: thing))
        assert message.startswith("optimizer: the builder must return a keras.optimizers.Optimizer")

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
                "optimizer.gradient_accumulation_steps = 2: cannot be used; "
                "set train.accumulate instead",
            ),
            (
                lambda: keras.optimizers.SGD(0.1, use_ema=True),
                "optimizer.use_ema = True: cannot be used; set train.average instead, "
                "the momentum of the averaged weights",
            ),
            (
                lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
                "optimizer.loss_scale_factor = 8.0: cannot be used; leave it out; "
                "train.precision = 'float16' scales losses dynamically",
            ),
            (
                lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
                "use its inner optimizer, and train.precision = 'float16'",
            ),
            (
                lambda: keras.optimizers.MultiOptimizer(
                    keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
                ),
                "a MultiOptimizer cannot be used; write one table [optimizers.NAME] with `match`",
            ),
        ],
        ids=["accumulation", "averages", "constant loss scale", "loss scale", "several"],
    )
    def test_what_pipefit_does_itself(self, make, message):
        assert message in self.message(one(make))

    def test_variables_of_no_part_or_of_several(self):
        def parts():
            return [
                Part(keras.optimizers.SGD(0.1), "first", "^a/"),
                Part(keras.optimizers.SGD(0.1), "second", "^a/b|^b/k"),
            ]

        assert self.message(parts) == (
            "optimizers: 2 of 4 trainable variables match no table or several; change `match` so "
            "that every one matches exactly one\n  a/bias: first, second\n  b/bias: none"
        )

    def test_a_part_without_variables(self):
        def parts():
            return [
                Part(keras.optimizers.SGD(0.1), "first", "^[ab]/"),
                Part(keras.optimizers.SGD(0.1), "second", "^c/"),
            ]

        assert self.message(parts) == (
            f"optimizers.second.match = '^c/' matches no trainable variable; there are {PATHS}"
        )

    @pytest.mark.parametrize("names", [(), ("", ""), ("a", "a"), ("", "a")])
    def test_names_that_do_not_tell_the_parts_apart(self, names):
        message = self.message(lambda: [Part(keras.optimizers.SGD(0.1), name) for name in names])
        assert "must be one, or several with different names" in message

    def test_one_optimizer_twice(self):
        def parts():
            made = keras.optimizers.SGD(0.1)
            return [Part(made, "first", "^a"), Part(made, "second", "^b")]

        assert "every part needs an optimizer of its own" in self.message(parts)

    def test_an_optimizer_that_is_in_use(self):
        made = keras.optimizers.SGD(0.1)
        Steps(one(lambda: made))
        assert "must return a new optimizer" in self.message(one(lambda: made))

    @pytest.mark.parametrize("pattern", ["^c/", "A/kernel"])
    def test_a_group_that_matches_nothing(self, pattern):
        groups = [Group("kernel", 0.1), Group(pattern, 0.2)]
        assert self.message(one(groups=groups)) == (
            f"optimizer.groups: match = {pattern!r} matches no trainable variable; "
            f"there are {PATHS}"
        )

    def test_a_group_of_variables_that_are_frozen(self):
        message = self.message(one(groups=[Group("^a", 0.1)]), trainable="^b")
        assert message.endswith("matches no trainable variable; there are b/kernel, b/bias")

    def test_a_group_twice(self):
        message = self.message(one(groups=[Group("a"), Group("b"), Group("a", 0.5)]))
        assert message == "optimizer.groups: match = 'a' is there twice; only the first would count"

    def test_a_scale_of_a_rate_of_its_own(self):
        message = self.message(one(groups=[Group("a", 0.5, learning_rate=0.1)]))
        assert "has both scale and learning_rate; leave one out" in message

    def test_weight_decay_on_without_weight_decay(self):
        assert self.message(one(weight_decay_on="kernel")) == (
            "optimizer.weight_decay_on = 'kernel': the optimizer has no weight_decay; give it one"
        )

    def test_weight_decay_on_nothing(self):
        message = self.message(one(keras.optimizers.AdamW, weight_decay_on="^c"))
        assert message == (
            f"optimizer.weight_decay_on = '^c' matches no trainable variable; there are {PATHS}"
        )

    @pytest.mark.parametrize("average", [0, 1, -0.1, 1.5])
    def test_a_momentum_that_is_none(self, average):
        message = self.message(one(), average=average)
        assert message == f"train.average = {average}: must be above 0 and below 1"

    def test_a_model_that_is_frozen_as_a_whole(self):
        def model():
            made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
            made.trainable = False
            return made

        assert "nothing to train" in self.message(one(), model=model)

    def test_a_loss_that_depends_on_no_variable_of_a_part(self):
        updates = Steps(two).updates
        some = gradients(1)[0]
        with pytest.raises(TrainingError) as refused:
            updates.apply([some["a/kernel"], some["a/bias"], None, None])
        assert str(refused.value) == (
            "optimizers.second: the loss depends on none of its variables, b/kernel, b/bias"
        )

    def test_optimizers_that_count_differently(self):
        class Twice(keras.optimizers.SGD):
            def apply(self, grads, trainable_variables=None):
                super().apply(grads, trainable_variables)
                self.iterations.assign_add(1)

        def parts():
            return [
                Part(Twice(0.1), "first", "^a"),
                Part(keras.optimizers.SGD(0.1), "second", "^b"),
            ]

        steps = Steps(parts)
        steps.run(gradients(2))
        with pytest.raises(TrainingError, match=r"optimizers\.first 4, optimizers\.second 2"):
            steps.updates.done()
