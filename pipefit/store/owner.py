"""Which process owns a run, and whether it still lives.

me = this_process()
is_dead(me)         # False; False as well for whatever this process cannot judge
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from pipefit.records import Owner

# Start times are exact on Linux, elsewhere the system rounds them.
_TOLERANCE = 0.5


def this_process() -> Owner:
    """The calling process; call it again after a fork."""
    process = psutil.Process()
    return Owner(
        host=socket.gethostname(),
        scope=_scope(),
        pid=process.pid,
        started=_start_time(process),
    )


def is_dead(owner: Owner) -> bool:
    """Whether the owner is known to have ended: it ran in this scope and its pid is gone or reused.

    A process of another host, boot or process namespace is never known to be dead.
    """
    if owner.scope != _scope():
        return False
    return not _exists(owner.pid) or _is_zombie(owner.pid) or _other_start(owner)


def _scope() -> str:
    """Names the boot and the process namespace, the span in which a pid means something."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip()}/{namespace.stat().st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{psutil.boot_time():.0f}"


def _start_time(process: psutil.Process) -> float:
    # psutil adds the boot time by today's clock to the ticks since boot that Linux counts. Without
    # it a step of the clock cannot make a living process look like another one.
    started = process.create_time()
    return started - psutil.boot_time() if psutil.LINUX else started


def _exists(pid: int) -> bool:
    if os.name != "posix":
        return psutil.pid_exists(pid)
    # Not psutil: on hosts that hide the processes of others in /proc it takes them for gone.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _other_start(owner: Owner) -> bool:
    try:
        started = _start_time(psutil.Process(owner.pid))
    except psutil.Error:
        return False  # it ended just now, or is hidden from us
    return abs(started - owner.started) > _TOLERANCE
