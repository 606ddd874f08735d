"""A small recurrent model looks at images of a digit and draws another one, pixel by pixel.

It shows what loops of one's own are for: see drawing.toml beside it.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipefit.data import digits

SIDE = 8
PIXELS = SIDE * SIDE
#: What the pen sees of the drawing: the pixels up to the one above the next.
SEEN = SIDE + 1
#: Row and column of every pixel, one-hot, [pixels, 2 * side].
PLACES = np.concatenate(
    [np.repeat(np.eye(SIDE), SIDE, axis=0), np.tile(np.eye(SIDE), (SIDE, 1))], axis=1
).astype(np.float32)


# ---- data ----


class Sequences:
    """Sequences of images of one digit: some to look at, and the one to draw.

    Every image is drawn once in a round, each time after others.
    """

    def __init__(self, archive: Path, split: str, looks: int, rounds: int = 1):
        fields = digits(archive, split).fields
        self.images = (fields["images"].reshape(-1, PIXELS) > 0.5).astype(np.float32)
        self.labels = fields["labels"]
        self.looks, self.rounds = looks, rounds
        self.of_digit = [np.flatnonzero(self.labels == digit) for digit in range(10)]
        # What each digit looks like on average, to tell what a drawing shows.
        self.means = np.stack([self.images[rows].mean(axis=0) for rows in self.of_digit])

    def __len__(self) -> int:
        return self.rounds * len(self.images)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The sequences of these indices, and what is needed to judge a drawing."""
        rows = indices % len(self.images)
        return {
            "looked_at": self.images[[self._others(int(index)) for index in indices]],
            "image": self.images[rows],
            "label": self.labels[rows],
            "means": np.repeat(self.means[np.newaxis], len(indices), axis=0),
        }

    def _others(self, index: int) -> np.ndarray:
        row = index % len(self.images)
        others = self.of_digit[self.labels[row]]
        # A generator for each index: the same index must always give the same example.
        return np.random.default_rng(index).choice(others[others != row], self.looks)


# ---- model ----


class Draughtsman(keras.Model):
    """A GRU reads images; its state is where another one begins to draw."""

    def __init__(self, units: int):
        super().__init__(name="draughtsman")
        self.eye = keras.layers.GRU(units, name="eye")
        self.pen = keras.layers.GRU(units, return_sequences=True, name="pen")
        self.ink = keras.layers.Dense(1, name="ink")

    def call(self, fields, training=False):
        """The next pixel after each of those of the true image."""
        return follow(self, {**fields, "before": fields["image"]})


def look(model, fields):
    """What the model has seen, [examples, units]."""
    return {"memory": model.eye(fields["looked_at"])}


def draw(model, fields):
    """An image drawn from memory: each pixel depends on those that were drawn before it."""
    memory = fields["memory"]
    examples = memory.shape[0]

    def next_pixel(before, place):
        state, seen, _ = before
        here = tf.tile(place[tf.newaxis], [examples, 1])
        output, [state] = model.pen.cell(tf.concat([seen, here], axis=1), [state])
        logit = model.ink(output)
        drawn = tf.cast(logit > 0, tf.float32)
        return state, tf.concat([seen[:, 1:], drawn], axis=1), logit

    blank = memory, tf.zeros([examples, SEEN]), tf.zeros([examples, 1])
    _, _, logits = tf.scan(next_pixel, tf.constant(PLACES), blank)  # [pixels, examples, 1]
    logits = tf.transpose(logits[..., 0])
    return {"logits": logits, "drawn": tf.cast(logits > 0, tf.float32)}


def follow(model, fields):
    """The next pixel after each of those in "before", all at once."""
    padded = tf.pad(fields["before"], [[0, 0], [SEEN, 0]])
    seen = tf.stack([padded[:, i : i + PIXELS] for i in range(SEEN)], axis=-1)
    places = tf.tile(tf.constant(PLACES)[tf.newaxis], [seen.shape[0], 1, 1])
    memory = look(model, fields)["memory"]
    outputs = model.pen(tf.concat([seen, places], axis=-1), initial_state=memory)
    return {"logits": model.ink(outputs)[..., 0]}


# ---- loss and metric ----


def pixelwise():
    """Cross entropy of every pixel."""

    def values(image, logits):
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=image, logits=logits)

    return values


def recognised():
    """Whether the drawing is nearer to the mean image of its digit than to that of any other."""

    def right(drawn, label, means):
        distances = tf.reduce_sum((drawn[:, tf.newaxis] - means) ** 2, axis=-1)
        return tf.argmin(distances, axis=1) == label

    return right


# ---- loops ----


def practise(until: int, share: float, seed: int = 0):
    """Trains to draw after the true image, and more and more after what the model draws itself.

    Args:
        until: at this step the share of its own pixels has grown to
        share: its largest value, 0 to 1.
        seed: of the random numbers that say which pixels are its own.
    """

    def loop(step, iterator, steps):
        for batch in iterator:
            own = share * min(1.0, step.number / until)
            drawn = step.call(draw, step.call(look, batch))["drawn"]
            # A function of the number of the step, so it is the same after an interruption.
            chosen = tf.random.stateless_uniform(drawn.shape, [seed, step.number]) < own
            step({**batch, "before": tf.where(chosen, drawn, batch["image"])}, follow)

    return loop


def exam():
    """Looks at the images, then draws all by itself."""

    def loop(step, iterator):
        for batch in iterator:
            step(batch, step.call(draw, step.call(look, batch)))

    return loop
