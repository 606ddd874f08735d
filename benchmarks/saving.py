"""What saving and restoring a training costs, and what a training loses beside it.

    python benchmarks/saving.py [ROUNDS]

Three comparisons, in which the sides take turns:

1. 100 MB are put by Pipefit (cut, hashed, inserted, read back and compared) and inserted raw: the
   same bytes, 255 KiB a document, 4 MiB a message, 4 threads. Both end with a journalled write.
2. The state of a training, 100 MB, is saved and restored by Pipefit and in the old way (TensorFlow
   checkpoint, tar, GridFS put). *blocked*: what the training waits; of the old way only the
   checkpoint. *durable*: from then until it is committed. *restored*: until the variables have
   their values again.
3. 200 MB are saved through a connection of 50 MB/s while the training goes on: the median step
   during the save beside that of as many steps without it, of a training of ROUNDS saves.

CPU is that of this process and the server together, which says more than the time on a busy
machine. Two cores of an AMD EPYC, TensorFlow 2.21, Keras 3.15, Python 3.11, mongod 6.0.5; one run
of 8 rounds on an idle machine (the load is its own), three of 4 or 5 rounds beside other work,
medians:

    load                            2.9     10-16     16-18     19-21
    raw inserts            MB/s     669       164       272       104
    put                    MB/s     350        95       115        56
      ratio of the speeds          0.54      0.58      0.44      0.59
      ratio, CPU (raw / put)       0.56         -      0.55         -
    the old way    blocked   ms     140       370       370       482
                   durable   ms     762     2,882     2,604     3,011
                   restored  ms     375     1,361     1,275     1,544
    Pipefit        blocked   ms       1         3         6         2
                   durable   ms     377     1,261     1,547     2,176
                   restored  ms     436         -       917     1,708
      ratio        blocked         0.01      0.01      0.02      0.00
                   durable         0.51      0.46      0.64      0.76
                   restored        1.11         -      0.80      1.00
                   CPU of save     0.87         -      0.87         -
                   CPU of restore  1.51         -      0.93         -
    slow database: step            1.20      1.42      1.52      1.31

Where the CPU of a put of 100 MB goes, in 25 more rounds at a load of 9 to 15: raw inserts 290 ms
(210 in the server), put 510, put without reading back 370; about 60 are sha256. Of reading
them: 60 ms in the server; of 170 here a third is sha256, a sixth the kernel's clearing of new
memory. As the sha256 is one thread's work, other work on the machine delays a put more than raw
inserts by four threads.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gridfs
import numpy as np
import psutil
import pymongo
import tensorflow as tf
from measuring import spread
from stores import addresses, begun, opened

from pipefit.execution.writer import BackgroundWriter
from pipefit.records import CheckpointInfo, RunState
from pipefit.spec import Spec
from pipefit.store import RunWriter, server
from pipefit.store.client import Connection
from pipefit.store.files import Bucket
from pipefit.training import Experiment, Trainer, not_finite, to_numpy

CHUNK = 255 * 1024
MESSAGE = 16 * CHUNK
SLOW = 50e6  # bytes per second
KINDS = frozenset({"permanent"})


def training(units: int) -> Trainer:
    """A training whose state has about 8 bytes times units times units."""
    source = {"builder": "resume:arrays", "examples": 1000, "batch_size": 20}
    mlp = {"builder": "pipefit.training.models:mlp", "units": [units, units], "outputs": 10}
    sgd = {"builder": "keras.optimizers:SGD", "learning_rate": 1e-6, "momentum": 0.9}
    spec = Spec.of_tables(
        {
            "name": "n",
            "collection": "benchmark",
            "data": {"train": source},
            "model": mlp,
            "optimizer": sgd,
            "train": {"data": "train", "steps": 1},
        }
    )
    trainer = Experiment(spec).trainer()
    trainer.run(1)
    return trainer


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of CPU in this process and the server: the same on a busy machine."""
    begin, used = time.perf_counter(), _cpu_seconds()
    work()
    return time.perf_counter() - begin, _cpu_seconds() - used


def _cpu_seconds() -> float:
    used = _server().cpu_times()
    return time.process_time() + used.user + used.system


@functools.cache
def _server() -> psutil.Process:
    return psutil.Process(server.status().pid)


def puts(uri: str, rounds: int) -> None:
    """Pipefit's put beside raw inserts."""
    data = np.random.default_rng(0).random(12_500_000).tobytes()
    tensors = {f"{i:03}": part for i, part in enumerate(np.split(np.frombuffer(data), 100))}
    connection = Connection(uri)
    bucket = Bucket(connection, "put")
    raw, last = connection.database["raw"], connection.database["last"]
    unjournalled = raw.with_options(write_concern=pymongo.WriteConcern("majority", j=False))

    def insert(start: int) -> None:
        begins = range(start, min(start + MESSAGE, len(data)), CHUNK)
        documents = [{"n": n // CHUNK, "data": data[n : n + CHUNK]} for n in begins]
        unjournalled.insert_many(documents, ordered=False)

    def raw_inserts() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(insert, range(0, len(data), MESSAGE)))
        last.insert_one({})

    def put() -> None:
        files.append(bucket.put_tensors(tensors, "state", {"run": "n"}).id)
        last.insert_one({})

    files: list[str] = []
    rows = []
    for _ in range(rounds + 1):
        rows.append((timed(raw_inserts), timed(put)))
        raw.delete_many({})
        bucket.remove(files)
    for i, side in enumerate(("raw inserts", "put")):
        seconds, cpu = (median(row[i][part] for row in rows[1:]) for part in (0, 1))
        speed = 1e-6 * len(data) / seconds
        print(f"{side:22}{speed:6.0f} MB/s, {cpu * 1e3:.0f} ms of CPU")
    for part, what in enumerate(("ratio of the speeds", "ratio, CPU")):
        print(f"{what:22}{spread([row[0][part] / row[1][part] for row in rows[1:]])}")


class Old:
    """A TensorFlow checkpoint, put into GridFS as a tar."""

    def __init__(self, trainer: Trainer, uri: str, folder: Path):
        self._checkpoint = tf.train.Checkpoint(state=dict(_named(trainer)))
        database: Any = pymongo.MongoClient(uri).get_default_database()
        durable = pymongo.WriteConcern("majority", j=True)
        self._bucket = gridfs.GridFSBucket(database, "old", write_concern=durable)
        self._folder = folder

    def save(self, now: Callable[[], float]) -> tuple[float, float, Any]:
        """Seconds blocked and until it is durable, and what was saved."""
        begin = now()
        prefix = self._checkpoint.write(str(self._folder / "state"))
        blocked = now() - begin
        packed = self._folder / "state.tar"
        with tarfile.open(packed, "w") as tar:
            for path in self._folder.glob("state.*-of-*"):
                tar.add(path, path.name)
            tar.add(f"{prefix}.index", "state.index")
        with packed.open("rb") as file:
            key = self._bucket.upload_from_stream("state.tar", file)
        return blocked, now() - begin, key

    def restore(self, key: Any) -> None:
        """Set the variables."""
        packed = self._folder / "back.tar"
        with packed.open("wb") as file:
            self._bucket.download_to_stream(key, file)
        with tarfile.open(packed) as tar:
            tar.extractall(self._folder / "back", filter="data")
        self._checkpoint.read(str(self._folder / "back" / "state")).assert_consumed()

    def remove(self, key: Any) -> None:
        """Make room."""
        self._bucket.delete(key)


def _named(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    for name, variable in trainer.state.variables.items():
        yield name.replace("/", "."), variable


class Ours:
    """The parts of Pipefit that are at work when a run saves a checkpoint and is continued."""

    def __init__(self, trainer: Trainer, writer: RunWriter):
        self._trainer, self._writer = trainer, writer
        self._step = 0
        self._background = BackgroundWriter()
        self.saved: list[CheckpointInfo] = []

    def begin(self) -> None:
        """What the training waits for."""
        self._step += 1
        step, snapshot = self._step, self._trainer.snapshot()
        self._background.put_heavy(lambda: self._commit(step, snapshot))

    def _commit(self, step: int, snapshot: dict[str, Any]) -> None:
        arrays = to_numpy(snapshot)
        if not_finite(arrays):
            raise ValueError
        self.saved.append(self._writer.commit(step, arrays, KINDS))

    def save(self, now: Callable[[], float]) -> tuple[float, float, CheckpointInfo]:
        """Seconds blocked and until it is durable, and what was saved."""
        begin = now()
        self.begin()
        blocked = now() - begin
        while not self.saved:
            time.sleep(0.0005)
        durable = now() - begin
        return blocked, durable, self.saved.pop()

    def restore(self, info: CheckpointInfo) -> None:
        """Set the variables."""
        arrays = self._writer.read_checkpoint(info)
        self._trainer.state.restore({name: arrays[name] for name in self._trainer.state.variables})

    def remove(self, info: CheckpointInfo) -> None:
        """Make room: the newest one stays."""
        self._writer.retain({info.id: KINDS})

    def end(self) -> None:
        """Give the run back."""
        self._background.close()
        self._writer.end(RunState.FINISHED, None, self._step, "")


def saves(uri: str, rounds: int) -> None:
    """Saving and restoring 100 MB in the old way and ours."""
    trainer = training(3500)
    found: dict[str, list[tuple[float, ...]]] = {"the old way": [], "Pipefit": []}
    with tempfile.TemporaryDirectory() as folder:
        old = Old(trainer, uri, Path(folder))
        ours = Ours(trainer, begun(opened(uri), 1000))
        for _ in range(rounds + 1):
            for name, side in (("the old way", old), ("Pipefit", ours)):
                trainer.run(1)
                used = _cpu_seconds()
                blocked, durable, saved = side.save(time.perf_counter)
                used = _cpu_seconds() - used
                restored, again = timed(functools.partial(side.restore, saved))
                found[name].append((blocked, durable, restored, used, again))
                side.remove(saved)
        ours.end()
    parts = ("blocked", "durable", "restored", "CPU of save", "of restore")
    print(f"{'':22}{''.join(f'{part:>13}' for part in parts)}   (ms)")
    for name, rows in found.items():
        numbers = [median(row[i] for row in rows[1:]) * 1e3 for i in range(len(parts))]
        print(f"{name:22}{''.join(f'{number:13.1f}' for number in numbers)}")
    pairs = list(zip(found["Pipefit"][1:], found["the old way"][1:], strict=True))
    for i, what in enumerate(parts):
        print(f"{f'ratio, {what}':22}{spread([a[i] / b[i] for a, b in pairs])}")


def slow_saves(uri: str, rounds: int) -> None:
    """Steps while 200 MB are saved to a slow database, and without."""
    trainer = training(5000)

    def step() -> float:
        begin = time.perf_counter()
        trainer.run(1)
        return time.perf_counter() - begin

    with relay(uri) as slow:
        ours = Ours(trainer, begun(opened(slow), 1000))
        ratios, worst, seconds = [], [], []
        for _ in range(rounds):
            begin = time.perf_counter()
            ours.begin()
            during = []
            while not ours.saved:
                during.append(step())
            seconds.append(time.perf_counter() - begin)
            normal = median(step() for _ in during)
            ratios.append(median(during) / normal)
            worst.append(max(during) / normal)
            ours.remove(ours.saved.pop())
        ours.end()
    print(f"{'normal step':22}{normal * 1e3:6.0f} ms; a save takes {median(seconds):.1f} s")
    print(f"{'ratio, a step':22}{spread(ratios)}")
    print(f"{'ratio, the longest':22}{spread(worst)}")


@contextmanager
def relay(uri: str) -> Iterator[str]:
    """The same database behind a slow connection, by a process of its own."""
    host = urlsplit(uri).netloc.rpartition("@")[2]
    command = [sys.executable, __file__, "--relay", host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield uri.replace(host, f"127.0.0.1:{process.stdout.readline().strip()}")
        finally:
            process.terminate()


def run_relay(host: str) -> None:
    """Forward to a server, all connections together not faster than SLOW to it."""
    name, _, port = host.partition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    free, lock = [time.monotonic()], threading.Lock()

    def forward(source: socket.socket, target: socket.socket, limited: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**17):
                target.sendall(data)
                if limited:
                    with lock:
                        free[0] = max(free[0], time.monotonic()) + len(data) / SLOW
                        until = free[0]
                    time.sleep(max(0.0, until - time.monotonic()))

    while True:
        client, _ = listener.accept()
        behind = socket.create_connection((name, int(port)))
        for ends in ((client, behind, True), (behind, client, False)):
            threading.Thread(target=forward, args=ends, daemon=True).start()


def main(rounds: int) -> None:
    """Measure and print."""
    with addresses() as stores:
        uri = stores["mongodb"]
        for part in (puts, saves, slow_saves):
            part(uri, rounds)
            print(f"{'load':22}{os.getloadavg()[0]:6.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        run_relay(sys.argv[2])
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    os._exit(0)
