"""The store in a folder: the contract, and what only a folder shows."""

import pytest
from contract import StoreContract

from pipefit.store import open_store


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "results").as_uri())


class TestLocalStore(StoreContract):
    pass
