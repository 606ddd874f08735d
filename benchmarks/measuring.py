"""What the benchmarks share: taking turns, medians and quartiles, and the parts of a bare loop.

The bare model and its batches have nothing of Pipefit, except that the digits are read by it. They
are those of configs/digits_mlp.toml, in the best way known for TensorFlow alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from pipefit.spec import Spec

ROOT = Path(__file__).parent.parent


def in_turn(sides: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of every side, by round; a first round, in which they compile, is not counted."""
    seconds: list[list[float]] = []
    for _ in range(rounds + 1):
        seconds.append([])
        for side in sides:
            begin = time.perf_counter()
            side()
            seconds[-1].append(time.perf_counter() - begin)
    return seconds[1:]


def spread(ratios: Sequence[float]) -> str:
    """Median and quartiles."""
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    low, high = ordered[quarter], ordered[-1 - quarter]
    return f"{statistics.median(ordered):6.2f}   quartiles {low:.2f} to {high:.2f}"


def print_speeds(sides: Sequence[str], rows: Sequence[Sequence[float]], steps: int) -> None:
    """Steps/s of every side, and how fast the last one is beside the first.

    Args:
        sides: what they are called.
        rows: by round the seconds of every side.
        steps: done by each in a round.
    """
    for i, side in enumerate(sides):
        print(f"{side:12}{statistics.median(steps / row[i] for row in rows):10,.0f} steps/s")
    print(f"{'ratio':12}{spread([row[0] / row[-1] for row in rows])}")


def digits_folder(spec: Spec) -> Path:
    """The unpacked digits of an experiment that uses them."""
    from pipefit import archives

    archive = spec.archives["digits"]
    archives.fetch(archive.url, archive.sha256, ROOT)
    return archives.unpack(archive.sha256)


def bare_model() -> tuple[keras.Model, Any]:
    """The MLP and its optimizer, in the current strategy's scope."""
    import keras

    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Flatten()(inputs)
    for units in (128, 32):
        x = keras.layers.Dense(units, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def bare_batches(folder: Path) -> Iterator[Any]:
    """Pictures and labels, 100 at a time, without end."""
    import tensorflow as tf

    from pipefit.data import digits

    data = digits(folder, "train")
    images, labels = tf.constant(data.fields["images"]), tf.constant(data.fields["labels"])
    # Indices are shuffled and rows gathered per batch: faster than batching single examples.
    dataset = tf.data.Dataset.range(len(data)).shuffle(len(data), seed=0).repeat()
    dataset = dataset.batch(100, drop_remainder=True)
    dataset = dataset.map(lambda i: (tf.gather(images, i), tf.gather(labels, i)))
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread sleeps for long when an iterator is dropped
    return iter(dataset.prefetch(4).with_options(options))
