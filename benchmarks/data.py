"""What reading many small files from a tar in place costs, beside unpacking it.

    python benchmarks/data.py [ROUNDS]

20,000 files of 10,000 random bytes in a plain tar (215 MB). Each way ends with every file read once
in a random order by one thread, as the first epoch of a training does; the archive is in the page
cache. Unpacking is Python's own `tarfile` (extractall with filter="data"), and Pipefit's, which
also checks every member before it writes. Beside them: random rows of an HDF5 file.

Medians of 5 rounds, two runs on two cores of an AMD EPYC shared with other work (load 5; 8 and a
busy disk), Python 3.11, ext4; seconds, and as multiples of the first way:

    in place, the first time           1.29    1.0      1.99    1.0
    in place, with the index kept      0.19    0.1      0.33    0.2
    unpacked by tarfile               12.48    9.7     61.54   30.9
    unpacked by Pipefit               14.45   11.2     67.74   34.1
    a folder unpacked before           1.07    0.8      1.87    0.9

    HDF5, rows/s: not chunked              56,885      24,724
                  a chunk for each row     50,537      41,671
                  100 rows a chunk, lzf    17,855      12,136
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FILES = 20_000
SIZE = 10_000
ROWS = 50_000


def make_tar(path: Path) -> list[str]:
    """Write the archive; the names of its files in a random order."""
    source = random.Random(0)
    names = [f"class{i % 100:02}/{i:05}.bin" for i in range(FILES)]
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = SIZE
            tar.addfile(member, io.BytesIO(source.randbytes(SIZE)))
    source.shuffle(names)
    return names


def ways(tar: Path, names: list[str], folder: Path) -> dict[str, Callable[[], int]]:
    """What is measured; each returns the number of bytes read."""
    from pipefit import archives
    from pipefit.data import open_files

    digest = hashlib.sha256(tar.read_bytes()).hexdigest()
    archives.fetch(str(tar), digest)

    def read(place: Path) -> int:
        files = open_files(place)
        return sum(len(files.read(name)) for name in names)

    def in_place_first() -> int:
        shutil.rmtree(folder / "home" / "cache" / "indexes", ignore_errors=True)
        return read(tar)

    def by_tarfile() -> int:
        shutil.rmtree(folder / "unpacked", ignore_errors=True)
        with tarfile.open(tar) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        return read(folder / "unpacked")

    def by_pipefit() -> int:
        for place in (folder / "home" / "cache" / "archives").glob("*.unpacked"):
            shutil.rmtree(place)
        return read(archives.unpack(digest))

    return {
        "in place, the first time": in_place_first,
        "in place, with the index kept": lambda: read(tar),
        "unpacked by tarfile": by_tarfile,
        "unpacked by Pipefit": by_pipefit,
        "a folder unpacked before": lambda: read(archives.unpack(digest)),
    }


def seconds(action: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def hdf5_rows(folder: Path, rounds: int) -> dict[str, float]:
    """Rows a second, by layout, of batches of 256 random rows of 3,072 bytes."""
    import h5py

    from pipefit.data import hdf5

    rows = np.random.default_rng(0).integers(0, 256, (ROWS, 32, 32, 3), np.uint8)
    layouts = {
        "not chunked": {},
        "a chunk for each row": {"chunks": (1, 32, 32, 3)},
        "100 rows a chunk, lzf": {"chunks": (100, 32, 32, 3), "compression": "lzf"},
    }
    rates = {}
    for name, options in layouts.items():
        with h5py.File(folder / "rows.h5", "w") as file:
            file.create_dataset("x", data=rows, **options)
        source = hdf5(folder / "rows.h5")
        order = np.random.default_rng(1).permutation(ROWS)[: 40 * 256].reshape(40, 256)
        taken = [seconds(lambda: [source.take(batch) for batch in order]) for _ in range(rounds)]  # noqa: B023
        rates[name] = order.size / statistics.median(taken)
        source.close()
    return rates


def main(rounds: int) -> None:
    """Measure and print."""
    folder = Path(tempfile.mkdtemp(prefix="pipefit-benchmark-"))
    os.environ["PIPEFIT_HOME"] = str(folder / "home")
    try:
        names = make_tar(folder / "small.tar")
        measured = ways(folder / "small.tar", names, folder)
        times: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(rounds):
            for name, way in measured.items():
                times[name].append(seconds(way))
        medians = {name: statistics.median(found) for name, found in times.items()}
        first = medians["in place, the first time"]
        for name, median in medians.items():
            print(f"{name:32} {median:6.2f} s   {median / first:5.1f}")
        for name, rate in hdf5_rows(folder, rounds).items():
            print(f"HDF5, {name:26} {rate:8,.0f} rows/s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
