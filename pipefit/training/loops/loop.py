"""The outer loop: what happens between calls of the inner one. See `Loop`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipefit.errors import DataError, Interrupted, PipefitError, TrainingError
from pipefit.training.loops.course import Course
from pipefit.training.loops.schedule import Pace
from pipefit.training.loops.together import Together

#: Most bytes that the numbers of one call may take.
_CALL_BYTES = 64e6


class CallFailed(TrainingError):
    """A call of the inner loop for several models failed, and with it the state of all of them.

    All may continue from their last checkpoints, but for those to which the failure belongs.

    Attributes:
        count: of the models that were called.
        until: it is not known to which it belongs, so up to this step they are to be called one by
            one; 0: it is known.
    """

    def __init__(self, message: str, count: int, until: int):
        super().__init__(message)
        self.count, self.until = count, until


class Loop:
    """Trains one or several models up to their last steps, validating and saving on the way.

        while a course goes on:
            if asked to stop: save all, raise Interrupted
            all courses at the smallest step: steps until something is due for one of them
            each: record, validate, save, or fail alone

    The courses whose trainers share a feed read it together. Those that continue from different
    steps do so one after the other until they have met.

    Args:
        courses: restored to where to continue.
        alive: is called after every call of the inner loop.
        apart_until: up to this step every course is called on its own, see `CallFailed`.
        part_below: `CallFailed` may be raised, for less than so many models if it is not known to
            which the failure belongs; 0: never. Otherwise a call that fails ends all of its models.
    """

    def __init__(
        self,
        courses: Sequence[Course],
        alive: Callable[[], None] = lambda: None,
        *,
        apart_until: int = 0,
        part_below: float = 0,
    ):
        self.courses = list(courses)
        self._alive = alive
        self._apart_until, self._part_below = apart_until, part_below
        self._together = Together()
        self._pace = Pace()
        self._bytes = 0.0

    def run(self) -> None:
        """Train to the end.

        Every course is told how it ended, once. One that fails on its own (its steps, its data,
        its validation, its writes) does not keep others from going on.

        Raises:
            Interrupted: it was asked to stop; the current steps are saved.
            CallFailed: several are to be continued from their last checkpoints.
            PipefitError: why a course failed, once all have ended; of several all reasons.
        """
        try:
            while going := [course for course in self.courses if course.goes_on()]:
                reasons = [self._guarded(course, course.asked_to_stop) for course in going]
                if reason := next((reason for reason in reasons if reason), None):
                    self._interrupt(reason)
                self._call([course for course in going if course.goes_on()])
        except BaseException as error:
            for course in self.courses:
                course.close(error)
            raise
        failed = [course for course in self.courses if course.error]
        if failed:
            raise joined({c.name: c.error for c in failed if c.error}, len(self.courses))

    def _call(self, going: list[Course]) -> None:
        if not going:
            return
        apart = [course for course in going if course.trainer.step < self._apart_until]
        if apart:
            step, active, meetings = apart[0].trainer.step, apart[:1], [self._apart_until]
        else:
            step = min(course.trainer.step for course in going)
            active = [course for course in going if course.trainer.step == step]
            meetings = [course.trainer.step for course in going if course.trainer.step > step]
        boundary = min([*meetings, *(course.next_boundary() for course in active)])
        steps = min(boundary - step, self._pace.limit, self._fitting())
        begin = time.perf_counter()
        try:
            rows = self._together.run([course.trainer for course in active], steps)
        except Exception as error:
            self._failed(active, step + steps, error)
            return
        seconds = time.perf_counter() - begin
        self._pace.measured(steps, seconds)
        self._bytes = sum(value.nbytes for each in rows for value in each.values()) / steps
        for course, numbers in zip(active, rows, strict=True):
            self._alive()
            self._guarded(course, course.take, numbers, seconds)
        self._alive()

    def _failed(self, active: Sequence[Course], until: int, error: Exception) -> None:
        """A call failed somewhere in its steps, so the state of its courses is of no use."""
        feeds = {course.trainer.feed for course in active}
        if len(active) == 1 or (len(feeds) == 1 and isinstance(error, DataError)):
            guilty = list(active)
        else:
            guilty = [course for course in active if course.trainer.feed.failures.has(error)]
        for course in guilty:
            course.close(error)
        if len(guilty) == len(active):
            return
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        count = len(active)
        if guilty and self._part_below:
            told = f"went on without {_names(guilty)} after {told}"
            raise CallFailed(told, count, 0) from error
        if not guilty and count < self._part_below:
            told = (
                f"a step after step {active[0].trainer.step} failed for one of {_names(active)}, "
                f"went on one by one to see for which: {told}"
            )
            raise CallFailed(told, count, until) from error
        raise error

    def _fitting(self) -> int:
        return max(1, int(_CALL_BYTES / max(self._bytes, 1.0)))

    def _interrupt(self, reason: str) -> None:
        going = [course for course in self.courses if course.goes_on()]
        for course in going:
            self._guarded(course, course.save_to_stop)
        at = ", ".join(f"{course.trainer.step} of {course.steps}" for course in going)
        raise Interrupted(f"stopped at step {at} as asked: {reason}")

    def _guarded(self, course: Course, act: Callable[..., Any], *args: Any) -> Any:
        """Do something of one course, whose failure is its own."""
        try:
            return act(*args)
        except Exception as error:
            course.close(error)
            return None


def _names(courses: Sequence[Course]) -> str:
    return ", ".join(course.name for course in courses)


def joined(failed: Mapping[str, BaseException], count: int) -> BaseException:
    """One error for all that failed: of the class of the first, if all were raised on purpose.

    Args:
        failed: by name of the run.
        count: of all runs.
    """
    first = next(iter(failed.values()))
    if count == 1:
        return first
    lines = [f"{name}: {without_stack(error)}" for name, error in failed.items()]
    ours = all(isinstance(error, PipefitError) for error in failed.values())
    kind = type(without_stack(first)) if ours else TrainingError
    error = kind(f"{len(failed)} of {count} models failed; " + "\n".join(lines))
    error.__cause__ = first
    return error


def without_stack(error: BaseException) -> PipefitError:
    """An error that tells the same, but holds nothing of what the stack of the first one holds."""
    if isinstance(error, PipefitError):
        return type(error)(str(error))
    details = "".join(traceback.format_exception(error)).rstrip()
    return TrainingError(f"{type(error).__name__}: {error}\n{details}")
