"""Archives made for tests, child processes, and what a web server shall do."""

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar_of(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar archive with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def python(code: str, *args: str, **options) -> subprocess.Popen:
    """A Python process that runs `code`; stdout and stderr are pipes of text."""
    command = [sys.executable, "-c", code, *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{"cwd": ROOT, **pipes, **options})


@dataclass
class Site:
    """A web server with one file.

    Attributes:
        statuses: answered first, one for each request; then 200.
        cuts: so many answers end early, after half of the data.
        go_on: cleared, an answer stops after half of the data until it is set.
    """

    url: str
    data: bytes = b""
    length: int | None = None
    statuses: list[int] = field(default_factory=list)
    cuts: int = 0
    requests: list[str] = field(default_factory=list)
    halfway: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
