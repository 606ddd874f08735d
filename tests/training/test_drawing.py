"""The shipped example of own loops, configs/drawing.py: its parts do what they say."""

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import arrays, assert_close

from pipefit.spec import check_builders, read_spec
from pipefit.training import Experiment, Replicas

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    with tarfile.open(ROOT / "configs" / "archives" / "optdigits.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return {"digits": str(folder)}


def make(folders, devices=1, **changes):
    small = {"model.units": 8, "data.train.batch_size": 10, "train.loop.until": 4}
    spec = read_spec(ROOT / "configs" / "drawing.toml", {**small, **changes})
    check_builders(spec)
    return Experiment(spec, folders, Replicas(count=devices))


@pytest.fixture(scope="module")
def trained(folders):
    made = make(folders)
    trainer = made.trainer()
    trainer.run(30)
    return made


@pytest.fixture(scope="module")
def drawing(trained):
    return sys.modules["drawing"]


def test_sequences_are_of_one_digit_and_never_show_what_is_to_be_drawn(folders, drawing):
    source = drawing.Sequences(Path(folders["digits"]), "train", looks=3, rounds=2)
    assert len(source) == 2 * 1437
    taken, again = source.take(np.arange(20)), source.take(np.arange(1437, 1457))
    for i in range(20):
        label = taken["label"][i]
        rows = {row.tobytes() for row in source.images[source.labels == label]}
        assert {image.tobytes() for image in taken["looked_at"][i]} <= rows
    np.testing.assert_array_equal(taken["image"], again["image"])
    assert (taken["looked_at"] != again["looked_at"]).any()
    np.testing.assert_array_equal(taken["looked_at"], source.take(np.arange(20))["looked_at"])


def test_each_pixel_follows_from_those_that_were_drawn_before(trained, drawing):
    """Drawn one by one, or followed all at once after the finished drawing: the same numbers."""
    batch = {k: tf.constant(v) for k, v in trained.feed().source.take(np.arange(7)).items()}
    drawn = drawing.draw(trained.network, drawing.look(trained.network, batch))
    followed = drawing.follow(trained.network, {**batch, "before": drawn["drawn"]})
    np.testing.assert_allclose(drawn["logits"], followed["logits"], rtol=1e-4, atol=1e-5)
    # Not those after the true image: it feeds back what it drew.
    true = drawing.follow(trained.network, {**batch, "before": batch["image"]})
    assert np.abs(drawn["logits"] - true["logits"]).max() > 0.01


def test_a_drawing_is_recognised_by_the_nearest_mean(drawing):
    means = np.eye(10, 64, dtype=np.float32)[np.newaxis].repeat(3, axis=0)
    drawn = np.eye(10, 64, dtype=np.float32)[[2, 5, 5]]
    right = drawing.recognised()(tf.constant(drawn), tf.constant([2, 5, 6], tf.int64), means)
    assert right.numpy().tolist() == [True, True, False]


def test_validation_sees_every_image_once_and_keeps_the_drawings(trained):
    outputs = []
    found = trained.validator("test").run(outputs.append)
    assert found.examples == 360
    assert set(found.metrics) == {"loss", "recognised"}
    drawn = np.concatenate([batch["drawn"] for batch in outputs])
    assert drawn.shape == (360, 64)


def test_without_own_pixels_it_is_teacher_forcing_as_without_a_loop(folders):
    with_loop = make(folders, **{"train.loop.share": 0.0}).trainer()
    plain = make(folders).trainer()
    plain.loop = None
    assert_close(with_loop.run(4), plain.run(4), tolerance=1e-5)


def test_two_devices_draw_and_learn_as_one(folders):
    one, two = (make(folders, devices).trainer() for devices in (1, 2))
    assert_close(two.run(6), one.run(6), tolerance=1e-4)
    ours, theirs = arrays(one), arrays(two)
    assert ours.keys() == theirs.keys()
