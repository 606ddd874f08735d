"""When a fault strikes: at a time after the command was typed, or at a message to the database."""

import re
import threading
from dataclasses import dataclass

_COMMAND = re.compile(rb"\x02(update|insert|delete)\x00.{4}[\w-]+\.([\w.]+)\x00", re.DOTALL)

#: So long a message is held up at most until the fault has struck, seconds.
_HELD = 10.0


@dataclass(frozen=True)
class Message:
    """What a write to the database looks like on the wire.

    Attributes:
        verb: the command.
        collection: without that of the run.
        word: is in the message; empty: any message.
        without: is not in it; empty: any.
    """

    verb: str
    collection: str
    word: str = ""
    without: str = ""

    def is_in(self, piece: bytes) -> bool:
        """Whether this piece of what is sent begins such a message."""
        found = _COMMAND.search(piece[:300])
        return (
            found is not None
            and (found[1].decode(), found[2].decode()) == (self.verb, self.collection)
            and self.word.encode() in piece
            and not (self.without and self.without.encode() in piece)
        )


#: The writes of a job in their order; the last two are those of the luigi process.
MESSAGES = {
    "acquire": Message("update", "runs", "token"),
    "begin": Message("update", "runs", "attempt.start"),
    "describe": Message("update", "runs", "described"),
    "metrics": Message("update", "records", "metrics\0"),
    "upload of a checkpoint": Message("insert", "checkpoints.chunks"),
    "record of a checkpoint": Message("update", "records", "kinds\0", "$set"),
    "publication": Message("update", "runs", "committed", "attempt."),
    "retain": Message("update", "records", "kinds\0", "sha256"),
    "removal of records": Message("delete", "records"),
    "removal of chunks": Message("delete", "checkpoints.chunks"),
    "end": Message("update", "runs", "attempt.ended"),
    "outputs": Message("insert", "artifacts.chunks", "logits"),
    "validated": Message("update", "records", "validated\0"),
    "report": Message("update", "records", "artifact\0"),
    "summary": Message("update", "records", "summary\0"),
}

#: Of these there is one per attempt or job, of the others many.
ONCE = {
    *("acquire", "begin", "describe", "end", "outputs", "validated", "report", "summary"),
    *("retain", "removal of records", "removal of chunks"),
}
OF_LUIGI = {"report", "summary"}


@dataclass(frozen=True)
class After:
    """When this share of the time that is left, as the reference took it, has passed."""

    share: float

    def __str__(self) -> str:
        return f"after {self.share:.0%} of the rest"


@dataclass(frozen=True)
class At:
    """At the n-th message of this name, before it reaches the server, or right after."""

    message: str
    count: int
    sent: bool

    def __str__(self) -> str:
        return f"{'after' if self.sent else 'before'} {self.message} {self.count}"


Moment = After | At


class Watch:
    """Waits for the message of a moment, and holds it up until `release`; for `Proxy.watch`."""

    def __init__(self, moment: At):
        self._message, self._sent = MESSAGES[moment.message], moment.sent
        self._left = moment.count
        self._lock = threading.Lock()
        self.reached, self._released = threading.Event(), threading.Event()

    def __call__(self, piece: bytes, sent: bool) -> None:
        if self.reached.is_set() or sent is not self._sent or not self._message.is_in(piece):
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
            self.reached.set()
        self._released.wait(_HELD)

    def release(self) -> None:
        """Let the message go on."""
        self._released.set()
