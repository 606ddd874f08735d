"""Opening a store: which one an address means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipefit import settings
from pipefit.errors import keep_secret

if TYPE_CHECKING:
    from pipefit.store.base import Store


def open_store(uri: str | None = None, *, cache: bool = True) -> Store:
    """The store at an address; nothing is connected yet.

    Args:
        uri: mongodb://USER:PASSWORD@HOST:PORT/DATABASE; or file:///FOLDER for a folder without a
            database; or "embedded" for Pipefit's own server on this machine, which is started if it
            does not run; None: what the settings say.
        cache: whether copies of checkpoints that are read whole are kept on this machine, as the
            settings say, and used; see `pipefit.store.cache`.

    Raises:
        StoreError: the address cannot be read.
        SettingsError: luigi.cfg is wrong.
        ServerError: the embedded server cannot be started.
    """
    address = settings.mongo_uri() if uri is None else uri
    if address.startswith("file:"):
        from pipefit.store.local import LocalStore, folder_of

        return LocalStore(folder_of(address))
    if address == settings.EMBEDDED:
        from pipefit.store import server

        address = server.ensure_running()
    keep_secret(address)
    # The driver is loaded by those who need it.
    from pipefit.store.cache import configured
    from pipefit.store.mongo import MongoStore

    return MongoStore(address, configured() if cache else None)
