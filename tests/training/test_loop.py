"""The outer loop with a real trainer: what is handed over, in which order, and when it stops."""

import functools
import math

import numpy as np
import pytest
from training_helpers import SEED, arrays, assert_equal, linear, make_trainer, points

from pipefit.data import examples
from pipefit.errors import Diverged, Interrupted, SpecError
from pipefit.records import Best
from pipefit.training import Course, Loop, Schedule, Validated


class Recorder:
    """Receives everything; asks to stop once a step is reached."""

    def __init__(self, stop_at=None, fail_at=None):
        self.events, self.reached, self.progressed, self.ended = [], 0, [], []
        self.stop_at, self.fail_at = stop_at, fail_at

    def metrics(self, block):
        self.events.append(("metrics", block.first, block.last, dict(block.columns)))

    def validation(self, validation):
        self.events.append(("validation", validation.step, validation.name, validation))

    def save(self, step, snapshot, kinds, best):
        if step == self.fail_at:
            raise OSError("disk full")
        state = {name: value.numpy() for name, value in snapshot.items()}
        self.events.append(("save", step, set(kinds), state, best))

    def progress(self, step, loss, rate):
        self.progressed.append((step, loss, rate))
        self.reached = step

    def stop_requested(self):
        return "enough" if self.stop_at is not None and self.reached >= self.stop_at else None

    def finished(self, early):
        self.ended.append(early)

    def failed(self, error):
        self.ended.append(error)

    def of(self, kind):
        return [event[1:] for event in self.events if event[0] == kind]

    @property
    def saved_steps(self):
        return [event[0] for event in self.of("save")]


class Scripted:
    """A validation set whose numbers are given."""

    def __init__(self, *numbers):
        self.numbers = iter(numbers)

    def run(self, alive):
        return Validated({"loss": 0.5, "accuracy": next(self.numbers)}, {}, 7)


def loop(recorder, trainer, *, validators=None, **options):
    names = ("steps", "metrics_every", "validate_every", "checkpoint_every", "recent_every")
    schedule = Schedule(**{name: options.pop(name) for name in names if name in options})
    course = Course(
        trainer=trainer,
        validators=validators or {},
        schedule=schedule,
        actions=recorder,
        **options,
    )
    Loop([course]).run()
    return course


@functools.cache
def shared():
    """A trainer, traced once, and its state at step 0."""
    trainer = make_trainer()
    return trainer, arrays(trainer)


def fresh():
    """The shared trainer, back at step 0."""
    trainer, start = shared()
    trainer.restore(start)
    return trainer


@pytest.fixture(scope="module")
def whole():
    """15 steps: validated every 5, saved every 3."""
    recorder, trainer = Recorder(), fresh()
    loop(
        recorder,
        trainer,
        validators={"test": Scripted(0.1, 0.2, 0.3), "train": Scripted(0.4, 0.5, 0.6)},
        steps=15,
        metrics_every=4,
        validate_every=5,
        recent_every=3,
    )
    return recorder


class TestSchedule:
    def test_saves_and_validations_come_at_their_steps(self, whole):
        assert whole.saved_steps == [3, 6, 9, 12, 15]
        assert [event[1] for event in whole.of("save")] == [{"recent"}] * 4 + [{"recent", "final"}]
        assert [event[:2] for event in whole.of("validation")] == [
            (step, name) for step in (5, 10, 15) for name in ("test", "train")
        ]

    def test_every_steps_metrics_come_exactly_once_in_order(self, whole):
        steps = [step for first, last, _ in whole.of("metrics") for step in range(first, last + 1)]
        assert steps == list(range(1, 16))
        rows = fresh().run(15)
        columns = [columns for _, _, columns in whole.of("metrics")]
        assert_equal({name: np.concatenate([c[name] for c in columns]) for name in rows}, rows)

    def test_metrics_and_validations_of_a_step_come_before_its_save(self, whole):
        known = 0
        for kind, *event in whole.events:
            if kind == "metrics":
                known = event[1]
            if kind == "save":
                assert known >= event[0]
        last = [event[0] for event in whole.events[-4:]]
        assert sorted(last[:-1]) == ["metrics", "validation", "validation"]
        assert last[-1] == "save"

    def test_what_is_saved_is_the_state_after_that_step(self, whole):
        trainer = fresh()
        for step, _, state, _ in whole.of("save"):
            trainer.run(step - trainer.step)
            assert_equal(state, arrays(trainer))

    def test_a_validation_says_what_was_read(self, whole):
        validation = whole.of("validation")[0][2]
        assert validation.metrics == {"loss": 0.5, "accuracy": 0.1}
        assert (validation.examples, validation.checkpoint) == (7, None)
        assert validation.seconds >= 0

    def test_progress_is_told_up_to_the_end(self, whole):
        steps = [step for step, _, _ in whole.progressed]
        assert steps == sorted(set(steps))
        assert steps[-1] == 15
        assert all(math.isfinite(loss) for _, loss, _ in whole.progressed)
        assert all(rate > 0 for _, _, rate in whole.progressed[1:])

    def test_a_run_that_is_at_its_end_does_nothing(self):
        recorder, trainer = Recorder(), fresh()
        trainer.run(3)
        loop(recorder, trainer, steps=3)
        assert recorder.events == []


def first_step_of(example, batch=8):
    """The step that reads an example for the first time, if it is not the first."""
    order = examples(seed=SEED, start=0, count=20, n=20).tolist()
    return order.index(example) // batch + 1


class TestDivergence:
    #: Is read in step 3 first; the model is linear, because ReLU takes NaN for 0.
    EXAMPLE = next(e for e in range(20) if first_step_of(e) == 3)

    def diverged(self, value, **options):
        source = points()
        source.fields["x"][self.EXAMPLE] = value
        recorder = Recorder()
        with pytest.raises(Diverged) as raised:
            loop(recorder, make_trainer(linear, source), steps=20, **options)
        return recorder, str(raised.value)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_loss_that_is_not_a_number(self, value):
        recorder, message = self.diverged(value, recent_every=2)
        assert message.startswith("step 3: loss = nan is not finite")
        assert recorder.saved_steps == [2]
        first, last, columns = recorder.of("metrics")[-1]
        assert (first, last) == (3, 3)
        assert math.isnan(columns["loss"][0])

    def test_a_loss_above_the_limit(self):
        recorder, message = self.diverged(-1e4, max_loss=100.0, metrics_every=10)
        assert message.startswith("step 3: loss = ")
        assert "is above max_loss = 100.0" in message
        assert float(message.split()[4]) > 100
        [(first, last, columns)] = recorder.of("metrics")
        assert (first, last) == (1, 3)
        assert (columns["loss"] > 100).tolist() == [False, False, True]
        assert recorder.saved_steps == []

    def test_also_in_the_middle_of_a_call(self, monkeypatch):
        """Steps that were done after it, in the same call, are not handed over."""

        class TenAtOnce:
            limit = 10

            def measured(self, steps, seconds):
                assert steps == 10

        monkeypatch.setattr("pipefit.training.loops.loop.Pace", TenAtOnce)
        source = points()
        source.fields["x"][self.EXAMPLE] = -1e4
        recorder, trainer = Recorder(), make_trainer(linear, source)
        with pytest.raises(Diverged, match=r"^step 3: "):
            loop(recorder, trainer, steps=40, metrics_every=40, max_loss=100.0)
        assert trainer.step == 10
        assert [event[:2] for event in recorder.of("metrics")] == [(1, 3)]

    def test_without_a_limit_any_finite_loss_is_fine(self):
        source = points()
        source.fields["x"][self.EXAMPLE] = 50.0
        recorder = Recorder()
        loop(recorder, make_trainer(linear, source), steps=4)
        assert recorder.saved_steps == [4]


class TestBest:
    WORST = Best("test/accuracy", "max", -math.inf, -1)

    def best_of(self, numbers, best=WORST, trainer=None, steps=None, **options):
        recorder = Recorder()
        made = loop(
            recorder,
            trainer or fresh(),
            validators={"test": Scripted(*numbers)},
            steps=steps or len(numbers),
            validate_every=1,
            best=best,
            **options,
        )
        return recorder, made

    def test_an_improvement_is_saved_an_equal_or_worse_one_is_not(self):
        recorder, made = self.best_of([0.5, 0.4, 0.5, 0.6, math.nan, 0.1])
        assert made.best == Best("test/accuracy", "max", 0.6, 4)
        assert [(step, kinds) for step, kinds, _, _ in recorder.of("save")] == [
            (1, {"best"}),
            (4, {"best"}),
            (6, {"final"}),
        ]
        assert [best.step for _, _, _, best in recorder.of("save")] == [1, 4, 4]

    def test_the_smallest_if_so_asked(self):
        recorder, made = self.best_of(
            [0.5, 0.7, 0.3], best=Best("test/accuracy", "min", math.inf, -1)
        )
        assert recorder.saved_steps == [1, 3]
        assert made.best.value == 0.3

    def test_is_kept_over_a_continuation(self):
        recorder, made = self.best_of([0.5, 0.9])
        _, _, state, best = recorder.of("save")[-1]
        trainer = fresh()
        trainer.restore(state)
        recorder, made = self.best_of([0.6, 0.7, 0.95], best=best, trainer=trainer, steps=5)
        assert [(step, kinds) for step, kinds, _, _ in recorder.of("save")] == [
            (5, {"best", "final"})
        ]
        assert made.best == Best("test/accuracy", "max", 0.95, 5)

    def test_before_the_first_validation_there_is_none(self):
        recorder, made = self.best_of([math.nan], checkpoint_every=1)
        assert recorder.of("save")[0][3] is None
        assert made.best == self.WORST

    def test_without_a_rule_nothing_is_saved_for_it(self):
        recorder, made = self.best_of([0.5, 0.6], best=None)
        assert recorder.saved_steps == [2]
        assert made.best is None

    def test_a_number_that_is_not_there(self):
        with pytest.raises(SpecError) as refused:
            self.best_of([0.5], best=Best("test/acuracy", "max", -math.inf, -1))
        assert str(refused.value) == (
            "save.best.metric = 'test/acuracy': no such number; there are test/loss, test/accuracy"
        )


class TestStopping:
    def stopped(self, trainer=None, **options):
        recorder = Recorder(stop_at=options.pop("stop_at"))
        with pytest.raises(Interrupted) as raised:
            loop(recorder, trainer or fresh(), steps=20, metrics_every=1, **options)
        return recorder, str(raised.value)

    def test_saves_the_current_step_once(self):
        recorder, message = self.stopped(stop_at=7, recent_every=5)
        assert recorder.saved_steps == [5, 7]
        assert recorder.of("save")[-1][1] == {"stopped"}
        assert message == "stopped at step 7 of 20 as asked: enough"
        assert recorder.of("metrics")[-1][:2] == (7, 7)

    def test_what_is_saved_already_is_not_saved_again(self):
        recorder, message = self.stopped(stop_at=5, recent_every=5)
        assert recorder.saved_steps == [5]
        assert message.startswith("stopped at step 5")

    def test_hands_over_metrics_that_were_not_due_yet(self):
        recorder = Recorder(stop_at=3)
        with pytest.raises(Interrupted):
            loop(recorder, fresh(), steps=10**6, metrics_every=10**6)
        [(first, last, _)] = recorder.of("metrics")
        assert (first, last) == (1, recorder.reached)
        assert recorder.saved_steps == [recorder.reached]

    def test_before_the_first_step_nothing_is_saved(self):
        recorder, message = self.stopped(stop_at=0)
        assert recorder.events == []
        assert message == "stopped at step 0 of 20 as asked: enough"

    def test_right_after_continuing_nothing_is_saved_again(self):
        recorder, _ = self.stopped(stop_at=7)
        trainer = fresh()
        trainer.restore(recorder.of("save")[-1][2])
        recorder, message = self.stopped(trainer, stop_at=0)
        assert recorder.events == []
        assert message == "stopped at step 7 of 20 as asked: enough"

    def test_at_the_last_step_the_run_is_complete(self):
        recorder = Recorder(stop_at=4)
        loop(recorder, fresh(), steps=4, metrics_every=1)
        assert recorder.saved_steps == [4]

    def test_stopped_and_continued_is_bit_equal_to_uninterrupted(self):
        first, _ = self.stopped(stop_at=7, recent_every=5)
        trainer = fresh()
        trainer.restore(first.of("save")[-1][2])
        rest, whole = Recorder(), Recorder()
        loop(rest, trainer, steps=20, metrics_every=3)
        loop(whole, fresh(), steps=20, metrics_every=3)
        assert_equal(rest.of("save")[-1][2], whole.of("save")[-1][2])
        losses = [
            np.concatenate([c["loss"] for r in recorders for _, _, c in r.of("metrics")])
            for recorders in ((first, rest), (whole,))
        ]
        assert losses[0].tobytes() == losses[1].tobytes()


def test_an_error_of_an_action_stops_the_training():
    recorder, trainer = Recorder(fail_at=4), fresh()
    with pytest.raises(OSError, match="disk full"):
        loop(recorder, trainer, steps=20, recent_every=2)
    assert trainer.step == 4
    assert recorder.saved_steps == [2]
