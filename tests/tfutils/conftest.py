"""A database that the real tfutils wrote, in the MongoDB server of the tests.

`dump` has it as `mongodump` would write it: the BSON documents of every collection, one file each.
"""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from tfutils_dump import Restored

DIGITS = Path(__file__).parents[2] / "configs" / "archives" / "optdigits.tar.gz"


@pytest.fixture(scope="module")
def old(mongo_uri):
    """The database, to be read only."""
    restored = Restored(mongo_uri)
    yield restored
    restored.drop()


@pytest.fixture
def changed(mongo_uri):
    """A database of this test alone, to be changed."""
    restored = Restored(mongo_uri)
    yield restored
    restored.drop()


@pytest.fixture(scope="session")
def last_digits():
    """The last 360 digits: pixels between 0 and 1 of shape [360, 64], and labels."""
    with tarfile.open(DIGITS) as archive:
        table = np.loadtxt(archive.extractfile("optdigits.csv"), delimiter=",")
    return table[-360:, :64] / 16, table[-360:, 64].astype(int)
