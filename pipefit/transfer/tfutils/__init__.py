"""Experiments in a database of tfutils as runs of a store.

    database = TfutilsDatabase("mongodb://db.example.org:27017/tfutils_db/digits")
    import_tfutils(open_store(), database, open_checkpoint)

Each becomes one run: its checkpoints, the recent ones too, its series, and its parameters. It can
be read, exported and loaded from like any other, but not be trained on: no experiment file of
Pipefit describes it.
"""

from pipefit.transfer.tfutils.importing import ImportedExperiment, find, import_tfutils

__all__ = ["ImportedExperiment", "find", "import_tfutils"]
