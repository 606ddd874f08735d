"""The store on MongoDB."""

from __future__ import annotations

from bson import ObjectId

from pipefit.records import Owner, RunOrder
from pipefit.store.arrivals import ARRIVING
from pipefit.store.cache import CheckpointCache
from pipefit.store.client import Connection, guarded
from pipefit.store.general import GeneralStore
from pipefit.store.layout import Layout
from pipefit.store.leases import Leases
from pipefit.store.ownership import AttemptKey, Claim, Holder
from pipefit.store.schema import Schema
from pipefit.store.writer import MongoRunWriter


class MongoStore(GeneralStore):
    """`pipefit.store.base.Store` on MongoDB; where things are is told in `store.documents`.

    Args:
        uri: a MongoDB URI; its path names the database, default "pipefit".
        cache: for checkpoints that are read; None: every time they come from the database.
    """

    def __init__(self, uri: str, cache: CheckpointCache | None = None) -> None:
        self.connection = Connection(uri)
        self._cache = cache

    def describe(self) -> str:
        """The address without user and password."""
        return self.connection.shown

    @guarded
    def collections(self) -> list[str]:
        """Collections that have runs."""
        database = self.connection.database
        return [
            name
            for name in self._places()
            if database[f"{name}.runs"].find_one({ARRIVING: None}, {"_id": 1}) is not None
        ]

    @guarded
    def _places(self) -> list[str]:
        parts = r"(runs|records|checkpoints\.files|artifacts\.files)"
        pattern = {"name": {"$regex": rf"^[\w-]{{1,64}}\.{parts}$"}}
        names = self.connection.database.list_collection_names(filter=pattern)
        return sorted({name.partition(".")[0] for name in names})

    def _backend(self, collection: str) -> Layout:
        layout = Layout(self.connection, collection, self._cache)
        Schema(layout).check()
        return layout

    def _writable(self, collection: str) -> Layout:
        layout = self._backend(collection)
        Schema(layout).update()
        return layout

    def _acquire(self, order: RunOrder, owner: Owner, ttl: float) -> MongoRunWriter:
        leases = Leases(self._writable(order.collection))
        claim = Claim(order, owner, ttl, token=str(ObjectId()))
        holder = Holder(leases.acquire(claim), claim.token)
        return MongoRunWriter(leases, order.name, holder, ttl)

    def _take_up(self, key: AttemptKey, owner: Owner, ttl: float) -> MongoRunWriter:
        leases, holder = Leases(self._writable(key.collection)), Holder(key.fence, str(ObjectId()))
        leases.take_up(key, owner, ttl, holder.token)
        return MongoRunWriter(leases, key.name, holder, ttl).go_on()
