"""What every store must do; `StoreContract` is run on each implementation.

An implementation gives a fixture `store`, an empty store. Nothing here knows how it is kept.
"""

from contract_checkpoints import CheckpointsContract
from contract_garbage import GarbageContract
from contract_leases import LeasesContract
from contract_plain import PlainContract
from contract_reading import ReadingContract
from contract_records import RecordsContract
from contract_results import ResultsContract
from contract_rewind import RewindContract
from contract_stories import StoriesContract
from contract_taking_up import TakingUpContract
from contract_transfer import TransferContract
from contract_values import ValuesContract


class StoreContract(
    LeasesContract,
    StoriesContract,
    RecordsContract,
    ValuesContract,
    CheckpointsContract,
    ReadingContract,
    PlainContract,
    ResultsContract,
    RewindContract,
    GarbageContract,
    TakingUpContract,
    TransferContract,
):
    """All of it."""
