"""The process that reads an HDF5 file for another one: see `pipefit.loading.apart`."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipefit.errors import ArchiveError, LoadError
from pipefit.loading import keras3, keras_hdf5
from pipefit.loading.filesource import Origin
from pipefit.loading.hdf5 import Hdf5Source

_OPEN = {"file": keras_hdf5.open_file, "archive": keras3.open_archive, "folder": keras3.open_folder}

# What Python and the library reserve is far less.
_MEMORY = 4 * 2**30
# Beyond this a tensor is not decompressed, but spun.
_BYTES_A_SECOND = 2**20
_PIECE = 2**20


def main(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Open what the first line asks for, then answer one name a line."""
    order = json.loads(questions.readline())
    _limit(order["seconds"], _MEMORY)
    with _errors_to(answers, order["label"]):
        source = _OPEN[order["layout"]](Path(order["path"]), Origin(order["label"]))
        _answer(answers, _listing(source))
        for line in questions:
            with _errors_to(answers, order["label"]):
                _send(source, json.loads(line), order["seconds"], answers)


@contextmanager
def _errors_to(answers: IO[bytes], label: str) -> Iterator[None]:
    """Errors become answers; what else is raised ends the process."""
    try:
        yield
    except LoadError as error:
        _answer(answers, {"error": str(error)})
    except (ArchiveError, OSError, MemoryError) as error:
        why = str(error) or "it asks for more memory than it can need"
        _answer(answers, {"error": f"{label} cannot be read: {why}"})


def _listing(source: Hdf5Source) -> dict[str, Any]:
    tensors = [
        (name, info.dtype, info.shape, info.role, source.claim(name))
        for name, info in source.tensors().items()
    ]
    return {"tensors": tensors, "bytes": source.size, "step": source.step}


def _send(source: Hdf5Source, name: str, seconds: int, answers: IO[bytes]) -> None:
    size = source.claim(name)[0]
    _limit(seconds + size // _BYTES_A_SECOND, _MEMORY + 4 * size)
    found = source.read([name])[name]
    _answer(answers, {"dtype": found.dtype.name, "shape": found.shape})
    data = found.reshape(-1).view("u1").data
    for at in range(0, len(data), _PIECE):
        answers.write(data[at : at + _PIECE])
    answers.flush()


def _answer(answers: IO[bytes], words: dict[str, Any]) -> None:
    answers.write(json.dumps(words).encode() + b"\n")
    answers.flush()


def _limit(seconds: int, memory: int) -> None:
    """From now on so many seconds of computing, and so many bytes in all."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        # Some systems have no such limit.
        with suppress(OSError, ValueError):
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (least, hard))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
