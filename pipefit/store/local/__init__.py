"""The store in a folder.

store = LocalStore(folder_of("file:///home/me/results"))
"""

from pipefit.store.local.address import folder_of
from pipefit.store.local.store import LocalStore

__all__ = ["LocalStore", "folder_of"]
