"""What four models cost that share one input, beside one model alone.

    python benchmarks/several_models.py [ROUNDS]

Every batch of 100 examples takes its reader 10 ms (it sleeps, as one does that waits for a disk),
and there is one reader. One MLP alone and four MLPs of different sizes that train together take
turns, 100 steps each; the times are those of the training core, without the database. The first
round, in which both compile, is not counted. Reads are counted: four models read as often as one.

Three runs of 8 to 10 rounds on two cores of an AMD EPYC shared with other work (load 2 to 7),
TensorFlow 2.21, Keras 3.15, Python 3.11; medians:

    one model   ms a step    11.1   11.3   10.7
    four models ms a step    11.9   11.1   11.1
    ratio                    1.08   1.00   1.02
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from measuring import in_turn, spread

from pipefit.spec import Spec
from pipefit.training import Experiment, Shared, Together, Trainer

STEPS, SECONDS = 100, 0.010


class Slow:
    """Pictures whose reader takes 10 ms for every batch."""

    reads = 0

    def __len__(self) -> int:
        return 10_000

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Random pictures and labels, a function of the index."""
        Slow.reads += 1
        time.sleep(SECONDS)
        images = np.repeat(indices % 97 / 97, 64).astype(np.float32).reshape(-1, 8, 8, 1)
        return {"images": images, "labels": indices % 10}


def trainers(units: list[list[int]]) -> list[Trainer]:
    """Models with these hidden layers, on one input."""
    spec = Spec.of_tables(
        {
            "name": "n",
            "collection": "benchmark",
            "data": {"train": {"builder": "several_models:Slow", "batch_size": 100, "readers": 1}},
            "models": {
                f"m{i}": {
                    "builder": "pipefit.training.models:mlp",
                    "units": sizes,
                    "outputs": 10,
                }
                for i, sizes in enumerate(units)
            },
            "optimizer": {"builder": "keras.optimizers:SGD", "learning_rate": 0.05},
            "train": {"data": "train", "steps": 1},
        }
    )
    shared = Shared({})
    return [Experiment(run, shared=shared).trainer() for run in spec.runs().values()]


def main(rounds: int) -> None:
    """Measure and print."""
    sides: list[Callable[[], object]] = []
    for units in ([[128, 32]], [[128, 32], [256], [64, 64, 64], [32]]):
        sides.append(functools.partial(Together().run, trainers(units), STEPS))
    rows = in_turn(sides, rounds)
    for name, i in (("one model", 0), ("four models", 1)):
        milliseconds = statistics.median(row[i] for row in rows) / STEPS * 1e3
        print(f"{name:12}{milliseconds:6.2f} ms a step")
    print(f"{'ratio':12}{spread([row[1] / row[0] for row in rows])}")
    print(f"{Slow.reads} batches read, {2 * (rounds + 1) * STEPS} steps")


if __name__ == "__main__":
    sys.modules["several_models"] = sys.modules["__main__"]
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    os._exit(0)
