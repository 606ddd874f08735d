"""Files as the input of a training: read by several threads, in order; failures end it by name."""

import tarfile
import time
from itertools import islice

import h5py
import numpy as np
import pytest
from PIL import Image

from pipefit.data import csv, examples, hdf5, image_folder
from pipefit.errors import DataError
from pipefit.training.feeding.pipeline import Feed

N = 40


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of images, each of one colour, its number."""
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    for i in range(N):
        path = tmp_path / "photos" / f"{i // 10}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), i).save(path)
    return tmp_path / "photos"


def packed(photos):
    with tarfile.open(photos.with_suffix(".tar"), "w") as tar:
        tar.add(photos, ".")
    return image_folder(photos.with_suffix(".tar"), channels=1)


def rows(photos):
    with h5py.File(photos.with_suffix(".h5"), "w") as file:
        file["images"] = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None], (N, 5))
        file["labels"] = np.arange(N) // 10
    return hdf5(photos.with_suffix(".h5"))


def table(photos):
    path = photos.with_suffix(".csv")
    path.write_text("images,labels\n" + "".join(f"{i},{i // 10}\n" for i in range(N)))
    return csv(path)


@pytest.mark.parametrize("make", [packed, rows, table])
def test_batches_come_in_the_order_of_the_seed_from_any_position(make, photos):
    feed = Feed(make(photos), seed=3, batch_size=16, readers=4)
    for position in (0, 100):
        order = examples(seed=3, start=position, count=10 * 16, n=N).reshape(10, 16)
        for expected, batch in zip(order, islice(feed.iterator(position), 10), strict=True):
            images = batch["images"].numpy().reshape(16, -1)
            assert (images == expected[:, None]).all()
            assert (batch["labels"].numpy() == expected // 10).all()


def test_an_unreadable_image_ends_the_reading_by_name(photos):
    source = image_folder(photos)
    (photos / "2" / "25.png").write_bytes(b"no image any more")
    feed = Feed(source, seed=0, batch_size=16)
    begin = time.monotonic()
    unreadable = pytest.raises(DataError, match=r"photos: '2/25\.png': is not an image")
    with unreadable, feed.failures.surfacing():
        for _ in islice(feed.iterator(0), 10):
            pass
    assert time.monotonic() - begin < 20
