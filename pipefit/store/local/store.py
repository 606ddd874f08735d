"""The store in a folder: for laptops, and for trying Pipefit without a database.

    store = LocalStore(Path("/home/me/results"))

It needs nothing but a file system with hard links and durable files. Readers may have a folder that
is read-only. Many processes, on several hosts if the file system is shared, may write at once.
"""

from __future__ import annotations

from pathlib import Path

from pipefit.records import Owner, RunOrder
from pipefit.store.general import GeneralStore
from pipefit.store.local import disk
from pipefit.store.local.backend import LocalBackend
from pipefit.store.local.disk import guarded
from pipefit.store.local.leases import LocalLeases
from pipefit.store.local.places import Root
from pipefit.store.local.writer import LocalRunWriter
from pipefit.store.ownership import AttemptKey, Claim, Holder


class LocalStore(GeneralStore):
    """`pipefit.store.base.Store` in a folder; where things are is told in `store.local.places`.

    Args:
        path: the folder, absolute; made when the first run is acquired.
    """

    def __init__(self, path: Path) -> None:
        self.root = Root(path)

    @property
    def shown(self) -> str:
        """The folder."""
        return self.root.shown

    def describe(self) -> str:
        """The address."""
        return self.root.path.as_uri()

    @guarded
    def collections(self) -> list[str]:
        """Collections that have runs."""
        if not self.root.exists():
            return []
        return [name for name in self.root.collections() if self._backend(name).run_names(1)]

    @guarded
    def _places(self) -> list[str]:
        return self.root.collections() if self.root.exists() else []

    @guarded
    def _backend(self, collection: str) -> LocalBackend:
        self.root.exists()
        return LocalBackend(self.root, collection)

    @guarded
    def _writable(self, collection: str) -> LocalBackend:
        backend = LocalBackend(self.root, collection)
        self.root.create()
        return backend

    def _acquire(self, order: RunOrder, owner: Owner, ttl: float) -> LocalRunWriter:
        leases = LocalLeases(self._writable(order.collection), order.name)
        claim = Claim(order, owner, ttl, disk.token())
        return LocalRunWriter(leases, Holder(leases.acquire(claim), claim.token), ttl)

    def _take_up(self, key: AttemptKey, owner: Owner, ttl: float) -> LocalRunWriter:
        leases = LocalLeases(self._writable(key.collection), key.name)
        holder = Holder(key.fence, disk.token())
        leases.take_up(key, owner, ttl, holder.token)
        return LocalRunWriter(leases, holder, ttl).go_on()
