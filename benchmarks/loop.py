"""What Pipefit costs beside a bare TensorFlow loop.

    python benchmarks/loop.py [ROUNDS]

The bare loop is written here with nothing of Pipefit: one tf.function, tf.range, the iterator
inside, indices shuffled by tf.data and gathered in batches, every step's loss returned, the same
model, optimizer and batch size. Pipefit's is the real thing: order of examples from (seed,
position), every step's metrics stored in MongoDB, checkpoints at the default intervals (validation
is off: it is work, not overhead). They take turns, 5,000 steps each, in one process; Pipefit's time
includes waiting until all is written. The first round, in which both compile, is not counted.

Three runs of 8 rounds on two cores of an AMD EPYC shared with other work (load 3 to 6; beside the
second run tests were started), TensorFlow 2.21, Keras 3.15, Python 3.11, mongod 6.0.5 on the same
two cores; medians:

    bare loop  steps/s    3,057       3,273       3,043
    Pipefit    steps/s    2,964       2,732       3,059
    ratio                  0.95        0.86        0.98
    its quartiles     0.91-0.99   0.82-0.91   0.95-1.04
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["PIPEFIT_HOME"] = tempfile.mkdtemp(prefix="pipefit-benchmark-")

import keras
import tensorflow as tf
from measuring import ROOT, bare_batches, bare_model, digits_folder, print_speeds

from pipefit import read_spec
from pipefit.execution import Order
from pipefit.execution.reporter import Reporter
from pipefit.execution.worker import perform, session
from pipefit.execution.worker.attempt import Attempt
from pipefit.store import server

CHUNK = 5_000


def bare_loop(folder: Path) -> Callable[[int], Any]:
    """A loop as one would write it without Pipefit; call it with a number of steps."""
    model, optimizer = bare_model()
    iterator = bare_batches(folder)

    @tf.function
    def run(steps: tf.Tensor) -> tf.Tensor:
        losses = tf.TensorArray(tf.float32, size=steps)
        for i in tf.range(steps):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                )
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            optimizer.apply(gradients, model.trainable_variables)
            losses = losses.write(i, loss)
        return losses.stack()

    def call(steps: int) -> None:
        for _ in range(steps // 100):
            run(tf.constant(100)).numpy()

    return call


class Measured(Attempt):
    """A real attempt that stops every CHUNK steps to let the bare loop have its turn."""

    rows: ClassVar[list[tuple[float, float]]] = []
    bare: ClassVar[Callable[[int], Any]]
    since = 0.0

    def progress(self, step: int, loss: float, rate: float) -> None:
        """Called after every call of the inner loop."""
        super().progress(step, loss, rate)
        if step % CHUNK:
            return
        self.background.drain()
        ours = time.perf_counter() - self.since
        begin = time.perf_counter()
        self.bare(CHUNK)
        self.rows.append((time.perf_counter() - begin, ours))
        self.since = time.perf_counter()


def main(rounds: int) -> None:
    """Measure and print."""
    steps = (rounds + 1) * CHUNK
    changes = {"train.steps": steps, "save": {"validate_every": 0}}
    spec = read_spec(ROOT / "configs" / "digits_mlp.toml", changes)
    folder = digits_folder(spec)
    uri = server.ensure_running()
    try:
        order = Order("train", spec.to_json(), uri, {"digits": str(folder)})
        session.Attempt = Measured
        if spec.train.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(0)
        Measured.bare = staticmethod(bare_loop(folder))
        perform(order, Reporter(lambda _: None), lambda: None, lambda error: None)
    finally:
        server.stop()
    print_speeds(["bare loop", "Pipefit"], Measured.rows[1:], CHUNK)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    os._exit(0)
