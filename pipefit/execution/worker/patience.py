"""How long an attempt waits for a database that is away: see `Patience`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from pipefit.errors import StoreUnavailable

_Answer = TypeVar("_Answer")

logger = logging.getLogger("pipefit.run")

#: Between tries to reach a database that is away, seconds.
_RETRY_SECONDS = 1.0
#: A database that says nothing at all, not even that it is away, for so long and the time of a
#: lease, is taken for gone; while the run is asked to stop, for the second number alone.
_HUNG_SECONDS, _STOPPING_SECONDS = 30.0, 10.0
#: Time that this process itself may have been stopped does not count: at most so much per look.
_LOOK_SECONDS = 5.0


class Patience:
    """Asks again while the database is away, for as long as a lease lasts.

    A single try ends by the driver's own limits (see `pipefit.store.client`), which are long where
    nothing answers; so whoever waits for the writes asks `lost`, and waits no longer than that.

    Args:
        ttl: of the lease, in seconds.
        should_stop: says why to stop; None: go on. Who asks to stop does not wait for a database.
    """

    def __init__(self, ttl: float, should_stop: Callable[[], str | None]) -> None:
        self._ttl, self._should_stop = ttl, should_stop
        self._missed: StoreUnavailable | None = None
        self._silent, self._looked = 0.0, time.monotonic()

    def __call__(self, ask: Callable[[], _Answer]) -> _Answer:
        """Read or write. Raises `StoreUnavailable` when it has been tried for long enough."""
        long_enough = stop_after_delay(self._ttl)
        trying = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=lambda state: bool(self._should_stop()) or long_enough(state),
            wait=wait_fixed(_RETRY_SECONDS),
            before_sleep=_warn_of_retry,
            reraise=True,
        )
        answer: _Answer = trying(self._tried, ask)
        return answer

    def heard(self, error: StoreUnavailable | None) -> None:
        """The database has answered; or it is away, for this reason."""
        self._missed = error
        self._silent = 0.0

    def lost(self) -> StoreUnavailable | None:
        """Why nobody should wait any more; None: wait on. To be asked every now and then."""
        now = time.monotonic()
        self._silent += min(now - self._looked, _LOOK_SECONDS)
        self._looked = now
        stopping = bool(self._should_stop())
        if stopping and self._missed is not None:
            return self._missed
        if self._silent > (_STOPPING_SECONDS if stopping else self._ttl + _HUNG_SECONDS):
            return StoreUnavailable(
                f"the database has not answered for {self._silent:.0f} s; see whether the server "
                "and the network work"
            )
        return None

    def _tried(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            answer = ask()
        except StoreUnavailable as error:
            self.heard(error)
            raise
        self.heard(None)
        return answer


def _warn_of_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("%s; trying again", error)
