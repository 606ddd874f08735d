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

from typing import TYPE_CHECKING, Any

from pipefit.store.base import Outputs, OutputsWriter, RunReader, RunWriter, Store, Values
from pipefit.store.owner import this_process

if TYPE_CHECKING:
    from pipefit.store.mongo import open_store

__all__ = [
    "Outputs",
    "OutputsWriter",
    "RunReader",
    "RunWriter",
    "Store",
    "Values",
    "open_store",
    "this_process",
]


def __getattr__(name: str) -> Any:
    # The driver comes with the first store: minding the embedded server does without.
    if name != "open_store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipefit.store.mongo import open_store

    return open_store
