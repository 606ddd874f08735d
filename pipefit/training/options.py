"""Options of every dataset of ours."""

from __future__ import annotations

import tensorflow as tf


def options() -> tf.data.Options:
    """Deterministic, and without the autotuner."""
    made = tf.data.Options()
    # Its sleeping thread can delay the end of a process by up to a minute, and it is not needed.
    made.autotune.enabled = False
    made.deterministic = True
    return made
