import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Path:
    """A folder with what real programs have saved; see make_files.py."""
    folder = tmp_path_factory.mktemp("weights")
    with tarfile.open(Path(__file__).parent / "files" / "weights.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder
