"""HDF5 files are read in a process of their own.

The HDF5 library does not survive every damaged file: some make it loop forever, ask for all memory
or crash. In a process of its own, with limits, each of these becomes a `LoadError`.

The other end is `pipefit.loading.apart_process`. It gets one line of JSON, the order; it answers
with one, the listing, or an error; then for every name, a line of JSON, with a line and the bytes
of the tensor. The end of its input ends it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from pipefit.errors import LoadError
from pipefit.loading.base import TensorInfo
from pipefit.loading.filesource import FileSource, Origin

if TYPE_CHECKING:
    import numpy as np

Layout = Literal["file", "archive", "folder"]

#: Seconds of computing that opening a file may take; 10,000 layers take a third of it.
OPENING_SECONDS = 30

_PACKAGES = Path(__file__).parents[2]


class Apart(FileSource):
    """An HDF5 file of Keras, or a `.keras` archive or folder, that another process has open.

    Args:
        layout: what the path is.
        path: of it.
        origin: where it came from.

    Raises:
        LoadError: it is damaged or hostile.
    """

    def __init__(self, layout: Layout, path: Path, origin: Origin):
        self._origin = origin
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the source
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipefit.loading.apart_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Threads for algebra would reserve more memory than is allowed.
            env={**os.environ, "PYTHONPATH": _path(), "OPENBLAS_NUM_THREADS": "1"},
        )
        self._questions = cast(IO[bytes], self._process.stdin)
        self._answers = cast(BufferedReader, self._process.stdout)
        order = {"layout": layout, "path": str(path), "label": origin.label}
        try:
            listing = self._ask({**order, "seconds": OPENING_SECONDS})
            self._facts = {name: facts for name, *facts in listing["tensors"]}
            self._bytes: int = listing["bytes"]
            tensors = {
                name: TensorInfo(dtype, tuple(shape), role)
                for name, (dtype, shape, role, _) in self._facts.items()
            }
        except BaseException:
            self.close()
            raise
        super().__init__(origin, tensors, listing["step"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with suppress(BrokenPipeError):
            self._questions.close()
        self._log.close()

    def claim(self, name: str) -> tuple[int, int]:
        """Bytes of one tensor in memory, and in the file."""
        claimed, stored = self._facts[name][3]
        return claimed, stored

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._bytes

    def _read(self, name: str) -> np.ndarray:
        import ml_dtypes  # noqa: F401, makes bfloat16 known to numpy
        import numpy as np

        answer = self._ask(name)
        found = np.empty(math.prod(answer["shape"]), answer["dtype"])
        left = found.view(np.uint8).data
        while left:
            count = self._answers.readinto(left)
            if not count:
                raise self._died()
            left = left[count:]
        return found.reshape(answer["shape"])

    def _ask(self, question: object) -> dict[str, Any]:
        if self._answers.closed:
            raise LoadError(f"{self._origin.label} was closed before this was read of it")
        try:
            self._questions.write(json.dumps(question).encode() + b"\n")
            self._questions.flush()
        except BrokenPipeError:
            raise self._died() from None
        line = self._answers.readline()
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoadError(answer["error"])
        return answer

    def _died(self) -> LoadError:
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
        how = f"{signal.Signals(-code).name}" if code < 0 else f"exit code {code}: {last}"
        return self._origin.damaged(
            "HDF5 file", f"the HDF5 library cannot bear it (its process ended with {how})"
        )


def _path() -> str:
    """Where the process finds Pipefit, which may be neither installed nor in the current folder."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(_PACKAGES), *([before] if before else [])])
