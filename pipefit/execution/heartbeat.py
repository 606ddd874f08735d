"""Keeping a run's lease while it is trained; see `Heartbeat`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pipefit.errors import StoreUnavailable
from pipefit.store import RunWriter

logger = logging.getLogger("pipefit.run")

#: Seconds between renewals at most; each one also stores the progress.
RENEW_SECONDS = 5.0
#: A renewal on its way is not waited for longer, when it is to end.
_LAST_SECONDS = 2.0


class Heartbeat:
    """Renews the lease of a run from a thread of its own as long as the context lasts.

    Args:
        writer: the owner's handle.
        progress: what to store of the progress; None: nothing yet.
        lost: called once with the error if another process owns the run, or if the lease cannot be
            renewed for another reason than a database that is away.
        heard: called after every renewal: with the error if the database is away, else with None.
    """

    def __init__(
        self,
        writer: RunWriter,
        progress: Callable[[], Mapping[str, Any] | None],
        lost: Callable[[Exception], None],
        heard: Callable[[StoreUnavailable | None], None] = lambda error: None,
    ) -> None:
        self._writer, self._progress, self._lost, self._heard = writer, progress, lost, heard
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipefit-lease", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        # One that hangs ends by the limits of the store's driver, and prolongs nothing by then that
        # somebody else has.
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while not self._done.wait(min(self._writer.ttl / 3, RENEW_SECONDS)):
            try:
                self._writer.renew(self._progress())
                self._heard(None)
            except StoreUnavailable as error:
                # What the training writes fails as well, and that ends it if need be.
                self._heard(error)
                if not self._done.is_set():
                    logger.warning("the lease could not be renewed: %s", error)
            except Exception as error:
                self._lost(error)
                return
