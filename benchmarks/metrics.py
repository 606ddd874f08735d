"""How long the metrics of many steps take to be written and read, and how large documents become.

    python benchmarks/metrics.py [STEPS [STEPS OF A BLOCK]]

Ten metrics of every step, half of them float32 and half int64, are handed to the writer of a run in
blocks, as a training does every `save.metrics_every` steps. Then they are read as a table, in a
fresh process. The least of five readings counts, because other work only adds to it.

On two cores of an AMD EPYC, Python 3.11, mongod 6.0.5, with little other work (load 3):

    mongodb  1,000,000 steps in blocks of 100: written in 48.7 s, a table after 0.89 s (0.54 s of
             the processor), with at most 475 MB of memory; the largest document has 6,790 bytes
    folder   1,000,000 steps in blocks of 100: written in 30.8 s, a table after 0.89 s (0.87 s of
             the processor), with at most 470 MB of memory

With a lot of other work (load 10 to 20), where all takes several times as long as without:

    mongodb  300,000 steps in blocks of 100: written in 78.2 s, a table after 0.66 s (0.11 s of the
             processor), with at most 252 MB of memory; the largest document has 6,790 bytes
    folder   300,000 steps in blocks of 100: written in 71.0 s, a table after 1.75 s (0.21 s of the
             processor), with at most 222 MB of memory
    mongodb  10,000,000 steps in blocks of 1,000: written in 74.7 s, a table after 18.1 s, with at
             most 2,788 MB of memory; the largest document has 60,790 bytes
    folder   10,000,000 steps in blocks of 1,000: written in 266.2 s, a table after 20.1 s, with at
             most 2,791 MB of memory
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
from stores import COLLECTION, RUN, addresses, begun, memory, opened

from pipefit.records import MetricBlock


def columns(first: int, steps: int) -> dict[str, np.ndarray]:
    """The metrics of some steps."""
    numbers = np.arange(first, first + steps)
    kinds = (np.int64, np.float32)
    return {f"metric {i}": (numbers * (i + 1)).astype(kinds[i % 2]) for i in range(10)}


def write(address: str, steps: int, block: int) -> None:
    """Write all of them."""
    writer = begun(opened(address), steps)
    for first in range(1, steps + 1, block):
        writer.write_metrics(MetricBlock(first, columns(first, min(block, steps + 1 - first))))


def read(address: str, steps: int) -> tuple[float, float, int]:
    """Seconds until they are a table, those of the processor, and the most memory in bytes.

    All of them are compared.
    """
    import pandas as pd  # not counted: it is loaded once

    run = opened(address).run(RUN, COLLECTION)
    run.status()
    seconds, busy = [], []
    for _ in range(5):
        begin, begin_busy = time.perf_counter(), time.process_time()
        table = run.metrics()
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - begin_busy)
    assert isinstance(table, pd.DataFrame) and len(table) == steps
    for name, values in columns(1, steps).items():
        assert np.array_equal(table[name], values), name
    return min(seconds), min(busy), memory()


def largest_document(address: str) -> int:
    """Bytes of the largest document of any collection."""
    import pymongo

    stages = [{"$group": {"_id": None, "size": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    with pymongo.MongoClient(address) as client:
        database = client.get_default_database()
        sizes = [
            list(database[name].aggregate(stages)) for name in database.list_collection_names()
        ]
    return max(found[0]["size"] for found in sizes if found)


def main(steps: int, block: int) -> None:
    """Measure and print."""
    with addresses() as places:
        for kind, address in places.items():
            begin = time.perf_counter()
            write(address, steps, block)
            written = time.perf_counter() - begin
            # On its standard input, because the address has the password of the server.
            command = [sys.executable, __file__, str(steps), str(block), "read"]
            done = subprocess.run(
                command, input=address, capture_output=True, text=True, check=True
            )
            seconds, busy, peak = map(float, done.stdout.split())
            print(
                f"{kind:8} {steps:,} steps in blocks of {block:,}: written in {written:.1f} s, a "
                f"table after {seconds:.2f} s ({busy:.2f} s of the processor), with at most "
                f"{peak / 1e6:.0f} MB of memory",
                flush=True,
            )
            if kind == "mongodb":
                print(f"{'':8} the largest document has {largest_document(address):,} bytes")


if __name__ == "__main__":
    told = [int(word) for word in sys.argv[1:3]]
    number = told[0] if told else 1_000_000
    if sys.argv[3:] == ["read"]:
        print(*read(sys.stdin.read(), number))
    else:
        main(number, told[1] if len(told) > 1 else 100)
