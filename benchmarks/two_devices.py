"""Two logical CPU devices: Pipefit's core beside a bare loop over tf.distribute.MirroredStrategy.

    python benchmarks/two_devices.py [ROUNDS]

The bare loop is written here with nothing of Pipefit, the best way known: one plain iterator, the
batch split inside of the step (one value per device), tf.range inside one tf.function, every step's
loss returned. Keras sums the gradients over the devices in it. Model, optimizer and batch size are
those of configs/digits_mlp.toml. They take turns, 1,000 steps each, in one process; the first
round, in which both compile, is not counted. The database is not part of it (benchmarks/loop.py).

Two runs of 10 rounds on two cores of an AMD EPYC shared with other work (load 4 to 8),
TensorFlow 2.21, Keras 3.15, Python 3.11; medians:

    bare loop   steps/s    1,534       2,186
    Pipefit     steps/s    1,858       2,132
    ratio                   1.18        0.97
    its quartiles      0.98-1.52   0.96-0.98
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("PIPEFIT_HOME", tempfile.mkdtemp(prefix="pipefit-benchmark-"))

import tensorflow as tf
from measuring import ROOT, bare_batches, bare_model, digits_folder, in_turn, print_speeds

from pipefit import read_spec
from pipefit.training import Experiment, Replicas

STEPS = 1_000


def bare_loop(folder: Path, strategy: tf.distribute.Strategy) -> Callable[[], Any]:
    """A loop as one would write it without Pipefit."""
    with strategy.scope():
        model, optimizer = bare_model()
    iterator = bare_batches(folder)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_sum(losses) / 100
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def of_device(whole: tf.Tensor) -> Any:
        halves = tf.split(whole, 2)
        return strategy.experimental_distribute_values_from_function(
            lambda context: halves[context.replica_id_in_sync_group]
        )

    @tf.function
    def run(steps: tf.Tensor) -> tf.Tensor:
        losses = tf.TensorArray(tf.float32, size=steps)
        for i in tf.range(steps):
            x, y = next(iterator)
            each = strategy.run(replica_step, args=(of_device(x), of_device(y)))
            losses = losses.write(i, strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None))
        return losses.stack()

    return lambda: run(tf.constant(STEPS)).numpy()


def main(rounds: int) -> None:
    """Measure and print."""
    spec = read_spec(ROOT / "configs" / "digits_mlp.toml")
    folder = digits_folder(spec)
    trainer = Experiment(spec, {"digits": str(folder)}, Replicas(count=2)).trainer()
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    rows = in_turn([bare_loop(folder, strategy), lambda: trainer.run(STEPS)], rounds)
    print_speeds(["bare loop", "Pipefit"], rows, STEPS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    os._exit(0)
