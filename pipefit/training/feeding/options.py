"""How all datasets of ours are made."""

from __future__ import annotations

import tensorflow as tf

#: For functions given to a dataset: AutoGraph would rewrite them, which takes long and buries the
#: messages of errors in users' code.
as_written = tf.autograph.experimental.do_not_convert


def options() -> tf.data.Options:
    """Deterministic, and without the autotuner."""
    made = tf.data.Options()
    # Its sleeping thread can delay the end of a process by up to a minute, and it is not needed.
    made.autotune.enabled = False
    made.deterministic = True
    return made
