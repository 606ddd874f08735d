"""Runs in one file: a tar archive that any store can give and take.

    transfer.export_runs(store, Path("night.tar"), "digits", ["digits-mlp"])
    transfer.import_runs(open_store("mongodb://..."), Path("night.tar"))

A run is the same after it: its bytes and their hashes, its times, attempts and history; and it
continues there as it would have here. The same runs give the same archive, byte for byte. What an
archive has is told in `pipefit.transfer.archive`.
"""

from pipefit.transfer.exporting import Exported, export_runs
from pipefit.transfer.importing import Imported, import_runs

__all__ = ["Exported", "Imported", "export_runs", "import_runs"]
