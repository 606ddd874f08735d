"""Which layout a collection has, told by a document of `<c>.schema`, and bringing it up to date.

    version 1   records are unique by run, kind, name and step; there is no such document
    version 2   ... and by branch, so that what a rewind took out of a run stays beside what is
                made anew

Whoever reads may read all of these, and changes nothing. The first owner of a run, or whoever else
changes what runs are made of, brings the collection to `VERSION`; every step of that may be done
twice, so it may be killed, or done by several processes at once.
"""

from __future__ import annotations

from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from pipefit.errors import StoreError
from pipefit.store.client import Document, guarded
from pipefit.store.documents import KEY, VERSION
from pipefit.store.layout import Layout

_ID = "schema"
_INDEX_NOT_FOUND = 27
_NAMESPACE_NOT_FOUND = 26
#: The index by which records were unique in version 1.
_OLD_INDEX = "run_1_kind_1_name_1_step_1"

_known: dict[tuple[str, str], int] = {}


class Schema:
    """The layout of one collection.

    Args:
        layout: where it is.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.connection = layout.connection
        self._key = (layout.connection.shown, layout.collection)

    def check(self) -> None:
        """Make sure that this Pipefit can read the collection; asked once per process.

        Raises:
            StoreError: it was written by a newer Pipefit.
        """
        if self._key not in _known and (version := self.version()):
            _known[self._key] = version

    def update(self) -> None:
        """Create what a collection needs, or bring an older one to this version.

        Raises:
            StoreError: it was written by a newer Pipefit.
            StoreAccessDenied: the user may not write.
        """
        if _known.get(self._key) == VERSION:
            return
        if self.version() != VERSION:
            self._migrate()
        _known[self._key] = VERSION

    @guarded
    def version(self) -> int:
        """The version of the collection; 0 if there is nothing yet.

        Raises:
            StoreError: it was written by a newer Pipefit.
        """
        told = self._documents.find_one({"_id": _ID})
        if told is None:
            return 1 if self.layout.runs.find_one({}, {"_id": 1}) else 0
        version: int = told["version"]
        if version > VERSION:
            raise StoreError(
                f"collection {self.layout.collection!r} of {self.connection.shown} has the layout "
                f"{version}, this Pipefit knows those up to {VERSION}: install a newer Pipefit "
                "(pip install --upgrade pipefit), or use another collection"
            )
        return version

    @guarded
    def _migrate(self) -> None:
        records = self.layout.records
        # The new index first: at no moment may two processes write one record twice.
        records.create_indexes(
            [
                IndexModel([(field, 1) for field in KEY], unique=True),
                IndexModel([("run", 1), ("kind", 1), ("step", 1)]),
            ]
        )
        try:
            records.drop_index(_OLD_INDEX)
        except OperationFailure as error:
            if error.code not in (_INDEX_NOT_FOUND, _NAMESPACE_NOT_FOUND):
                raise
        # $max: a newer Pipefit may have been faster.
        self._documents.update_one({"_id": _ID}, {"$max": {"version": VERSION}}, upsert=True)

    @property
    def _documents(self) -> Collection[Document]:
        return self.connection.database[f"{self.layout.collection}.schema"]
