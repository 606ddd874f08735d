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
_RENEW_SECONDS = 5.0


class Heartbeat:
    """Renews the lease of a run from a thread of its own as long as the context lasts.

    Args:
        writer: the owner's handle.
        progress: what to store of the progress; None: nothing yet.
        lost: called once with the error if another process owns the run, or if the lease cannot be
            renewed for another reason than a database that is away.
    """

    def __init__(
        self,
        writer: RunWriter,
        progress: Callable[[], Mapping[str, Any] | None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._writer, self._progress, self._lost = writer, progress, lost
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipefit-lease", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()  # a renewal on its way ends by the limits of the store's driver

    def _run(self) -> None:
        while not self._done.wait(min(self._writer.ttl / 3, _RENEW_SECONDS)):
            try:
                self._writer.renew(self._progress())
            except StoreUnavailable as error:
                # What the training writes fails as well, and that ends it if need be.
                logger.warning("the lease could not be renewed: %s", error)
            except Exception as error:
                self._lost(error)
                return
