"""The store on MongoDB."""

from __future__ import annotations

from bson import ObjectId

from pipefit.records import Owner, RunOrder
from pipefit.store.client import Connection, guarded
from pipefit.store.general import GeneralStore
from pipefit.store.layout import Layout
from pipefit.store.leases import Leases
from pipefit.store.ownership import Claim
from pipefit.store.schema import Schema
from pipefit.store.writer import MongoRunWriter


class MongoStore(GeneralStore):
    """`pipefit.store.base.Store` on MongoDB; where things are is told in `store.documents`.

    Args:
        uri: a MongoDB URI; its path names the database, default "pipefit".
    """

    def __init__(self, uri: str) -> None:
        self.connection = Connection(uri)

    def describe(self) -> str:
        """The address without user and password."""
        return self.connection.shown

    @guarded
    def collections(self) -> list[str]:
        """Collections that have runs."""
        database = self.connection.database
        names = database.list_collection_names(filter={"name": {"$regex": r"^[\w-]{1,64}\.runs$"}})
        return sorted(
            name.removesuffix(".runs")
            for name in names
            if database[name].find_one({}, {"_id": 1}) is not None
        )

    def _backend(self, collection: str) -> Layout:
        layout = Layout(self.connection, collection)
        Schema(layout).check()
        return layout

    def _writable(self, collection: str) -> Layout:
        layout = self._backend(collection)
        Schema(layout).update()
        return layout

    def _acquire(self, order: RunOrder, owner: Owner, ttl: float) -> MongoRunWriter:
        leases = Leases(self._writable(order.collection))
        fence = leases.acquire(Claim(order, owner, ttl, token=str(ObjectId())))
        return MongoRunWriter(leases, order.name, fence, ttl)
