"""Addresses of tfutils' collections.

>>> split("mongodb://me:secret@db.example.org:27017/tfutils_db/digits?authSource=admin")[1:]
('tfutils_db', 'digits')
"""

from __future__ import annotations

from typing import NamedTuple

from pipefit.errors import StoreError


class Address(NamedTuple):
    """A connection string with a collection, read: `uri` is the database's, with all its secrets.

    Names that it does not have are "".
    """

    uri: str
    database: str
    collection: str


def split(uri: str) -> Address:
    """The parts of mongodb://HOST:PORT/DATABASE/COLLECTION.

    Raises:
        StoreError: it is no such address; the message has nothing of it, as it may have a password.
    """
    scheme, _, rest = uri.partition("://")
    location, mark, query = rest.partition("?")
    authority, *names = location.split("/")
    # A password with an unescaped slash would be read as a name.
    if scheme not in ("mongodb", "mongodb+srv") or not authority or "@" in "".join(names):
        raise _unreadable()
    names += ["", ""]
    if any(names[2:]):
        raise _unreadable()
    return Address(f"{scheme}://{authority}/{names[0]}{mark}{query}", names[0], names[1])


def _unreadable() -> StoreError:
    return StoreError(
        "the address of the tfutils collection cannot be read: write "
        "mongodb://USER:PASSWORD@HOST:PORT/DATABASE/COLLECTION, and any of / : @ ? % in the user's "
        "name or the password as %2F %3A %40 %3F %25"
    )
