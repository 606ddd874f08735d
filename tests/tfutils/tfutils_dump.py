"""The dump of a database that the real tfutils wrote, and the model in it, in numpy."""

import gzip
import uuid
from pathlib import Path

import bson
import numpy as np
import pymongo

from pipefit.loading import TensorInfo
from pipefit.store import server
from pipefit.store.tfutils import TfutilsDatabase

DUMP = Path(__file__).parent / "dump"


class Restored:
    """The dump in databases of another name, which are dropped at the end."""

    def __init__(self, uri):
        self.client = pymongo.MongoClient(uri)
        self.name = f"tf{uuid.uuid4().hex[:8]}"
        for path in sorted(DUMP.glob("*/*.bson.gz")):
            database = path.parent.name.replace("tfutils_db", self.name)
            documents = bson.decode_all(gzip.decompress(path.read_bytes()))
            self.client[database][path.name.removesuffix(".bson.gz")].insert_many(documents)
        self.files = self.client[self.name]["digits.files"]
        self.chunks = self.client[self.name]["digits.chunks"]
        address = f"/{self.name}/digits?"
        self.uri = uri.replace(f"/{server.DATABASE}?", address)

    def database(self):
        return TfutilsDatabase(self.uri)

    def recent(self, exp_id):
        return self.client[f"{self.name}_digits_{exp_id}___RECENT"]

    def drop(self):
        for name in self.client.list_database_names():
            if name.startswith(self.name):
                self.client.drop_database(name)
        self.client.close()


def judged(weights, digits):
    """How many digits the old model gets right, and its mean cross entropy; in numpy."""
    pixels, labels = digits
    said = _probabilities(weights, pixels)
    right = int((said.argmax(axis=1) == labels).sum())
    return right, round(float(-np.log(said[np.arange(len(labels)), labels]).mean()), 5)


def _probabilities(weights, pixels):
    values = pixels
    for layer in ("hidden1", "hidden2", "softmax_linear"):
        values = values @ weights[f"{layer}/weights"] + weights[f"{layer}/bias"]
        if layer != "softmax_linear":
            values = np.maximum(values, 0)
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class Invented:
    """A checkpoint with two variables, and a text, which no checkpoint of ours can have."""

    def __init__(self, checkpoint):
        self._step = checkpoint.step

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def tensors(self):
        step, text = TensorInfo("int64", (), "other"), TensorInfo("string", ())
        return {"w": TensorInfo("float32", (3,)), "global_step": step, "text": text}

    def read(self, names):
        known = {"w": np.full(3, self._step, np.float32), "global_step": np.asarray(self._step)}
        return {name: known[name] for name in names}
