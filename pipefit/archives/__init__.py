"""Archives of data sets and checkpoints: fetched once, verified by sha256, unpacked safely.

Everything lies in the `cache/archives` folder of `pipefit.settings.home()` and is found by the
sha256 of the archive, so the same archive from two addresses is one file. What stands under a
final name is whole and verified: it was written elsewhere in the cache and published by one rename.

    archive = archives.fetch("https://example.org/digits.tar.gz", sha256)
    folder = archives.unpack(sha256)

Instead of being unpacked, a plain tar or a zip archive can be read in place by `open_members`.

A path is copied into the cache too. Do not use it for what changes under one address: without the
hash of the bytes you mean there is nothing to verify.
"""

from pipefit.archives.cache import cached
from pipefit.archives.facts import remembered
from pipefit.archives.fetching import fetch
from pipefit.archives.inventory import Limits
from pipefit.archives.members import Members, open_members
from pipefit.archives.unpacking import unpack, unpacked

__all__ = [
    "Limits",
    "Members",
    "cached",
    "fetch",
    "open_members",
    "remembered",
    "unpack",
    "unpacked",
]
