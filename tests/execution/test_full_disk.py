"""Disks that are full: what was committed stays, the error says what to do, and it goes on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("full_disk.py")
ROOT = SCRIPT.parents[2]
LIMIT = 24 * 2**20
#: Room for the journal of a server, which it takes beforehand, and for some checkpoints.
_SMALL = "mount -t tmpfs -o size=440m,mode=0700 none {home} && exec {python} {script} {home}"


def small_disk_is_possible():
    """Whether this machine lets everybody mount a disk of their own (containers may not)."""
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


WAYS = ["disk"] if small_disk_is_possible() else ["limit"]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_was_committed_is_lost_and_it_goes_on(pipefit_home, way):
    """Where no disk can be mounted, limits end the server in the middle of a write as well."""
    pipefit_home.mkdir()
    words = [sys.executable, SCRIPT, pipefit_home, str(LIMIT)]
    if way == "disk":
        script = _SMALL.format(home=pipefit_home, python=sys.executable, script=SCRIPT)
        words = ["unshare", "-rm", "sh", "-c", script]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )

    assert done.returncode == 0, done.stderr + done.stdout
    database, home, end = done.stdout.splitlines()
    assert database.startswith("database: mongodb://127.0.0.1:")
    assert re.search(rf"cannot be written, the disk of {pipefit_home} is full \([NF]", home)
    if way == "disk":
        assert f"the disk of {pipefit_home} is full: free some space, then type" in database
    assert end == "continued"
