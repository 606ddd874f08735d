"""Loops of users' own: what they may do, what is refused, and that nothing else changes."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    arrays,
    assert_close,
    assert_equal,
    make_trainer,
    perceptron,
    points,
    with_layers,
)

from pipefit.errors import Interrupted, SpecError, TrainingError
from pipefit.training import (
    Clip,
    Course,
    Loop,
    Objective,
    Replicas,
    Schedule,
    Targets,
    Together,
    Validator,
    per_example,
)
from pipefit.training.objective import accuracy, sparse_softmax_cross_entropy


def one_by_one(step, iterator, steps):
    for batch in iterator:
        step(batch)


def by_counting(step, iterator, steps):
    for _ in range(steps):
        step(next(iterator))


def dropout():
    return with_layers(
        lambda: keras.layers.BatchNormalization(name="norm", momentum=0.7),
        lambda: keras.layers.Dropout(0.5, name="drop"),
    )()


def everything(devices=1, **options):
    """A training with all that is recorded and all that has state."""
    return make_trainer(
        dropout,
        optimizer=lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
        ),
        metrics={"accuracy": accuracy()},
        groups=[("^a/", 0.1)],
        clip=Clip(global_norm=0.3),
        devices=devices,
        record=frozenset({"gradient_norms", "update_norms"}),
        targets={
            "seen": lambda inputs, outputs, mode: {
                "logits": outputs["logits"],
                "mode": tf.constant(mode),
                "sum": tf.reduce_sum(inputs["x"]),
            }
        },
        **options,
    )


def looking(step, iterator, steps):
    """Looks at what the step returns."""
    for batch in iterator:
        assert set(step(batch)) > {"loss", "accuracy", "seen/logits", "gradient_norm/a/kernel"}


@pytest.fixture(scope="module")
def compiled():
    """Six steps without a loop: all that is recorded, and the state after three and six."""
    trainer = everything()
    first = trainer.run(3)
    states = [arrays(trainer)]
    second = trainer.run(3)
    states.append(arrays(trainer))
    return {name: np.concatenate([first[name], second[name]]) for name in first}, *states


class TestALoopThatDoesNothingOfItsOwn:
    @pytest.mark.parametrize("loop", [one_by_one, by_counting, looking])
    def test_is_bit_equal_to_the_compiled_one(self, compiled, loop):
        expected, _, last = compiled
        theirs = everything(loop=loop)
        parts = [theirs.run(3), theirs.run(1), theirs.run(2)]
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert_equal(rows, expected)
        assert_equal(arrays(theirs), last)
        assert (theirs.step, theirs.position) == (6, 48)

    @pytest.mark.parametrize(
        ("devices", "options"),
        [
            (2, {"accumulate": 2}),
            (1, {"jit_compile": True, "updates": {"loss_scaling": True, "average": 0.9}}),
        ],
    )
    def test_also_on_two_devices_with_slices_and_with_all_else(self, devices, options):
        ours = everything(devices, **options)
        theirs = everything(devices, loop=one_by_one, **options)
        assert_equal(theirs.run(4), ours.run(4))
        assert_equal(arrays(theirs), arrays(ours))

    def test_continues_a_run_of_the_compiled_one(self, compiled):
        expected, middle, last = compiled
        theirs = everything(loop=one_by_one)
        theirs.restore(middle)
        assert_equal(theirs.run(3), {name: column[3:] for name, column in expected.items()})
        assert_equal(arrays(theirs), last)

    def test_beside_a_model_without_one_and_on_the_same_batches(self, compiled):
        expected = {name: column[:4] for name, column in compiled[0].items()}
        other = everything(loop=one_by_one)
        shared = everything(feed=other.feed)
        rows = Together().run([other, shared], 4)
        assert_equal(rows[0], expected)
        assert_equal(rows[1], expected)


class TestAForward:
    """What takes the place of calling the model."""

    @staticmethod
    def doubled(model, fields):
        return {"logits": model(2.0 * fields["x"], training=True)["logits"]}

    def test_the_gradient_goes_through_it(self):
        def loop(step, iterator, steps):
            for batch in iterator:
                step(batch, self.doubled)

        twice = points()
        twice.fields["x"] *= 2.0
        ours, theirs = make_trainer(source=twice), make_trainer(loop=loop)
        assert_close(theirs.run(4), ours.run(4))
        assert_close(arrays(theirs), arrays(ours))

    def test_fields_may_be_added_and_are_cut_up_for_the_devices(self):
        def scaled(model, fields):
            return model(fields["x"] * fields["scale"][:, None], training=True)

        def loop(step, iterator, steps):
            for batch in iterator:
                step({**batch, "scale": np.full(8, 2.0, np.float32)}, scaled)

        twice = points()
        twice.fields["x"] *= 2.0
        ours = make_trainer(source=twice).run(4)
        for devices in (1, 2):
            assert_close(make_trainer(loop=loop, devices=devices).run(4), ours)

    def test_is_compiled_once(self):
        traces = []

        def loop(step, iterator, steps):
            for batch in iterator:
                step(batch, forward)

        def forward(model, fields):
            traces.append(1)
            return model(fields["x"], training=True)

        trainer = make_trainer(loop=loop)
        trainer.run(5)
        trainer.run(5)
        assert len(traces) == 1

    def test_any_callable_will_do(self):
        class Forward:
            __hash__ = None  # as of a dataclass

            def __call__(self, model, fields):
                return model(fields["x"], training=True)

            def method(self, model, fields):
                return self(model, fields)

        made = Forward()
        partial = functools.partial(lambda model, fields, training: model(fields["x"]), training=1)
        ours = make_trainer().run(3)
        for get in (lambda: made, lambda: made.method, lambda: partial):

            def loop(step, iterator, steps, get=get):
                for batch in iterator:
                    step(batch, get())

            assert_equal(make_trainer(loop=loop).run(3), ours)


class TestCalls:
    """Functions that a loop calls beside the step."""

    @staticmethod
    def guess(model, fields):
        return {"guess": tf.argmax(model(fields["x"])["logits"], axis=1), "x": fields["x"]}

    @pytest.mark.parametrize("devices", [1, 3])
    def test_see_the_model_as_it_is_and_give_the_whole_batch_in_its_order(self, devices):
        got = []

        def loop(step, iterator, steps):
            for batch in iterator:
                found = step.call(self.guess, batch)
                expected = self.guess(step.model, batch)
                for name in ("guess", "x"):
                    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
                got.append(found["guess"].shape)
                step(batch)

        ours, theirs = make_trainer(devices=devices), make_trainer(loop=loop, devices=devices)
        assert_equal(theirs.run(3), ours.run(3))
        assert got[-3:] == [(8,)] * 3

    def test_a_batch_smaller_than_the_devices(self):
        def loop(step, iterator, steps):
            for batch in iterator:
                assert step.call(self.guess, batch)["guess"].shape == (2,)
                step(batch)

        trainer = make_trainer(loop=loop, devices=4, batch=2)
        assert_close(trainer.run(3), make_trainer(batch=2).run(3))

    def test_what_they_draw_is_state(self):
        """Dropout in a function that is called before the step moves its generator on."""

        def noisy(model, fields):
            return model(fields["x"], training=True)

        def loop(step, iterator, steps):
            for batch in iterator:
                step({**batch, "x": batch["x"] + step.call(noisy, batch)["logits"][:, :1]})

        model = with_layers(lambda: keras.layers.Dropout(0.5, name="drop"))
        whole, part, rest = (make_trainer(model, loop=loop) for _ in range(3))
        rows = whole.run(6)
        begun = part.run(2)
        rest.restore(arrays(part))
        ended = rest.run(4)
        assert_equal({name: np.r_[begun[name], ended[name]] for name in rows}, rows)
        assert_equal(arrays(rest), arrays(whole))

    def test_results_that_cannot_be_joined(self):
        def loop(step, iterator, steps):
            for batch in iterator:
                step.call(lambda model, fields: {"mean": tf.reduce_mean(fields["x"])}, batch)

        with pytest.raises(SpecError, match=r"result 'mean' has shape \(\) for 4 examples"):
            make_trainer(loop=loop, devices=2).run(1)


class TestTheNumberOfTheStep:
    def test_is_that_of_the_metrics_however_the_run_is_cut(self):
        numbers = []

        def loop(step, iterator, steps):
            for batch in iterator:
                number = step.number
                noise = tf.random.stateless_uniform([8, 1], seed=[3, number])
                step({**batch, "x": batch["x"] + noise})
                numbers.append(number)
                assert step.number == number + 1

        whole, part, rest = (make_trainer(loop=loop) for _ in range(3))
        rows = whole.run(5)
        assert numbers == [1, 1, 2, 3, 4, 5]  # the first one is rehearsed
        begun = part.run(2)
        rest.restore(arrays(part))
        numbers.clear()
        ended = rest.run(3)
        assert numbers == [3, 3, 4, 5]
        assert_equal({name: np.r_[begun[name], ended[name]] for name in rows}, rows)

    def test_of_several_models(self):
        seen = {1: [], 2: []}

        def loop_of(key):
            def loop(step, iterator, steps):
                for batch in iterator:
                    seen[key].append(step.number)
                    step(batch)

            return loop

        trainers = [make_trainer(loop=loop_of(key)) for key in seen]
        together = Together()
        together.run(trainers, 2)
        together.run(trainers, 2)
        assert seen == {1: [1, 1, 2, 3, 4], 2: [1, 1, 2, 3, 4]}

    def test_cannot_be_compiled_in(self):
        def loop(step, iterator, steps):
            def forward(model, fields):
                return model(fields["x"] * float(step.number))

            for batch in iterator:
                step(batch, forward)

        with pytest.raises(TrainingError, match=r"step\.number was read in a function that is com"):
            make_trainer(loop=loop).run(1)


# ---- loops that do not do their part ----


def reads_too_much(step, iterator, steps):
    for _ in range(steps + 1):
        step(next(iterator))


def reads_ahead(step, iterator, steps):
    batches = [next(iterator) for _ in range(steps)]
    for batch in batches:
        step(batch)


def reads_without_step(step, iterator, steps):
    for i, batch in enumerate(iterator):
        if i == 0:
            step(batch)


def reads_nothing(step, iterator, steps):
    pass


def stops_early(step, iterator, steps):
    if steps == 1:
        step(next(iterator))


def steps_twice(step, iterator, steps):
    for batch in iterator:
        step(batch)
        step(batch)


def steps_first(step, iterator, steps):
    step({"x": np.zeros((8, 6), np.float32), "labels": np.zeros(8, np.int64)})


def scalar_field(step, iterator, steps):
    for batch in iterator:
        step({**batch, "share": 0.5})


def half_a_batch(step, iterator, steps):
    for batch in iterator:
        step({name: value[:4] for name, value in batch.items()})


def function_each_time(step, iterator, steps):
    for batch in iterator:
        step(batch, lambda model, fields: model(fields["x"]))


def wrong_forward(step, iterator, steps):
    for batch in iterator:
        step(batch, lambda model: None)


@pytest.mark.parametrize(
    ("loop", "error", "message"),
    [
        (reads_too_much, TrainingError, "asked for more than the 1 batches of this call; end"),
        (reads_ahead, TrainingError, "asked for batch 2 of this call before step was called with"),
        (reads_without_step, TrainingError, "asked for batch 3 of this call before step was"),
        (reads_nothing, TrainingError, "call step with each of 1 batches, but read 0 and called"),
        (stops_early, TrainingError, "call step with each of 99 batches, but read 0 and called it"),
        (steps_twice, TrainingError, "step was called 2 times with 1 batches read; call it once"),
        (steps_first, TrainingError, "step was called 1 times with 0 batches read; call it once"),
        (scalar_field, SpecError, r"field 'share' given to step has shape \(\), but the batch has"),
        (half_a_batch, SpecError, r"field 'x' given to step has shape \(4, 6\), but the batch has"),
        (wrong_forward, SpecError, r"must be a function \(model, fields\); this one has the param"),
    ],
)
def test_a_wrong_loop_is_refused(loop, error, message):
    with pytest.raises(error, match=rf"^train\.loop: .*{message}"):
        make_trainer(loop=loop).run(100)


def test_functions_made_anew_for_every_step_are_refused(monkeypatch):
    monkeypatch.setattr("pipefit.training.loops.turns._MOST_TRACED", 3)
    with pytest.raises(TrainingError, match="gave step more than 3 different functions, or shapes"):
        make_trainer(loop=function_each_time).run(5)


def test_an_exception_keeps_its_class_and_says_where_it_was_raised():
    def loop(step, iterator, steps):
        for batch in iterator:
            step(batch)
            if step.number == 4:
                raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as raised:
        make_trainer(loop=loop).run(5)
    assert raised.value.__notes__ == ["(in train.loop, after 2 steps of this call)"]


# ---- loops whose results could not be repeated ----


class Counting:
    """The loop keeps something from step to step."""

    def __init__(self):
        self.count = 0

    def __call__(self, step, iterator, steps):
        for batch in iterator:
            self.count += 1
            step({**batch, "x": batch["x"] * self.count})


def numpys_random_numbers(step, iterator, steps):
    for batch in iterator:
        step({**batch, "x": batch["x"] + np.random.normal(size=(8, 6)).astype(np.float32)})


def tensorflows_random_numbers(step, iterator, steps):
    for batch in iterator:
        step({**batch, "x": batch["x"] + tf.random.normal((8, 6))})


class Carrying:
    """A variable that is no weight, changed by a function of the loop."""

    def __init__(self):
        self.carry = tf.Variable(1.0)

    def __call__(self, step, iterator, steps):
        for batch in iterator:
            step({**batch, "x": batch["x"] * self.carry})
            self.carry.assign(self.carry * 0.5)


@pytest.mark.parametrize(
    "make", [Counting, lambda: numpys_random_numbers, lambda: tensorflows_random_numbers, Carrying]
)
def test_a_loop_that_depends_on_what_is_not_saved_is_refused(make):
    trainer = make_trainer(loop=make())
    with pytest.raises(TrainingError) as refused:
        trainer.run(5)
    first = str(refused.value)
    assert first.startswith("train.loop: step 1, done twice from the same state, gave two differ")
    assert "(loss, model/a/" in first


def test_state_in_a_weight_of_the_model_is_fine():
    class Remembering(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = keras.layers.Dense(3, name="dense")

        def build(self, shape):
            self.memory = self.add_weight(
                shape=(), initializer="zeros", name="memory", trainable=False
            )
            self.dense.build((None, 6))

        def call(self, fields, training=False):
            if training:
                self.memory.assign_add(1.0)
            return {"logits": self.dense(fields["x"] + self.memory)}

    def model():
        made = Remembering()
        made({"x": np.zeros((1, 6), np.float32)})
        return made

    ours, theirs = make_trainer(model), make_trainer(model, loop=one_by_one)
    assert_equal(theirs.run(5), ours.run(5))
    before, after = (arrays(make_trainer(model)), arrays(theirs))
    assert after["model/own/memory"] == before["model/own/memory"] + 5


def draws_in_the_step(model, fields):
    return model(fields["x"] + tf.random.normal((8, 6)), training=True)


@pytest.mark.parametrize("how", ["step", "call"])
def test_random_numbers_without_a_state_that_is_saved_are_refused(how):
    def loop(step, iterator, steps):
        for batch in iterator:
            if how == "call":
                step.call(draws_in_the_step, batch)
            step(batch, draws_in_the_step if how == "step" else None)

    message = "draws random numbers with RandomStandardNormal, whose state cannot be saved"
    with pytest.raises(TrainingError, match=message):
        make_trainer(loop=loop).run(2)


@pytest.mark.parametrize("how", ["step", "call"])
def test_a_variable_that_changes_but_is_not_saved_is_refused(how):
    count = tf.Variable(0.0, name="count")

    def counts(model, fields):
        count.assign_add(1.0)
        return model(fields["x"], training=True)

    def loop(step, iterator, steps):
        for batch in iterator:
            if how == "call":
                step.call(counts, batch)
            step(batch, counts if how == "step" else None)

    with pytest.raises(TrainingError, match="the variable 'count:0' changes in training, but no"):
        make_trainer(loop=loop).run(2)


def test_a_variable_that_stays_as_it_is_may_be_read():
    factor = tf.Variable(2.0)

    def loop(step, iterator, steps):
        for batch in iterator:
            step(batch, scaled)

    def scaled(model, fields):
        return model(fields["x"] * factor, training=True)

    make_trainer(loop=loop).run(2)


# ---- what happens between calls ----


class Recorder:
    """Receives what a course hands over; asks to stop at a step."""

    def __init__(self, stop_at=None):
        self.blocks, self.saved, self.validations = [], [], []
        self.stop_at, self.step = stop_at, 0

    def metrics(self, block):
        self.blocks.append(block)

    def validation(self, validation):
        self.validations.append(validation)

    def save(self, step, snapshot, kinds, best):
        self.saved.append((step, {name: value.numpy() for name, value in snapshot.items()}))

    def progress(self, step, loss, rate):
        self.step = step

    def stop_requested(self):
        return "enough" if self.stop_at is not None and self.step >= self.stop_at else None

    def finished(self, early):
        pass

    def failed(self, error):
        return False


def course(recorder, trainer, validators=None, steps=20, **intervals):
    due = {"metrics_every": 3, "validate_every": 0, "checkpoint_every": 0, "recent_every": 0}
    schedule = Schedule(steps=steps, **{**due, **intervals})
    Loop(
        [Course(trainer=trainer, validators=validators or {}, schedule=schedule, actions=recorder)]
    ).run()


def test_is_recorded_saved_stopped_and_continued_like_the_compiled_one():
    ours, first, second = Recorder(), Recorder(stop_at=7), Recorder()
    course(ours, everything(), recent_every=5)
    stopped = everything(loop=one_by_one)
    with pytest.raises(Interrupted):
        course(first, stopped, recent_every=5)
    step, state = first.saved[-1]
    assert 7 <= step < 20
    continued = everything(loop=one_by_one)
    continued.restore(state)
    course(second, continued, recent_every=5)
    assert [s for s, _ in ours.saved] == [5, 10, 15, 20]
    assert_equal(second.saved[-1][1], ours.saved[-1][1])
    blocks = [*first.blocks, *second.blocks]
    for name in ("loss", "learning_rate/^a/", "gradient_norm/a/kernel", "seen/logits"):
        got = np.concatenate([block.columns[name] for block in blocks])
        expected = np.concatenate([block.columns[name] for block in ours.blocks])
        assert got.tobytes() == expected.tobytes()


# ---- validation ----


def make_validator(loop, source=None, devices=1, model=perceptron, **options):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    replicas = Replicas(count=devices)
    with replicas.scope():
        built = model()
    return Validator(
        objective=Objective(
            built,
            per_example(sparse_softmax_cross_entropy(), "loss"),
            {"accuracy": per_example(accuracy(), "accuracy")},
        ),
        source=source or points(10),
        replicas=replicas,
        batch_size=4,
        loop=loop,
        where="validation.test.loop",
        **options,
    )


def each_batch(step, iterator):
    for batch in iterator:
        step(batch)


class TestValidation:
    @pytest.mark.parametrize("devices", [1, 2])
    def test_a_loop_that_does_nothing_of_its_own(self, devices):
        got = {}
        for loop in (None, each_batch):
            outputs = []
            validator = make_validator(loop, devices=devices, outputs=("logits",))
            got[loop] = validator.run(outputs.append), [batch["logits"] for batch in outputs]
        assert got[each_batch][0] == got[None][0]
        assert got[None][0].examples == 10
        for one, other in zip(got[each_batch][1], got[None][1], strict=True):
            assert one.tobytes() == other.tobytes()

    @pytest.mark.parametrize("devices", [1, 2])
    def test_may_call_several_functions_for_each_batch(self, devices):
        def embed(model, fields):
            return {"y": model(fields["x"])["logits"]}

        def rest(model, fields):
            return {"logits": fields["y"]}

        def loop(step, iterator):
            for batch in iterator:
                step({**batch, **step.call(embed, batch)}, rest)

        found = make_validator(loop, devices=devices).run()
        expected = make_validator(None).run()
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-6)

    def test_targets_and_outputs_are_those_of_the_forward(self):
        def forward(model, fields):
            return {"logits": -model(fields["x"])["logits"]}

        def loop(step, iterator):
            for batch in iterator:
                arrays = step(batch, forward)
                assert list(arrays) == ["logits"]

        targets = Targets(
            {"t": lambda inputs, outputs, mode: {"mean": tf.reduce_mean(outputs["logits"])}},
            "validation",
        )
        outputs, plain = [], []
        found = make_validator(loop, outputs=("logits",), targets=targets).run(outputs.append)
        expected = make_validator(None, outputs=("logits",), targets=targets).run(plain.append)
        assert found.metrics["t/mean"] == pytest.approx(-expected.metrics["t/mean"])
        np.testing.assert_array_equal(outputs[0]["logits"], -plain[0]["logits"])

    def test_the_first_batch_alone(self):
        assert make_validator(each_batch).first().examples == 4

    def test_a_stream_is_read_to_its_end(self):
        source = points(10).fields

        class Stream:
            def __iter__(self):
                return ({name: value[i] for name, value in source.items()} for i in range(10))

        assert make_validator(each_batch, Stream()).run().examples == 10


def leaves_out_the_last(step, iterator):
    for _ in range(2):
        step(next(iterator))


def leaves_out_the_first(step, iterator):
    next(iterator)
    for batch in iterator:
        step(batch)


def reads_the_last_without_step(step, iterator):
    for batch in iterator:
        step(batch)
        if len(batch["x"]) == 4 and step.examples == 8:
            next(iterator)
            return


def ends_early(step, iterator):
    for batch in iterator:
        step(batch)
        if step.examples == 8:
            return


def repeats(step, iterator):
    for batch in iterator:
        step(batch)
        step(batch)


def goes_on(step, iterator):
    while True:
        step(next(iterator))


def trains(step, iterator):
    for batch in iterator:
        step(batch, lambda model, fields: model(fields["x"], training=True))


def draws(step, iterator):
    for batch in iterator:
        step({**batch, "x": batch["x"] + np.random.normal(size=batch["x"].shape)})


def draws_inside(step, iterator):
    for batch in iterator:
        step(batch, lambda model, fields: model(fields["x"] + tf.random.normal((1, 6))))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (leaves_out_the_last, "asked for more than the 1 batches"),  # in the rehearsal
        (
            leaves_out_the_first,
            "asked for batch 2 of this call before step was called with batch 1",
        ),
        (reads_the_last_without_step, "call step with every batch, but read 3 and called it 2"),
        (ends_early, "call step with every batch, but read 2 and called it 2 times; go on until"),
        (repeats, "step was called 2 times with 1 batches read"),
        (goes_on, "asked for more than the 1 batches of this call"),
        (trains, "changed 'model/norm/moving_mean' of the model; a validation leaves it as it is"),
        (draws, "a batch, done twice from the same state, gave two different results"),
        (draws_inside, "draws random numbers with RandomStandardNormal"),
    ],
)
def test_a_wrong_validation_loop_is_refused(loop, message):
    with pytest.raises(TrainingError, match=message):
        make_validator(loop, model=dropout).run()
