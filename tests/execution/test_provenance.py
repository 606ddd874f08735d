"""What is recorded of the program that trained a run."""

import subprocess

from pipefit.execution.provenance import git_state, program


def test_the_versions_of_what_decides_the_numbers_are_recorded():
    versions = program()["versions"]
    assert any(name.startswith("tensorflow") for name in versions), versions
    assert {"pipefit", "keras", "numpy"} <= versions.keys()


def git(folder, *words):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    done = subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_git_state_is_recorded_on_a_branch_detached_changed_and_without_any(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "--quiet", "--initial-branch", "work")
    assert git_state(tmp_path) == {"commit": None, "branch": "work", "dirty": False}
    (tmp_path / "model.py").write_text("first")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "branch": "work", "dirty": False}
    (tmp_path / "model.py").write_text("second")
    git(tmp_path, "checkout", "--quiet", "--detach")
    below = tmp_path / "experiments"
    below.mkdir()
    assert git_state(below) == {"commit": commit, "branch": None, "dirty": True}
