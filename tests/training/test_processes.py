"""What only whole processes can show: the same bits every time, and an end that comes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent

TRAIN = """
import hashlib
import os

import conftest  # four logical devices
import keras
import tensorflow as tf
from training_helpers import arrays, make_trainer

from pipefit.data import Arrays
from pipefit.training.models import convnet
import numpy as np

tf.config.experimental.enable_op_determinism()
draw = np.random.default_rng(0)
source = Arrays(images=draw.random((150, 8, 8, 1), np.float32), labels=draw.integers(0, 10, 150))
trainer = make_trainer(
    lambda: convnet([8, 16], 10),
    source,
    optimizer=lambda: keras.optimizers.Adam(0.003),
    devices=2,
    batch=50,
)
trainer.run(15)
digest = hashlib.sha256()
for name, value in arrays(trainer).items():
    digest.update(name.encode() + value.tobytes())
print(digest.hexdigest())
trainer.restore(arrays(trainer))
trainer.run(1)  # starts again; the next block of indices is still being computed
print("done")
"""


def output_of(program: str) -> list[str]:
    """What a Python process prints that has to end by itself."""
    path = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout.split()


def test_two_processes_train_a_convnet_to_the_same_bits_on_two_devices():
    """At the same time, so that their threads take turns differently.

    They end by themselves, though they are still reading ahead.
    """
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(output_of, [TRAIN, TRAIN])
    assert len(one[0]) == 64 and one[1:] == ["done"]
    assert one == other
