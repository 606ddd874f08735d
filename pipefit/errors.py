"""The errors Pipefit raises on purpose.

Every message starts with one line that says what was given, what is allowed and what to do;
more lines may follow with the details. Whoever shows such an error to a person prints the
message without a traceback. Anything else that escapes is a fault in Pipefit or in the user's
own code and keeps its traceback.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

#: Exit code of a run that checkpointed and stopped because it was asked to (EX_TEMPFAIL):
#: typing the same command again continues it.
EXIT_INTERRUPTED = 75


#: Shorter ones are no secrets, and words of their own in any text.
_SHORTEST_SECRET = 8
_SECRETS: set[str] = set()

_USER_INFO = re.compile(r"(://[^:/?#@\s]*):[^/\s]*@")
_ADDRESS = re.compile(r"://[^\s'\"<>]+")
_IN_QUERY = re.compile(
    r"([?&][^?&#=]*(?:password|secret|token|signature|sig|credential|key)=)[^&#]+", re.IGNORECASE
)
_SECRET_KEY = re.compile(
    r"(?:.*_)?(?:password|passwd|passphrase|secret|api_?key|secret_key|private_key|access_key"
    r"|access_token|auth_token|credentials?)|token",
    re.IGNORECASE,
)


def hide_in_addresses(text: str) -> str:
    """The text with *** for the secrets in addresses: a pure function of the text.

    That is the password before the @, and what the query calls a token, a signature or the like.

    >>> hide_in_addresses("url = 'https://me:s3cret@example.org/x?token=abc&part=1'")
    "url = 'https://me:***@example.org/x?token=***&part=1'"
    """
    shown = _USER_INFO.sub(r"\1:***@", text)
    return _ADDRESS.sub(lambda address: _IN_QUERY.sub(r"\1***", address[0]), shown)


def without_passwords(text: str) -> str:
    """The text with *** for the secrets in addresses and for what `keep_secret` was told.

    For everything that is shown, logged or kept.
    """
    shown = hide_in_addresses(text)
    for secret in sorted(_SECRETS, key=len, reverse=True):
        shown = shown.replace(secret, "***")
    return shown


def keep_secret(uri: str) -> None:
    """From now on the password of this address is shown nowhere, as far as this process goes."""
    found = re.search(r"://[^:/?#@\s]*:([^/\s]*)@", uri)
    for secret in (found[1], unquote(found[1])) if found else ():
        if len(secret) >= _SHORTEST_SECRET:
            _SECRETS.add(secret)


def is_secret_key(key: str) -> bool:
    """Whether what is called so is meant to be known to few: "password", "hub_api_key", "token".

    >>> [is_secret_key(key) for key in ("db-password", "token", "mask_token", "key")]
    [True, True, False, False]
    """
    return bool(_SECRET_KEY.fullmatch(key.replace("-", "_")))


class PipefitError(Exception):
    """Base of all errors Pipefit raises on purpose; the message is written for a person."""


class SettingsError(PipefitError):
    """luigi.cfg, or an environment variable it names, is wrong."""


class SpecError(PipefitError):
    """The experiment file, a `--set` word or a builder named in it is wrong."""


class ArchiveError(PipefitError):
    """An archive cannot be fetched, has another hash, is damaged, hostile or too large."""


class DataError(PipefitError):
    """A data source gives something else than it declared, or cannot be read."""


class StoreError(PipefitError):
    """The database refuses something, or holds something unexpected."""


class StoreUnavailable(StoreError):
    """The database cannot be reached (this never means "not complete")."""


class StoreFull(StoreError):
    """The disk of the database is full."""


class StoreAccessDenied(StoreError):
    """The database answers but refuses the user or the password."""


class ServerError(StoreError):
    """The embedded mongod cannot be found, started or stopped."""


class NotFound(StoreError):
    """No such run, step, validation or output."""


class IdentityMismatch(StoreError):
    """The run of this name was made by another experiment; the message shows the difference."""


class RunOwned(StoreError):
    """Another live process owns the run; the message names it."""


class LeaseLost(StoreError):
    """This process is no longer the owner of the run: its writes are refused."""


class ReplayRefused(StoreError):
    """What an attempt could not write is not part of its run any more; nothing was changed."""


class CheckpointCorrupt(StoreError):
    """A stored checkpoint has another length or sha256 than its record says."""


class TrainingError(PipefitError):
    """The training cannot go on."""


class Diverged(TrainingError):
    """A watched loss became NaN or infinite, or exceeded `train.max_loss`.

    Attributes:
        step: at which it did, where that is known.
    """

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class StepTimeout(TrainingError):
    """No step was finished within `train.step_timeout`; the message shows what every thread did."""


class LoadError(PipefitError):
    """What is to be loaded is not there, cannot be read, or does not fit the model."""


class StateMismatch(TrainingError):
    """A checkpoint does not have exactly the names, shapes and dtypes of the model's state."""


class DeviceError(PipefitError):
    """The devices asked for are not on this machine."""


class WorkerFailed(PipefitError):
    """The worker process died or failed outside Pipefit's own checks; has its traceback or log."""


class Interrupted(PipefitError):
    """The run was asked to stop: it is checkpointed, and the same command continues it."""
