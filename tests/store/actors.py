"""Runs, owners and numbers that the tests of a store share."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from bson import ObjectId

from pipefit.records import Ended, MetricBlock, Owner, RunOrder, Validation
from pipefit.store import this_process

COLLECTION = "digits"
PERMANENT = frozenset({"permanent"})
TTL = 60.0

_WAITING = """
from pipefit.store import this_process
me = this_process()
print(me.pid, me.started, flush=True)
input()
"""

EARLY = Ended("early_stop", '{"patience":5}', 10, "no better test/accuracy for 5 validations")
ELSEWHERE = Owner(host="elsewhere", scope="another boot", pid=1, started=0.0)


def order(name="a", identity="1", parts=None, **others):
    parts = {"optimizer.learning_rate": 0.05, "seed": 0} if parts is None else parts
    given = {"spec": "{}", "steps": 500, **others}
    return RunOrder(collection=COLLECTION, name=name, identity=identity, parts=parts, **given)


def acquire(store, name="a", owner=None, ttl=TTL, **others):
    return store.acquire(order(name, **others), owner or this_process(), ttl)


def started(store, name="a", start=-1, **others):
    """A writer that has begun."""
    writer = acquire(store, name, **others)
    writer.begin(start)
    return writer


@contextmanager
def living_process():
    """A child process that only waits, and its owner."""
    child = subprocess.Popen(
        [sys.executable, "-c", _WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        pid, start = child.stdout.readline().split()
        yield child, replace(this_process(), pid=int(pid), started=float(start))
    finally:
        child.kill()
        child.communicate()


def dead_process():
    """The owner that a process was which has ended."""
    with living_process() as (_, owner):
        pass
    return owner


def state(value):
    """A small state of a model, all of one value."""
    return {
        "dense/kernel": np.full((4, 3), value, np.float32),
        "dense/bias": np.full(3, value, np.float64),
        "step": np.asarray(value, np.int64),
    }


def damage(store, checkpoint, name="a"):
    """Flip one bit of the bytes of a stored checkpoint."""
    folder = getattr(store._backend(COLLECTION).checkpoints_of(name), "path", None)
    if folder is not None:
        data = bytearray((folder / checkpoint.id).read_bytes())
        data[-1] ^= 1
        (folder / checkpoint.id).write_bytes(data)
        return
    chunks = store.connection.database[f"{COLLECTION}.checkpoints.chunks"]
    last = chunks.find_one({"files_id": ObjectId(checkpoint.id)}, sort=[("n", -1)])
    data = bytearray(last["data"])
    data[-1] ^= 1
    chunks.update_one({"_id": last["_id"]}, {"$set": {"data": bytes(data)}})


def block(first, last, value=None):
    """Metrics of the steps first..last; the loss is `value`, or the step itself."""
    steps = np.arange(first, last + 1, dtype=np.float64)
    return MetricBlock(first, {"loss": steps if value is None else np.full_like(steps, value)})


def images(first, last, value=None):
    """Metrics of the steps first..last with an image, too large for a record, of that value."""
    steps = np.arange(first, last + 1, dtype=np.float32)
    values = steps if value is None else np.full_like(steps, value)
    return MetricBlock(first, {"loss": steps, "image": np.tile(values[:, None, None], (1, 20, 30))})


def validation(step, accuracy=0.5, name="test", **others):
    return Validation(name, step, {"accuracy": accuracy}, **{"examples": 100, **others})


def reader(store, name="a"):
    return store.run(name, COLLECTION)
