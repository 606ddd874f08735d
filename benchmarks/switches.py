"""What the switches `train.deterministic` and `train.jit_compile` cost and gain.

    python benchmarks/switches.py [ROUNDS]

Deterministic ops cannot be switched off again in a process, so every setting has a process of its
own, in which nothing but the training core runs (the database is not part of it). They all stay
alive and take turns, one block of steps each, while the others wait; a block takes about a second.
The first block, in which each compiles, is not counted. The data is that of configs/digits_mlp.toml
in batches of 100 on one device.

Three runs of 10 rounds on two cores of an AMD EPYC shared with other work (load 1 to 9), TensorFlow
2.21, Keras 3.15, Python 3.11; steps/s of the run that was disturbed least, and of every run the
median of the ratios to the block of the same round with neither switch:

                       neither   deterministic       jit_compile         both
    MLP 128-32           3,594   0.96 1.05 0.95   0.60 0.64 0.65   0.65 0.70 0.72
    MLP 1024-1024          144   1.00 1.01 1.02   1.30 1.34 1.14   1.23 1.40 1.16
    convnet 16-32          420   1.03 1.05 0.98   0.42 0.54 0.48   refused by XLA
    LSTM 64                433   0.98 1.01 0.98   1.16 1.17 1.18   1.15 1.22 1.16

Quartiles of the ratios lie 0.05 to 0.15 around the medians, in the first row up to 0.3. Refused is
the gradient of maximum pooling, of which XLA has no deterministic one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("PIPEFIT_HOME", tempfile.mkdtemp(prefix="pipefit-benchmark-"))

from measuring import ROOT, digits_folder, spread

#: Steps of a block and the model, by name.
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "MLP 128-32": (4_000, {"builder": "pipefit.training.models:mlp", "units": [128, 32]}),
    "MLP 1024-1024": (100, {"builder": "pipefit.training.models:mlp", "units": [1024, 1024]}),
    "convnet 16-32": (200, {"builder": "pipefit.training.models:convnet", "filters": [16, 32]}),
    "LSTM 64": (100, {"builder": "switches:rows", "units": 64}),
}
#: (deterministic, jit_compile); the first is what the others are compared with.
SETTINGS = [(False, False), (True, False), (False, True), (True, True)]


def rows(units: int, outputs: int) -> Any:
    """An LSTM that reads the pictures row by row."""
    import keras

    images = keras.Input((8, 8, 1), name="images")
    x = keras.layers.Reshape((8, 8))(images)
    x = keras.layers.LSTM(units)(x)
    return keras.Model(images, {"logits": keras.layers.Dense(outputs, name="logits")(x)})


def child(name: str, deterministic: bool, jit_compile: bool) -> None:
    """One setting: trains a block for every line of input and prints its seconds."""
    from pipefit.spec import Spec
    from pipefit.training import Experiment, Replicas

    steps, model = MODELS[name]
    tables = tomllib.loads((ROOT / "configs" / "digits_mlp.toml").read_text())
    tables["model"] = {**model, "outputs": 10}
    tables["train"] |= {"deterministic": deterministic, "jit_compile": jit_compile}
    spec = Spec.of_tables(tables)
    trainer = Experiment(spec, {"digits": str(digits_folder(spec))}, Replicas()).trainer()
    for _ in sys.stdin:
        begin = time.perf_counter()
        try:
            trainer.run(steps)
        except Exception as error:
            print(f"error {error}".split("\n")[0], flush=True)
            return
        print(time.perf_counter() - begin, flush=True)


def measured(name: str, rounds: int) -> list[list[float] | str]:
    """For every setting the seconds of its blocks, or why there are none."""
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "child", name, str(int(d)), str(int(j))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for d, j in SETTINGS
    ]
    found: list[list[float] | str] = [[] for _ in children]
    for _ in range(rounds + 1):
        for i, process in enumerate(children):
            seconds = found[i]
            if isinstance(seconds, str):
                continue
            assert process.stdin and process.stdout
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
            if answer.startswith("error"):
                found[i] = answer
            else:
                seconds.append(float(answer))
    for process in children:
        assert process.stdin
        process.stdin.close()
        process.wait()
    return [seconds if isinstance(seconds, str) else seconds[1:] for seconds in found]


def main(rounds: int) -> None:
    """Measure and print."""
    for name, (steps, _) in MODELS.items():
        found = measured(name, rounds)
        base = found[0]
        assert isinstance(base, list)
        for (deterministic, jit_compile), seconds in zip(SETTINGS, found, strict=True):
            what = f"{name:14} deterministic={deterministic!s:5} jit_compile={jit_compile!s:5}"
            if isinstance(seconds, str):
                print(f"{what}  {seconds}")
                continue
            speed = statistics.median(steps / s for s in seconds)
            ratios = [b / s for b, s in zip(base, seconds, strict=True)]
            print(f"{what}  {speed:8,.0f} steps/s  ratio {spread(ratios)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3] == "1", sys.argv[4] == "1")
        os._exit(0)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
