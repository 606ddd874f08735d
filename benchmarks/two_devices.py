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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("PIPEFIT_HOME", tempfile.mkdtemp(prefix="pipefit-benchmark-"))

import keras
import tensorflow as tf

from pipefit import archives, read_spec
from pipefit.data import digits
from pipefit.training import Experiment, Replicas

ROOT = Path(__file__).parent.parent
STEPS = 1_000


def bare_loop(folder: Path, strategy: tf.distribute.Strategy) -> Callable[[], Any]:
    """A loop as one would write it without Pipefit."""
    data = digits(folder, "train")
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = keras.layers.Flatten()(inputs)
        for units in (128, 32):
            x = keras.layers.Dense(units, activation="relu")(x)
        model = keras.Model(inputs, keras.layers.Dense(10)(x))
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    x_all, y_all = tf.constant(data.fields["images"]), tf.constant(data.fields["labels"])
    dataset = tf.data.Dataset.range(len(data)).shuffle(len(data), seed=0).repeat()
    dataset = dataset.batch(100, drop_remainder=True)
    dataset = dataset.map(lambda i: (tf.gather(x_all, i), tf.gather(y_all, i)))
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(dataset.prefetch(4).with_options(options))

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
    archive = spec.archives["digits"]
    archives.fetch(archive.url, archive.sha256, ROOT)
    folder = archives.unpack(archive.sha256)
    trainer = Experiment(spec, {"digits": str(folder)}, Replicas(count=2)).trainer()
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    sides = [lambda: trainer.run(STEPS), bare_loop(folder, strategy)]
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        seconds.append([])
        for side in sides:
            begin = time.perf_counter()
            side()
            seconds[-1].append(time.perf_counter() - begin)
    counted = seconds[1:]
    print(f"bare loop  {statistics.median(STEPS / row[1] for row in counted):8,.0f} steps/s")
    print(f"Pipefit    {statistics.median(STEPS / row[0] for row in counted):8,.0f} steps/s")
    ratios = sorted(row[1] / row[0] for row in counted)
    quarter = len(ratios) // 4
    print(
        f"ratio      {statistics.median(ratios):8.2f}   quartiles {ratios[quarter]:.2f} to "
        f"{ratios[-1 - quarter]:.2f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    os._exit(0)
