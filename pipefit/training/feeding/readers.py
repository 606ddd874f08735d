"""The threads that call a data source: see `Readers`."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from pipefit.errors import TrainingError
from pipefit.training.feeding.failures import Failures, explained

logger = logging.getLogger("pipefit.run")


@dataclass(eq=False)
class _Task:
    """A call of a function; `what` says in words what it tries."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    what: Callable[..., str]
    result: Future[Any] = field(default_factory=Future)


class Readers:
    """Threads that call a source in place of tf.data's own, which only wait for the results.

    When an iterator goes, tf.data waits without limit for its threads, so for whatever a source
    does in them. Waiting for another thread can be given up: once closed, every call ends at once,
    and a source that does not return holds up a daemon thread and nothing else.

    Args:
        count: of the threads; they start with the first call.
        failures: keep what functions raise.

    Attributes:
        count: of the threads.
        at_end: functions that each thread calls when it ends.
        closed: whether `close` was called.
    """

    def __init__(self, count: int, failures: Failures):
        self.count = count
        self.at_end: list[Callable[[], object]] = []
        self._failures = failures
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # Entered again if the garbage collector ends a forgotten iterator within.
        self._lock = threading.RLock()
        self._waited_for: set[_Task] = set()
        self._threads: list[threading.Thread] = []
        self.closed = threading.Event()

    def call(self, function: Callable[..., Any], *arguments: Any, what: Callable[..., str]) -> Any:
        """What a function returns, called by one of the threads.

        Args:
            function: what to call.
            arguments: of it.
            what: says, given the same arguments, what is tried.

        Raises:
            RuntimeError: with a mark of `failures`: the function failed, or the readers are closed.
        """
        task = _Task(function, arguments, what)
        with self._lock:
            if self.closed.is_set():
                raise self._given_up()
            self._waited_for.add(task)
            self._start()
        self._tasks.put(task)
        try:
            return task.result.result()
        except CancelledError:
            raise self._given_up() from None
        finally:
            self._waited_for.discard(task)

    def close(self, seconds: float = 0.0) -> None:
        """End all calls and, once the source has returned, the threads.

        Args:
            seconds: to wait at most for the threads.
        """
        with self._lock:
            self.closed.set()
        for task in list(self._waited_for):
            task.result.cancel()
        self._tasks.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            # A forgotten iterator may be found by the garbage collector in any thread.
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        # They must not hold these readers: an iterator that is forgotten closes them.
        arguments = (self._tasks, self._failures, self.at_end)
        for i in range(len(self._threads), self.count):
            thread = threading.Thread(
                target=_work, args=arguments, name=f"data-reader-{i}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _given_up(self) -> RuntimeError:
        return self._failures.keep(TrainingError("the data: closed while a batch was read"))


def _work(
    tasks: queue.SimpleQueue[_Task | None],
    failures: Failures,
    at_end: Sequence[Callable[[], object]],
) -> None:
    for task in iter(tasks.get, None):
        if not task.result.cancelled():
            _do(task, failures)
        del task  # and with it the batch
    tasks.put(None)  # for the other threads
    for function in at_end:
        try:
            function()
        except Exception:
            logger.warning("a data source failed when it was closed", exc_info=True)


def _do(task: _Task, failures: Failures) -> None:
    try:
        value = task.function(*task.arguments)
    except BaseException as error:  # in a thread of ours even SystemExit is but a failure to read
        kept = failures.keep(explained(error, task.what(*task.arguments)))
        with contextlib.suppress(InvalidStateError):  # given up meanwhile
            task.result.set_exception(kept)
    else:
        with contextlib.suppress(InvalidStateError):
            task.result.set_result(value)
