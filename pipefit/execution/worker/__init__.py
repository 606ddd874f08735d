"""The worker process: joins store and training. ``python -m pipefit.execution.worker``.

Reads one `Order` as a line of JSON from its input and writes `Event`s, one per line, to its
output; the last one is the outcome. A further line "stop REASON", the end of the input (whoever
gave the order is gone), SIGTERM and SIGINT all mean: checkpoint the current step and end with code
75. A validation has nothing to checkpoint and is broken off.
"""

from pipefit.execution.worker.performing import perform

__all__ = ["perform"]
