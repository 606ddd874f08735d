"""Arrays as tensors without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# TensorFlow ends the process if it meets memory of its own that begins elsewhere.
_ALIGNMENT = 64


def shared(array: npt.NDArray[Any]) -> tf.Tensor:
    """A tensor in the main memory that is the array's own memory, if that can be shared.

    Arrays of `pipefit.data.Arrays` can. `tf.constant` would take twice the memory of the array
    on top of it, `tf.convert_to_tensor`, which is used for all others, once.

    Args:
        array: nobody writes to it afterwards.
    """
    flags = array.flags
    whole = flags.c_contiguous and flags.writeable and array.size > 0
    number = array.dtype.kind in "biufc" and array.dtype == array.dtype.newbyteorder("=")
    if whole and number and array.ctypes.data % _ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(np.asarray(array))
