import uuid

import pymongo
import pytest
from proxy import Proxy
from pymongo import monitoring
from recorder import RECORDER

from pipefit.store import open_store, server

pytest.register_assert_rewrite(
    "contract",
    "contract_checkpoints",
    "contract_garbage",
    "contract_leases",
    "contract_plain",
    "contract_reading",
    "contract_records",
    "contract_results",
    "contract_rewind",
    "contract_stories",
    "contract_taking_up",
    "contract_transfer",
    "contract_values",
)

# Before any client is made: clients know the listeners that there are when they are made.
monitoring.register(RECORDER)


@pytest.fixture
def database(database_uri):
    """The database of `store`, to look into it and to damage it."""
    with pymongo.MongoClient(database_uri, tz_aware=True) as client:
        yield client.get_default_database()


@pytest.fixture
def address(store, request):
    """Where another process finds `store`."""
    shown = store.describe()
    return shown if shown.startswith("file:") else request.getfixturevalue("database_uri")


@pytest.fixture
def proxy(database_uri):
    """A way to the database of `store` that can be cut."""
    through = Proxy(database_uri)
    yield through
    through.close()


@pytest.fixture(params=["mongodb", "folder"])
def elsewhere(request, mongo_uri, tmp_path):
    """An empty store of each kind, beside `store`."""
    if request.param == "folder":
        yield open_store((tmp_path / "elsewhere").as_uri())
        return
    name = f"test-{uuid.uuid4().hex}"
    yield open_store(mongo_uri.replace(f"/{server.DATABASE}?", f"/{name}?"))
    with pymongo.MongoClient(mongo_uri) as client:
        client.drop_database(name)
