"""Fetching: what is under the final name is whole and verified, whatever happened before."""

import ctypes
import json
import os
import signal
import time
from pathlib import Path

import fsspec
import pytest
from archive_helpers import python, sha256, tar_of

from pipefit import archives
from pipefit.archives import cache as cache_module
from pipefit.archives import fetching
from pipefit.errors import ArchiveError

DATA = tar_of({"a.txt": os.urandom(200_000)})
DIGEST = sha256(DATA)
FETCH = "import sys, logging; logging.basicConfig(level='INFO'); from pipefit import archives; "
FETCH += "print(archives.fetch(sys.argv[1], sys.argv[2]).name, flush=True)"


@pytest.fixture
def local(tmp_path) -> Path:
    path = tmp_path / "data.tar.gz"
    path.write_bytes(DATA)
    return path


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix not in (".archive", ".json", ".lock"))


def test_a_file_is_copied_under_its_hash(local, cache):
    found = archives.fetch(str(local), DIGEST)
    assert found == cache / f"{DIGEST}.archive"
    assert found.read_bytes() == DATA
    assert archives.cached(DIGEST) == found
    assert leftovers(cache) == []


def test_the_hash_may_be_written_in_capitals(local):
    assert archives.fetch(str(local), DIGEST.upper()) == archives.cached(DIGEST)


@pytest.mark.parametrize(
    "wrong", ["", "abc", "a" * 63, "a" * 65, "g" * 64, "a" * 64 + "\n", "\u0661" * 64]
)
def test_something_else_than_a_sha256_is_refused(local, wrong):
    for ask in (archives.cached, archives.unpacked, archives.unpack):
        with pytest.raises(ArchiveError, match="64 hexadecimal digits"):
            ask(wrong)
    with pytest.raises(ArchiveError, match="64 hexadecimal digits"):
        archives.fetch(str(local), wrong)


def test_a_relative_path_is_looked_for_here_then_beside_the_config(local, tmp_path, monkeypatch):
    here, base = tmp_path / "here", tmp_path / "base"
    here.mkdir()
    base.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(ArchiveError) as error:
        archives.fetch("some/data.tar.gz", DIGEST, base)
    assert str(here / "some/data.tar.gz") in str(error.value)
    assert str(base / "some/data.tar.gz") in str(error.value)
    (base / "some").mkdir()
    local.rename(base / "some/data.tar.gz")
    assert archives.fetch("some/data.tar.gz", DIGEST, base).read_bytes() == DATA


def test_file_urls(local, tmp_path):
    spaced = tmp_path / "a folder" / "data.tar.gz"
    spaced.parent.mkdir()
    local.rename(spaced)
    with pytest.raises(ArchiveError, match="three slashes"):
        archives.fetch("file://data.tar.gz/x", DIGEST)
    assert archives.fetch(spaced.as_uri(), DIGEST).read_bytes() == DATA


def test_http(site, cache):
    site.data = DATA
    assert archives.fetch(site.url, DIGEST).read_bytes() == DATA
    archives.fetch(site.url, DIGEST)
    assert len(site.requests) == 1
    assert leftovers(cache) == []


def test_any_fsspec_address():
    fsspec.filesystem("memory").pipe("/bucket/data.tar.gz", DATA)
    assert archives.fetch("memory://bucket/data.tar.gz", DIGEST).read_bytes() == DATA
    with pytest.raises(ArchiveError, match="memory://bucket/none cannot be fetched"):
        archives.fetch("memory://bucket/none", "0" * 64)


def test_a_protocol_without_its_package_names_the_package():
    hint = "Install nosuchpackage to access NoSuch"
    fsspec.register_implementation("nosuch", "nosuchpackage.System", errtxt=hint, clobber=True)
    with pytest.raises(ArchiveError, match=f"nosuch://b/x needs a package.*: {hint}"):
        archives.fetch("nosuch://b/x", DIGEST)


def test_an_unknown_protocol_names_the_allowed():
    with pytest.raises(ArchiveError, match="Protocol not known: foo; allowed are a path, file://"):
        archives.fetch("foo://b/x", DIGEST)


def test_a_wrong_hash_is_not_tried_again_and_leaves_nothing(site, cache):
    site.data = DATA
    wrong = "0" * 64
    with pytest.raises(ArchiveError) as error:
        archives.fetch(site.url, wrong)
    for part in (site.url, wrong, DIGEST, str(len(DATA)), "set its sha256"):
        assert part in str(error.value)
    assert len(site.requests) == 1
    assert archives.cached(wrong) is None
    assert [p.name for p in cache.iterdir()] == [f"{wrong}.lock"]


def test_faults_of_the_network_are_tried_again(site):
    site.data = DATA
    site.statuses = [503]
    site.cuts = 1
    assert archives.fetch(site.url, DIGEST).read_bytes() == DATA
    assert len(site.requests) == 3


def test_a_long_download_says_how_far_it_is(site, caplog, monkeypatch):
    site.data = os.urandom(3 * 2**20)
    monkeypatch.setattr(fetching, "_TELL_EVERY", 0.0)
    # Not through the root logger: the tasks, if they were imported, keep Pipefit's lines from it.
    monkeypatch.setattr(fetching.logger, "handlers", [caplog.handler])
    with caplog.at_level("INFO", fetching.logger.name):
        archives.fetch(site.url, sha256(site.data))
    assert f"fetching {site.url}: 1.0 MiB of 3.0 MiB" in caplog.messages


@pytest.mark.parametrize("status", [403, 404])
def test_a_clear_no_of_the_server_is_not_tried_again(site, status):
    site.statuses = [status] * 9
    with pytest.raises(ArchiveError, match=f"the server answers {status}"):
        archives.fetch(site.url, DIGEST)
    assert len(site.requests) == 1


def test_errors_do_not_show_the_secrets_of_an_address(site):
    site.statuses = [404]
    url = site.url.replace("http://", "http://me:pa55@") + "?token=s3cret"
    with pytest.raises(ArchiveError) as error:
        archives.fetch(url, DIGEST)
    assert site.url in str(error.value)
    assert "pa55" not in str(error.value) and "s3cret" not in str(error.value)


def test_a_cached_file_short_of_one_byte_is_fetched_again(local):
    found = archives.fetch(str(local), DIGEST)
    found.write_bytes(DATA[:-1])
    assert archives.cached(DIGEST) is None
    assert archives.fetch(str(local), DIGEST).read_bytes() == DATA


def test_a_cached_file_with_one_other_byte_is_fetched_again(local):
    found = archives.fetch(str(local), DIGEST)
    found.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    assert archives.cached(DIGEST) is None
    assert archives.fetch(str(local), DIGEST).read_bytes() == DATA


def test_an_untouched_file_is_not_hashed_again(local, monkeypatch):
    found = archives.fetch(str(local), DIGEST)
    monkeypatch.setattr(cache_module.hashlib, "file_digest", None)
    assert archives.cached(DIGEST) == found


@pytest.mark.parametrize("sidecar", [None, "", "{}", "[1]", '{"size": "x"'])
def test_a_lost_or_broken_sidecar_costs_one_hash(local, cache, sidecar):
    found = archives.fetch(str(local), DIGEST)
    path = cache / f"{DIGEST}.json"
    path.unlink() if sidecar is None else path.write_text(sidecar)
    assert archives.cached(DIGEST) == found
    assert json.loads(path.read_text())["size"] == len(DATA)


def test_a_moved_cache_is_still_good(local):
    found = archives.fetch(str(local), DIGEST)
    os.utime(found, (1, 1))
    local.unlink()
    assert archives.fetch(str(local), DIGEST) == found


def test_killed_in_the_middle_leaves_no_final_name_and_the_next_call_cleans_up(site, cache):
    site.data = os.urandom(4 * 2**20)
    digest = sha256(site.data)
    site.go_on.clear()
    child = python(FETCH, site.url, digest)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size for p in cache.glob(".*.tmp/archive")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert archives.cached(digest) is None
    assert not list(cache.glob("*.archive"))
    assert len(leftovers(cache)) == 1
    site.go_on.set()
    assert archives.fetch(site.url, digest).read_bytes() == site.data
    assert leftovers(cache) == []


def test_what_a_killed_process_left_of_another_archive_is_removed(local, cache):
    archives.fetch(str(local), DIGEST)
    left = cache_module._temporary_name("1" * 64)
    left.mkdir()
    archives.cached(DIGEST).unlink()
    archives.fetch(str(local), DIGEST)
    assert not left.exists()


def test_work_in_progress_is_not_removed(local, cache):
    with cache_module.workspace("1" * 64) as other:
        archives.fetch(str(local), DIGEST)
        assert other.is_dir()
    assert not other.exists()


def test_work_of_another_host_is_removed_only_when_it_has_been_idle_for_long(local, cache):
    cache.mkdir(parents=True)
    fresh, old = (cache / f".{c * 64}.otherhost.x.tmp" for c in "12")
    for folder in (fresh, old):
        folder.mkdir()
        (folder / "archive").touch()
    past = time.time() - cache_module.ABANDONED_AFTER - 60
    os.utime(old / "archive", (past, past))
    os.utime(old, (past, past))
    archives.fetch(str(local), DIGEST)
    assert fresh.exists() and not old.exists()


def test_processes_that_want_one_archive_download_it_once(site):
    site.data = DATA
    site.go_on.clear()
    first = python(FETCH, site.url, DIGEST)
    assert site.halfway.wait(60)
    second = python(FETCH, site.url, DIGEST)
    for line in second.stderr:
        if "waiting for another process" in line:
            break
    site.go_on.set()
    for child in (first, second):
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert out.strip() == f"{DIGEST}.archive"
    assert len(site.requests) == 1


def test_without_locks_every_process_publishes_something_whole(local, cache, monkeypatch):
    """A folder in the place of the lock file: no lock can be had, as on some network disks."""
    (cache / f"{DIGEST}.lock").mkdir(parents=True)
    with cache_module.workspace(DIGEST):
        assert archives.fetch(str(local), DIGEST).read_bytes() == DATA
    assert archives.unpack(DIGEST).joinpath("a.txt").is_file()


def test_a_disk_that_is_too_small_is_known_before_the_first_byte(tmp_path, cache, site):
    large = tmp_path / "large.tar"
    with large.open("wb") as file:
        file.truncate(4 * 2**40)
    message = r"4.0 TiB are needed and .* are free in .*cache/archives; .*PIPEFIT_HOME"
    with pytest.raises(ArchiveError, match=message):
        archives.fetch(str(large), DIGEST)
    site.data, site.length = DATA, 4 * 2**40
    with pytest.raises(ArchiveError, match=message):
        archives.fetch(site.url, DIGEST)
    assert len(site.requests) == 1
    assert leftovers(cache) == []


def test_no_space_in_the_middle_leaves_nothing(local, cache):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    child = python(limited + FETCH, str(local), DIGEST)
    _, err = child.communicate(timeout=60)
    assert "ArchiveError: no space for the archive: " in err
    assert "KiB are needed and" in err
    assert leftovers(cache) == [] and archives.cached(DIGEST) is None


def _obey_permissions() -> None:
    """In the child: take from root, if it is root, the right to write what nobody may write."""
    pr_capbset_drop, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


def test_a_cache_that_cannot_be_written_serves_what_it_has(local, cache):
    archives.fetch(str(local), DIGEST)
    os.utime(archives.cached(DIGEST), (1, 1))  # so the sidecar would have to be written
    cache.chmod(0o555)
    try:
        child = python(FETCH, str(local), DIGEST, preexec_fn=_obey_permissions)
        out, err = child.communicate(timeout=60)
        assert out.strip() == f"{DIGEST}.archive", err
        child = python(FETCH, str(local), "0" * 64, preexec_fn=_obey_permissions)
        _, err = child.communicate(timeout=60)
    finally:
        cache.chmod(0o755)
    assert "ArchiveError: the cache cannot be written: " in err
    assert "Permission denied; make it writable or set PIPEFIT_HOME" in err


def test_nothing_is_written_outside_the_home(local, tmp_path, cache):
    for name in ("user", "tmp", "cwd"):
        (tmp_path / name).mkdir()
    code = FETCH + "; archives.unpack(sys.argv[2])"
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "user"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(Path(archives.__file__).parent.parent.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    child = python(code, str(local), DIGEST, cwd=tmp_path / "cwd", env=environment)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert archives.unpacked(DIGEST)
    for name in ("user", "tmp", "cwd"):
        assert list((tmp_path / name).iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} == {"user", "tmp", "cwd", "home", local.name}
    assert [p.name for p in (tmp_path / "home").iterdir()] == ["cache"]
