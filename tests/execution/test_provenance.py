"""What produced a run is recorded in every state that a folder of code can be in."""

import subprocess

import pytest

from pipefit.execution.provenance import git_state, program


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
    expected = {"commit": commit, "branch": "work", "dirty": False}
    assert git_state(repository / "sub") == expected
    (repository / "unknown.txt").touch()
    assert git_state(repository) == expected
    (repository / "model.py").write_text("units = 4\n")
    assert git_state(repository) == {**expected, "dirty": True}


def test_a_detached_head_has_no_branch(repository):
    git(repository, "checkout", "--detach")
    state = git_state(repository)
    assert state["branch"] is None and state["commit"] == git(repository, "rev-parse", "HEAD")


def test_a_repository_without_a_commit(tmp_path):
    git(tmp_path, "init", "-b", "work")
    assert git_state(tmp_path) == {"commit": None, "branch": "work", "dirty": False}


def test_no_repository_a_broken_one_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "nowhere") is None


def test_no_git_program(repository, monkeypatch):
    import git as library

    monkeypatch.setenv("PATH", str(repository))
    monkeypatch.setattr(library.Git, "GIT_PYTHON_GIT_EXECUTABLE", "git")
    assert git_state(repository) is None


def test_the_program_names_versions_and_host(repository):
    found = program(repository)
    versions = found["versions"]
    assert any(name.startswith("tensorflow") for name in versions), versions
    assert {"pipefit", "keras", "numpy", "luigi", "pymongo"} <= versions.keys()
    assert found["git"]["branch"] == "work" and found["host"] and found["python"].startswith("3.")
