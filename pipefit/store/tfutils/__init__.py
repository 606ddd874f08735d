"""Reads the databases of tfutils, and never writes to them.

    database = TfutilsDatabase("mongodb://db.example.org:27017/tfutils_db/digits")
    database.experiments()                        # ["training0", "training1"]
    found = database.checkpoint("training0", step=1000)
    database.copy(found.file, Path("checkpoint.tar"))

A collection `COLL` of a database `DB` is a GridFS bucket: `COLL.files` and `COLL.chunks`. In
`COLL.files` stand, of all experiments, distinguished by `exp_id`:

    a record per save       step, params (all parameters), train_results (what every step since the
                            last save gave), validation_results by set, duration, saved_filters
    of saved_filters true   it is a GridFS file as well: the checkpoint, a tar of the files that
                            TensorFlow's Saver wrote, or, of Saver version 1, the one file itself;
                            of saved_filters false it has no length and no chunks
    `ID_fileitems`          a GridFS file with pickled results of the record `item_for`

Checkpoints that were kept for a while only are in a database of their own for every experiment,
`DB_COLL_EXPID___RECENT`, in the bucket `fs`; their records stand, without the file, in `COLL.files`
as well. Keys that had a dot have `___` in its place. Nothing here unpickles anything.
"""

from pipefit.store.tfutils.database import TfutilsDatabase
from pipefit.store.tfutils.reading import PartialFile
from pipefit.store.tfutils.records import (
    TfutilsCheckpoint,
    TfutilsFile,
    TfutilsItem,
    TfutilsRecord,
)

__all__ = [
    "PartialFile",
    "TfutilsCheckpoint",
    "TfutilsDatabase",
    "TfutilsFile",
    "TfutilsItem",
    "TfutilsRecord",
]
