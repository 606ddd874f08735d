"""What continuing costs, after no step and after a million.

    python benchmarks/resume.py [ROUNDS]

A training is restored from a checkpoint at step 0 and at step 1,000,000 (batch size 100, so after
100 million examples) and does one step; what is compiled is compiled already. The two take turns.
Three sources: arrays in memory, a source read through Python, and a mix of two.

Two runs of 15 rounds on two cores of an AMD EPYC shared with other work (load 4 to 8),
TensorFlow 2.21, Keras 3.15, Python 3.11; medians in ms, and of the ratio:

    arrays   at step 0   214   169    at step 1,000,000   239   132    ratio 1.15   1.13
    read                 158    80                        142    68          0.96   1.01
    mix                  301    93                        360   121          1.20   1.14
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from measuring import in_turn, spread

from pipefit.data import Arrays
from pipefit.spec import Spec
from pipefit.training import Experiment
from pipefit.training.trainer import POSITION, STEP

FAR = 1_000_000


def arrays(examples: int) -> Arrays:
    """Pictures and labels in memory."""
    draw = np.random.default_rng(0)
    images = draw.random((examples, 8, 8, 1), np.float32)
    return Arrays(images=images, labels=np.arange(examples) % 10)


class Read:
    """The same, read through Python."""

    def __init__(self, examples: int):
        self._arrays = arrays(examples)

    def __len__(self) -> int:
        return len(self._arrays)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of these indices."""
        return self._arrays.take(indices)


SOURCES: dict[str, dict[str, Any]] = {
    "arrays": {"builder": "resume:arrays", "examples": 50_000},
    "read": {"builder": "resume:Read", "examples": 50_000},
    "mix": {
        "builder": "pipefit.data:mix",
        "sources": [
            {"builder": "resume:arrays", "examples": 50_000},
            {"builder": "resume:arrays", "examples": 3_000},
        ],
        "weights": [0.9, 0.1],
    },
}


def seconds_to_continue(source: dict[str, Any], rounds: int) -> list[list[float]]:
    """Near and far, once per round."""
    spec = Spec.of_tables(
        {
            "name": "n",
            "collection": "benchmark",
            "data": {"train": {**source, "batch_size": 100}},
            "model": {"builder": "pipefit.training.models:mlp", "units": [128, 32], "outputs": 10},
            "optimizer": {"builder": "keras.optimizers:SGD", "learning_rate": 0.05},
            "train": {"data": "train", "steps": 1},
        }
    )
    trainer = Experiment(spec).trainer()
    state = {name: value.numpy() for name, value in trainer.snapshot().items()}

    def go_on(step: int) -> None:
        place = {STEP: np.array(step, np.int64), POSITION: np.array(100 * step, np.int64)}
        trainer.restore({**state, **place})
        trainer.run(1)

    return in_turn([functools.partial(go_on, 0), functools.partial(go_on, FAR)], rounds)


def main(rounds: int) -> None:
    """Measure and print."""
    for name, source in SOURCES.items():
        pairs = seconds_to_continue(source, rounds)
        near, far = (statistics.median(pair[i] for pair in pairs) * 1e3 for i in (0, 1))
        print(f"{name:8} at step 0 {near:7.1f} ms, at step {FAR:,} {far:7.1f} ms")
        print(f"{'':8} ratio {spread([pair[1] / pair[0] for pair in pairs])}")


if __name__ == "__main__":
    sys.modules["resume"] = sys.modules["__main__"]
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    os._exit(0)
