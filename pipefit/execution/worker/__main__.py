"""The process itself: an order in, events out. See `pipefit.execution.worker`."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import sys
import threading

from pipefit.errors import Interrupted
from pipefit.execution.channel import Channel
from pipefit.execution.order import exit_code, outcome
from pipefit.execution.reporter import Reporter
from pipefit.execution.worker.performing import perform

#: So long the outcome may take to be written, seconds.
_OUTCOME_SECONDS = 10.0


def _carry_out(channel: Channel) -> None:
    with Reporter(channel.send) as reporter:
        order = channel.order()
        try:
            channel.take_requests(interrupt=order.kind != "train")
            perform(
                order, reporter, lambda: channel.stop_reason, lambda error: _end(channel, error)
            )
        except KeyboardInterrupt:
            reason = channel.stop_reason
            raise Interrupted(f"broken off, nothing of it is stored: {reason}") from None
        finally:
            channel.printed.finish()


def _end(channel: Channel, error: BaseException | None) -> None:
    """Tell the outcome and end the process, whatever its other threads are doing."""
    channel.take_no_more_requests()
    # Whoever gave the order may read nothing any more, and hold up a thread that tells something.
    telling = threading.Thread(target=channel.send, args=(outcome(error),), daemon=True)
    telling.start()
    telling.join(_OUTCOME_SECONDS)
    for child in multiprocessing.active_children():  # of a data source, say
        child.kill()
    sys.stderr.flush()
    # Threads of TensorFlow and of the driver can hold up a normal exit for up to a minute.
    os._exit(exit_code(error))


def main() -> None:
    """Carry out the order on standard input; ends the process."""
    faulthandler.enable()
    logging.captureWarnings(True)
    channel = Channel()
    error: BaseException | None = None
    try:
        _carry_out(channel)
    except BaseException as caught:
        error = caught
    _end(channel, error)


if __name__ == "__main__":
    main()
