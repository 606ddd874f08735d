"""The archive tasks, as they are typed."""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import luigi
import pytest

from tasks.archives import CacheArchive, UntarArchive

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def archive(tmp_path) -> dict[str, str]:
    """The parameters of an archive with two files."""
    path = tmp_path / "data.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("Makefile", "setup.py"):
            tar.add(ROOT / name, arcname=name)
    return {"url": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def run(*tasks: luigi.Task) -> bool:
    return luigi.build(tasks, local_scheduler=True, no_lock=True)


def test_from_the_command_line(archive, home, tmp_path):
    command = [sys.executable, "-m", "luigi", "--module", "tasks.archives", "UntarArchive"]
    command += ["--url", Path(archive["url"]).name, "--sha256", archive["sha256"]]
    command += ["--base", str(tmp_path), "--local-scheduler"]
    task = UntarArchive(**archive)
    for expected in ("2 ran successfully", "1 complete ones were encountered"):
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert expected in done.stderr.replace(" tasks", "")
        assert task.complete()
    assert (Path(task.output().path) / "setup.py").read_bytes() == (ROOT / "setup.py").read_bytes()


def test_a_damaged_cache_is_repaired_without_asking_for_more_than_needed(archive):
    task = UntarArchive(**archive)
    assert not task.complete() and not task.requires().complete()
    assert run(task) and task.requires().complete()
    (Path(task.output().path) / "setup.py").unlink()
    Path(archive["url"]).unlink()  # the cached archive is enough
    assert not task.complete()
    assert run(task) and task.complete()


def test_an_unpacked_archive_needs_no_archive(archive):
    task = UntarArchive(**archive)
    assert run(task)
    next(Path(os.environ["PIPEFIT_HOME"]).rglob("*.archive")).unlink()
    assert not task.requires().complete()
    assert task.complete()


def test_a_wrong_hash_fails(archive):
    assert not run(CacheArchive(url=archive["url"], sha256="0" * 64))


def test_the_limits_of_the_experiment_file_reach_the_archive(tmp_path):
    path = tmp_path / "zeros.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("a", "b"):
            member = tarfile.TarInfo(name)
            member.size = 4 * 2**20
            with Path("/dev/zero").open("rb") as zeros:
                tar.addfile(member, zeros)
    archive = {"url": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert not run(UntarArchive(**archive))
    assert not run(UntarArchive(max_bytes=2**30, max_members=1, **archive))
    assert not run(UntarArchive(max_bytes=5 * 2**20, **archive))
    assert run(UntarArchive(max_bytes=2**30, **archive))


def test_an_address_with_a_password_is_not_shown(archive):
    url = "https://user:s3cret@example.org/data.tar.gz"
    for task in (CacheArchive, UntarArchive):
        made = task(**{**archive, "url": url})
        assert "s3cret" not in f"{made!r} {made.task_id} {made.to_str_params(only_public=True)}"
