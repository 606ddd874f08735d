"""Mixes in training: the experiment file's tables, exact shares of batches, continuation."""

import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from pipefit.data import Arrays, Mix, mix
from pipefit.spec import read_spec
from pipefit.training import Experiment, Replicas
from pipefit.training.feeding.pipeline import Feed

ROOT = Path(__file__).parents[2]
DIGITS = {"builder": "pipefit.data:digits", "archive": "digits"}
MIXED = {
    "builder": "pipefit.data:mix",
    "batch_size": 100,
    "weights": [0.9, 0.1],
    "sources": [{**DIGITS, "split": "train"}, {**DIGITS, "split": "test"}],
}


def batches(feed, position, count):
    return [
        {name: value.numpy() for name, value in batch.items()}
        for batch in islice(feed.iterator(position), count)
    ]


def test_every_batch_of_whole_blocks_has_exactly_its_shares():
    mixed = mix([Arrays(origin=[0] * 30), Arrays(origin=[1] * 7)], [0.6, 0.4])
    for batch in batches(Feed(mixed, seed=1, batch_size=200), 0, 5):
        assert np.bincount(batch["origin"]).tolist() == [120, 80]


def test_continuing_gives_the_batches_that_would_have_come():
    mixed = mix([Arrays(x=np.arange(30)), Arrays(x=np.arange(100, 107))], [0.6, 0.4])
    whole = batches(Feed(mixed, seed=1, batch_size=16), 0, 12)
    rest = batches(Feed(mixed, seed=1, batch_size=16), 5 * 16, 7)
    for one, other in zip(whole[5:], rest, strict=True):
        assert one["x"].tolist() == other["x"].tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    with tarfile.open(ROOT / "configs" / "archives" / "optdigits.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return {"digits": str(folder)}


def test_the_sources_of_a_table_get_their_archives(folders):
    changes = {"data.train": MIXED, "model.units": [4], "train.steps": 3}
    spec = read_spec(ROOT / "configs" / "digits_mlp.toml", changes)
    made = Experiment(spec, folders, Replicas(kind="cpu", count=1))
    source = made._shared.source(spec.train_data, "data.train")
    assert isinstance(source, Mix) and len(source) == 1797
    assert len(made.trainer().run(3)["loss"]) == 3
