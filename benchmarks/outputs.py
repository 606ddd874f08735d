"""How much memory the outputs per example of a validation take, and how long: 5 GB of them.

    python benchmarks/outputs.py [GIGABYTES]

One process writes them, batch by batch as a validation does, and commits the validation; a second
one reads all of them and compares their sum. Each tells the most memory that it has had, Python and
the driver included. On two cores and a local SSD, shared with other work (load 8 to 13):

    mongodb  write   5.00 GB   189.8 s   at most  162 MB of memory
    mongodb  read    5.00 GB    93.3 s   at most  120 MB of memory
    folder   write   5.00 GB   216.4 s   at most  131 MB of memory
    folder   read    5.00 GB    34.7 s   at most   72 MB of memory
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from stores import COLLECTION, RUN, addresses, begun, memory, opened

from pipefit.records import Validation

EXAMPLES, FEATURES = 100, 25_000
BATCH_BYTES = EXAMPLES * FEATURES * 4


def batches(gigabytes: float) -> Iterator[np.ndarray]:
    """Random numbers, 10 MB at a time, which nothing can compress."""
    draw = np.random.default_rng(0)
    for _ in range(round(gigabytes * 1e9 / BATCH_BYTES)):
        yield draw.random((EXAMPLES, FEATURES), np.float32)


def write(address: str, gigabytes: float) -> float:
    """Store a validation with so many bytes of outputs; the sum of all numbers."""
    store = opened(address)
    checkpoint = begun(store, 1).commit(1, {"w": np.ones(1)}, frozenset({"final"}))
    writer = store.outputs_writer(COLLECTION, RUN, "test")
    total, examples = 0.0, 0
    for batch in batches(gigabytes):
        writer.add({"features": batch})
        total += float(batch.sum(dtype=np.float64))
        examples += len(batch)
    validation = Validation("test", 1, {"loss": 0.0}, examples)
    store.commit_validation(COLLECTION, RUN, checkpoint, validation, writer.close())
    return total


def read(address: str, gigabytes: float) -> float:
    """The sum of all numbers."""
    outputs = opened(address).run(RUN, COLLECTION).outputs("test")
    assert len(outputs) == round(gigabytes * 1e9 / BATCH_BYTES) * EXAMPLES
    return sum(float(part["features"].sum(dtype=np.float64)) for part in outputs)


def main(gigabytes: str) -> None:
    """Measure and print."""
    with addresses() as places:
        for kind, address in places.items():
            sums = []
            for action in ("write", "read"):
                command = [sys.executable, __file__, gigabytes, action]
                begin = time.perf_counter()
                # On its standard input, because the address has the password of the server.
                done = subprocess.run(
                    command, input=address, capture_output=True, text=True, check=True
                )
                seconds = time.perf_counter() - begin
                total, peak = done.stdout.split()
                sums.append(float(total))
                print(
                    f"{kind:8} {action:6} {float(gigabytes):5.2f} GB  {seconds:6.1f} s   "
                    f"at most {int(peak) / 1e6:4.0f} MB of memory",
                    flush=True,
                )
            assert abs(sums[0] - sums[1]) <= 1e-9 * sums[0]


if __name__ == "__main__":
    size, *action = sys.argv[1:] or ["5"]
    if action:
        do = {"write": write, "read": read}[action[0]]
        print(do(sys.stdin.read(), float(size)), memory())
    else:
        main(size)
