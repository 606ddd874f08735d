"""Weights from anywhere, by name: sources of tensors, the rules that match them to a model.

Knows no database and no TensorFlow; who joins it with those is `pipefit.execution`.
"""

from pipefit.loading.base import Source, TensorInfo
from pipefit.loading.opening import KNOWN_KINDS, open_file

__all__ = ["KNOWN_KINDS", "Source", "TensorInfo", "open_file"]
