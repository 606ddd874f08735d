"""Where runs, their records, checkpoints and artifacts are kept.

    store = open_store()                            # as the settings say
    writer = store.acquire(order, this_process(), ttl=60.0)
    writer.begin(-1)
    writer.commit(100, {"dense/kernel": kernel}, frozenset({"permanent"}))
    writer.end(RunState.FINISHED, None, 100, log_tail="")
    store.run("digits-mlp", "digits").weights()     # {"dense/kernel": array(...)}

The contract is told on `Store`, `RunWriter` and `RunReader`.
"""

from __future__ import annotations

from pipefit.store.base import RunReader, RunWriter, Store
from pipefit.store.opening import open_store
from pipefit.store.owner import this_process
from pipefit.store.ownership import AttemptKey
from pipefit.store.results import Outputs, OutputsWriter, Values

__all__ = [
    "AttemptKey",
    "Outputs",
    "OutputsWriter",
    "RunReader",
    "RunWriter",
    "Store",
    "Values",
    "open_store",
    "this_process",
]
