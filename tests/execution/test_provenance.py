"""What produced a run is recorded in every state that a folder of code can be in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipefit.execution import provenance
from pipefit.execution.provenance import DIFF_BYTES, diff, git_state, program, without_credentials


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", folder, *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-b", "work")
    (tmp_path / "model.py").write_text("units = 3\n")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "-m", "first")
    (tmp_path / "sub").mkdir()
    return tmp_path


def test_a_clean_and_a_changed_repository(repository):
    commit = git(repository, "rev-parse", "HEAD")
    expected = {"commit": commit, "branch": "work", "dirty": False, "remote": None}
    assert git_state(repository / "sub") == expected
    (repository / "unknown.txt").touch()
    assert git_state(repository) == expected
    assert diff(repository) is None
    (repository / "model.py").write_text("units = 4\n")
    assert git_state(repository) == {**expected, "dirty": True}


def test_the_diff_is_of_all_tracked_files_staged_or_not(repository):
    (repository / "model.py").write_text("units = 4\n")
    (repository / "sub" / "new.py").write_text("staged = True\n")
    (repository / "unknown.py").write_text("secret = True\n")
    git(repository, "add", "sub/new.py")
    found = diff(repository / "sub").decode()

    assert {"-units = 3", "+units = 4", "+staged = True"} <= set(found.splitlines())
    assert "secret" not in found
    git(repository, "stash")
    subprocess.run(["git", "-C", repository, "apply"], input=found.encode(), check=True)
    assert (repository / "model.py").read_text() == "units = 4\n"


def test_a_long_diff_is_cut_and_says_so(repository):
    (repository / "model.py").write_text("x = 1234567\n" * 200_000)
    found = diff(repository)

    assert DIFF_BYTES < len(found) < DIFF_BYTES + 100
    last = found.splitlines()[-1].decode()
    assert last.startswith(f"... the first {DIFF_BYTES} bytes of 26")


def test_no_program_of_the_repository_is_run(repository):
    mark = repository / "was-run"
    (repository / ".gitattributes").write_text("*.py diff=odd\n")
    git(repository, "config", "diff.external", f"touch {mark}")
    git(repository, "config", "diff.odd.command", f"touch {mark}")
    git(repository, "config", "diff.odd.textconv", f"touch {mark}; cat")
    git(repository, "config", "color.ui", "always")
    (repository / "model.py").write_text("units = 4\n")

    assert b"\n+units = 4\n" in diff(repository)
    assert git_state(repository)["dirty"] is True
    assert not mark.exists()


def test_a_detached_head_has_no_branch(repository):
    git(repository, "checkout", "--detach")
    state = git_state(repository)
    assert state["branch"] is None and state["commit"] == git(repository, "rev-parse", "HEAD")
    (repository / "model.py").write_text("units = 4\n")
    assert b"+units = 4" in diff(repository)


def test_a_repository_without_a_commit(tmp_path):
    git(tmp_path, "init", "-b", "work")
    empty = {"commit": None, "branch": "work", "dirty": False, "remote": None}
    assert git_state(tmp_path) == empty
    assert diff(tmp_path) is None
    (tmp_path / "model.py").write_text("units = 3\n")
    assert (git_state(tmp_path), diff(tmp_path)) == (empty, None)
    git(tmp_path, "add", "model.py")
    assert git_state(tmp_path) == {**empty, "dirty": True}
    assert b"+units = 3" in diff(tmp_path)


def test_the_remote_is_that_of_the_branch_else_origin_else_the_only_one(repository):
    git(repository, "remote", "add", "backup", "/srv/backup.git")
    assert git_state(repository)["remote"] == "/srv/backup.git"
    git(repository, "remote", "add", "upstream", "https://example.org/up.git")
    assert git_state(repository)["remote"] is None
    git(repository, "remote", "add", "origin", "git@example.org:me/mine.git")
    assert git_state(repository)["remote"] == "git@example.org:me/mine.git"
    git(repository, "config", "branch.work.remote", "upstream")
    git(repository, "config", "branch.work.merge", "refs/heads/main")
    assert git_state(repository)["remote"] == "https://example.org/up.git"
    git(repository, "checkout", "--detach")
    assert git_state(repository)["remote"] == "git@example.org:me/mine.git"
    git(repository, "config", "--unset", "remote.origin.url")
    assert git_state(repository)["remote"] is None


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:s3cret@example.org/a.git", "https://example.org/a.git"),
        ("https://ghp_s3cret@example.org/a.git", "https://example.org/a.git"),
        ("https://me:s3cr@et@example.org:8080/a", "https://example.org:8080/a"),
        ("https://example.org/a?private_token=s3cret#s3cret", "https://example.org/a"),
        ("ssh://git:s3cret@example.org:22/a.git", "ssh://git@example.org:22/a.git"),
        ("ssh://git@example.org/a.git", "ssh://git@example.org/a.git"),
        ("git+ssh://git@example.org/a.git", "git+ssh://git@example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("me:s3cret@example.org:a/b.git", "example.org:a/b.git"),
        ("odd::https://s3cret@example.org/a", "odd::https://example.org/a"),
        ("/srv/git/a@b.git", "/srv/git/a@b.git"),
        ("../a:b@c.git", "../a:b@c.git"),
        ("file:///srv/a.git", "file:///srv/a.git"),
    ],
)
def test_addresses_lose_their_passwords(address, shown):
    assert without_credentials(address) == shown


def test_no_repository_a_broken_one_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for make in (lambda: None, lambda: (tmp_path / ".git").write_text("gitdir: /nowhere\n")):
        make()
        assert (git_state(tmp_path), diff(tmp_path)) == (None, None)
    assert git_state(tmp_path / "nowhere") is None
    assert diff(tmp_path / "nowhere") is None


def test_a_bare_repository(repository, tmp_path_factory):
    bare = tmp_path_factory.mktemp("bare")
    git(bare, "clone", "--bare", repository, ".")
    state = git_state(bare)
    assert (state["commit"], state["dirty"]) == (git(repository, "rev-parse", "HEAD"), False)
    assert diff(bare) is None


def test_a_damaged_repository(repository):
    (repository / "model.py").write_text("units = 4\n")
    (repository / ".git" / "index").write_bytes(b"damaged")
    state = git_state(repository)
    assert (state["branch"], state["dirty"]) == ("work", None)
    assert diff(repository) is None


@pytest.mark.parametrize("content", [b"", b"x = 1\n", b"[[[", b"[core]\n\tx = \xff\xfe"])
@pytest.mark.parametrize("file", ["HEAD", "config"])
def test_nothing_that_a_damaged_repository_holds_stops_a_run(repository, file, content):
    (repository / ".git" / file).write_bytes(content)
    git_state(repository)
    diff(repository)


def test_no_git_program(repository, monkeypatch):
    import git as library

    monkeypatch.setenv("PATH", str(repository))
    monkeypatch.setattr(library.Git, "GIT_PYTHON_GIT_EXECUTABLE", "git")
    assert git_state(repository) is None
    assert diff(repository) is None


def test_no_git_program_in_a_fresh_process(repository):
    code = "from pipefit.execution import provenance as p; print(p.program()['git'], p.diff())"
    environment = {**os.environ, "PATH": str(repository), "PYTHONPATH": str(Path.cwd())}
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "None None\n", found.stderr


def test_the_program_names_versions_and_host(repository):
    found = program(repository)
    versions = found["versions"]
    assert any(name.startswith("tensorflow") for name in versions), versions
    assert {"pipefit", "keras", "numpy", "luigi", "pymongo"} <= versions.keys()
    assert found["git"]["branch"] == "work" and found["host"] and found["python"].startswith("3.")


def test_packages_that_the_process_has_loaded_are_named(repository, monkeypatch):
    site = repository / "site"
    (site / "odd_model").mkdir(parents=True)
    (site / "odd_model" / "__init__.py").touch()
    information = site / "Odd_Model-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: Odd_Model\nVersion: 1.2\n")
    (information / "top_level.txt").write_text("odd_model\n")
    monkeypatch.syspath_prepend(site)
    provenance._distributions.cache_clear()

    assert "odd-model" not in program(repository)["versions"]
    import odd_model  # noqa: F401

    assert program(repository)["versions"]["odd-model"] == "1.2"
    provenance._distributions.cache_clear()
