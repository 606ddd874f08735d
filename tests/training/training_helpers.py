"""Small data, models and trainers, and a bare loop in NumPy to compare them with.

The bare loop shares nothing with Pipefit but the order of examples: forward pass, gradients and
update rules are written out below, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from pipefit.data import Arrays, examples
from pipefit.records import TIMING
from pipefit.training import (
    Clip,
    Feed,
    Group,
    Objective,
    Part,
    Replicas,
    Targets,
    Trainer,
    Updates,
    freeze,
    per_example,
)
from pipefit.training.objective import sparse_softmax_cross_entropy

SEED = 5
BATCH = 8


def points(count: int = 20, seed: int = 0) -> Arrays:
    """`count` points of 6 coordinates in 3 classes."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    x = draw.normal(size=(count, 6)) + 0.5 * labels[:, None]
    return Arrays(x=x.astype(np.float32), labels=labels)


def pictures(count: int = 20, seed: int = 0) -> Arrays:
    """`count` pictures of 4 by 4 pixels in 3 classes."""
    draw = np.random.default_rng(seed)
    images = draw.random((count, 4, 4, 1), np.float32)
    return Arrays(images=images, labels=np.arange(count) % 3)


def perceptron(**hidden: Any) -> keras.Model:
    """6 coordinates - 5 ReLU units "a" - 3 logits "b"; `hidden` goes to layer "a"."""
    x = keras.Input((6,), name="x")
    a = keras.layers.Dense(5, activation="relu", name="a", **hidden)(x)
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(a)})


def linear(**options: Any) -> keras.Model:
    """6 coordinates - 3 logits "b"."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b", **options)(x)})


def with_layers(*layers: Callable[[], keras.layers.Layer]) -> Callable[[], keras.Model]:
    """Makes models: 6 coordinates - 5 units "a" - these layers - 3 logits "b"."""

    def make() -> keras.Model:
        x = keras.Input((6,), name="x")
        y = keras.layers.Dense(5, name="a")(x)
        for layer in layers:
            y = layer()(y)
        return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(y)})

    return make


def small_convnet() -> keras.Model:
    """Convolution, synchronised batch normalisation, pooling, on 4 by 4 pictures."""
    x = keras.Input((4, 4, 1), name="images")
    y = keras.layers.Conv2D(3, 3, padding="same", use_bias=False, name="conv")(x)
    y = keras.layers.BatchNormalization(synchronized=True, momentum=0.7, name="norm")(y)
    y = keras.layers.MaxPooling2D(name="pool")(keras.layers.ReLU(name="relu")(y))
    y = keras.layers.Flatten(name="flat")(y)
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="b")(y)})


def make_trainer(
    model: Callable[[], keras.Model] = perceptron,
    source: Any = None,
    *,
    optimizer: Callable[[], Any] | None = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
    groups: Sequence[tuple[str, float]] = (),
    clip: Clip | None = None,
    parts: Callable[[], Sequence[Part]] | None = None,
    trainable: str | None = None,
    devices: int = 1,
    indices: Sequence[int] | None = None,
    batch: int = BATCH,
    seed: int = SEED,
    initial: int = 1,
    feed: Feed | None = None,
    targets: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Trainer:
    """A trainer; the same arguments give the same names and initial values.

    `parts` makes the optimizers, else there is one; `updates` and `rest` go to the constructors.
    """
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(initial)
    chosen = range(devices) if indices is None else indices
    replicas = Replicas(kind="cpu", indices=chosen, alone=False)
    with replicas.scope():
        built = model()
        if trainable is not None:
            freeze(built, trainable)
        if parts is None:
            made = optimizer() if optimizer else keras.optimizers.SGD(0.1)
            scales = tuple(Group(match, scale) for match, scale in groups)
            used: Sequence[Part] = [Part(made, clip=clip, groups=scales)]
        else:
            used = parts()
        prepared = Updates(built, used, **(updates or {}))
    called = {name: per_example(value, name) for name, value in (metrics or {}).items()}
    return Trainer(
        objective=Objective(
            built, per_example(loss or sparse_softmax_cross_entropy(), "loss"), called
        ),
        updates=prepared,
        feed=feed or Feed(source or points(), seed=seed, batch_size=batch),
        replicas=replicas,
        targets=Targets(targets or {}, "train"),
        **rest,
    )


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    """All state of a trainer now."""
    return {name: value.numpy() for name, value in trainer.snapshot().items()}


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    """The model's variables now, by path."""
    state = arrays(trainer)
    return {k.removeprefix("model/"): v for k, v in state.items() if k.startswith("model/")}


def counting(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without what is measured, and differs between two equal runs."""
    return {name: value for name, value in values.items() if name not in TIMING}


def assert_equal(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Bit for bit, except of what is measured."""
    got, expected = counting(got), counting(expected)
    assert list(got) == list(expected), (list(got), list(expected))
    different = [k for k in expected if bits(got[k]) != bits(expected[k])]
    assert not different, different


def bits(values: np.ndarray) -> Any:
    """What makes two arrays the same; of texts (objects) the texts."""
    return values.tolist() if values.dtype == object else values.tobytes()


def assert_close(
    got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float = 1e-6
) -> None:
    """Every element, absolute and relative, except of what is measured."""
    got, expected = counting(got), counting(expected)
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


Weights = dict[str, np.ndarray]
Rule = Callable[[str, np.ndarray, np.ndarray, int], np.ndarray]


def bare_loop(
    start: Mapping[str, np.ndarray],
    steps: int,
    rule: Rule,
    *,
    source: Arrays | None = None,
    batch: int = BATCH,
    clip: Callable[[Weights], Weights] = lambda gradients: gradients,
    l2: float = 0.0,
) -> tuple[Weights, list[float], list[float]]:
    """Train `perceptron` by hand.

    Args:
        start: initial weights by path.
        steps: updates.
        rule: (name, weight, gradient, step from 1) -> new weight.
        source: the data.
        batch: examples per update.
        clip: of the gradients of the whole batch.
        l2: weight of the squared kernel of layer "a" in the loss.

    Returns:
        Weights, losses and accuracies.
    """
    w = {name: value.astype(np.float64) for name, value in start.items()}
    source = source or points()
    losses, accuracies = [], []
    for step in range(1, steps + 1):
        order = examples(seed=SEED, start=(step - 1) * batch, count=batch, n=len(source))
        x, labels = source.fields["x"][order].astype(np.float64), source.fields["labels"][order]
        hidden = x @ w["a/kernel"] + w["a/bias"]
        active = np.maximum(hidden, 0)
        logits = active @ w["b/kernel"] + w["b/bias"]
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
        cross_entropy = -np.log(softmax[np.arange(batch), labels]).mean()
        losses.append(cross_entropy + l2 * (w["a/kernel"] ** 2).sum())
        accuracies.append((logits.argmax(axis=1) == labels).mean())
        error = (softmax - np.eye(3)[labels]) / batch
        back = (error @ w["b/kernel"].T) * (hidden > 0)
        gradients = clip(
            {
                "a/kernel": x.T @ back + 2 * l2 * w["a/kernel"],
                "a/bias": back.sum(axis=0),
                "b/kernel": active.T @ error,
                "b/bias": error.sum(axis=0),
            }
        )
        w = {name: rule(name, value, gradients[name], step) for name, value in w.items()}
    return w, losses, accuracies


def sgd(rate: float | Callable[[int], float], momentum: float = 0.0) -> Rule:
    """Stochastic gradient descent with momentum; `rate` may depend on the step."""
    velocity: Weights = {}

    def rule(name: str, weight: np.ndarray, gradient: np.ndarray, step: int) -> np.ndarray:
        now = rate(step) if callable(rate) else rate
        velocity[name] = momentum * velocity.get(name, 0.0) - now * gradient
        return weight + velocity[name]

    return rule


def adam(rate: float, weight_decay: float = 0.0) -> Rule:
    """Adam (Kingma and Ba, ICLR 2015), with decoupled weight decay (Loshchilov and Hutter)."""
    m: Weights = {}
    v: Weights = {}

    def rule(name: str, weight: np.ndarray, gradient: np.ndarray, step: int) -> np.ndarray:
        m[name] = 0.9 * m.get(name, 0.0) + 0.1 * gradient
        v[name] = 0.999 * v.get(name, 0.0) + 0.001 * gradient**2
        scale = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weight = weight - rate * weight_decay * weight
        return weight - scale * m[name] / (np.sqrt(v[name]) + 1e-7)

    return rule
