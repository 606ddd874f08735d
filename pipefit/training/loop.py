"""The outer loop: what happens between calls of the inner one. See `Loop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pipefit.errors import Interrupted
from pipefit.training.course import Course
from pipefit.training.schedule import Pace
from pipefit.training.together import Together

#: Most bytes that the numbers of one call may take.
_CALL_BYTES = 64e6


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
    """

    def __init__(self, courses: Sequence[Course], alive: Callable[[], None] = lambda: None):
        self.courses = list(courses)
        self._alive = alive
        self._together = Together()
        self._pace = Pace()
        self._bytes = 0.0

    def run(self) -> None:
        """Train to the end.

        Every course is told how it ended, once. One that fails on its own (its loss, its
        validation, its own writes) does not keep others from going on; what fails in the inner
        loop ends all.

        Raises:
            Interrupted: it was asked to stop; the current steps are saved.
            PipefitError: why a course failed, once all have ended; of several the first.
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
            raise _joined(failed, len(self.courses))

    def _call(self, going: list[Course]) -> None:
        if not going:
            return
        step = min(course.trainer.step for course in going)
        active = [course for course in going if course.trainer.step == step]
        later = [course.trainer.step for course in going if course.trainer.step > step]
        boundary = min([*later, *(course.next_boundary() for course in active)])
        steps = min(boundary - step, self._pace.limit, self._fitting())
        begin = time.perf_counter()
        rows = self._together.run([course.trainer for course in active], steps)
        seconds = time.perf_counter() - begin
        self._pace.measured(steps, seconds)
        self._bytes = sum(value.nbytes for each in rows for value in each.values()) / steps
        for course, numbers in zip(active, rows, strict=True):
            self._alive()
            self._guarded(course, course.take, numbers, seconds)
        self._alive()

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


def _joined(failed: Sequence[Course], count: int) -> Exception:
    """One error for all: of the class of the first."""
    first = failed[0].error
    assert first is not None  # that is what makes it failed
    if count == 1:
        return first
    lines = [f"{course.name}: {course.error}" for course in failed]
    error = type(first)(f"{len(failed)} of {count} models failed; " + "\n".join(lines))
    error.__cause__ = first
    return error
