"""Opening a file or folder with weights, whatever its kind: `open_file`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pipefit import archives
from pipefit.errors import ArchiveError, LoadError, without_passwords
from pipefit.loading import keras3, npz, safetensors_files, tensorflow_files
from pipefit.loading.apart import Apart
from pipefit.loading.base import Source
from pipefit.loading.filesource import Kind, Origin, listed, zip_names
from pipefit.loading.keras_hdf5 import KIND as KERAS_HDF5

#: Opens a checkpoint of TensorFlow by its prefix; the second argument is its label.
OpenBundle = Callable[[Path, str], Source]

_KINDS: tuple[Kind, ...] = (*safetensors_files.KINDS, npz.KIND, keras3.KIND, KERAS_HDF5)

#: What can be opened, in words.
KNOWN_KINDS = (
    *(kind.name for kind in _KINDS),
    *tensorflow_files.NAMES,
    "tar, tar.gz, tar.bz2, tar.xz or zip archive of one of these",
)

_BEGINNING = 512
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")
# Of a folder no more files are looked at.
_MOST_FILES = 10_000


def open_file(
    path: str | os.PathLike[str],
    *,
    member: str | None = None,
    sha256: str | None = None,
    base: Path | None = None,
    bundle: OpenBundle | None = None,
) -> Source:
    """Open a file, a folder or an archive with weights; its kind is told by what is in it.

    Args:
        path: of a file, of a folder with one checkpoint, of a TensorFlow checkpoint without the
            endings of its files, or an address that `pipefit.archives.fetch` knows.
        member: which of several in the folder or archive: its path there.
        sha256: of the file. Needed for an address; of a local file it is verified.
        base: where a relative path is looked for when it is not in the current folder.
        bundle: opens checkpoints of TensorFlow; None: they are refused.

    Raises:
        LoadError: it is not there, is damaged or hostile, of no known kind, or there are several.
        ArchiveError: it cannot be fetched.
    """
    text = os.fspath(path)
    if "://" in text:
        shown = without_passwords(text.partition("?")[0])
        if sha256 is None:
            raise LoadError(
                f"path = {shown!r} is an address: give the sha256 of the file as well "
                "(`sha256sum FILE` prints it), for what lies there may change"
            )
        place, origin = archives.fetch(text, sha256, base), Origin(shown, sha256.lower())
    else:
        place = _existing(text, base)
        origin = Origin(text, _verified(place, text, sha256))
    return _Opening(bundle).open(place, origin, member)


def _existing(text: str, base: Path | None) -> Path:
    given = Path(text).expanduser()
    places = [given] if base is None or given.is_absolute() else [given, base / given]
    for place in places:
        if place.exists() or tensorflow_files.is_prefix(place):
            return place
    tried = " nor ".join(str(place) for place in places)
    raise LoadError(
        f"path = {text!r}: there is no {tried}; give the path of a file or folder with weights, "
        "relative to the current folder or to the experiment file, or an address"
    )


def _verified(place: Path, text: str, sha256: str | None) -> str | None:
    """The sha256 that was given, if it is that of the file."""
    if sha256 is None:
        return None
    if not place.is_file():
        raise LoadError(
            f"path = {text!r} is not one file, so it has no sha256; leave sha256 out, or put it "
            "into an archive"
        )
    if (found := _digest(place, text)) != sha256.lower():
        raise LoadError(
            f"path = {text!r} has sha256 {found}, expected {sha256}; if this is the file you mean "
            "set its sha256, else it is damaged or was changed"
        )
    return found


def _digest(place: Path, text: str) -> str:
    """The sha256 of a file, read once and remembered until the file changes."""

    def find() -> str:
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    try:
        return archives.remembered("digests-of-weights", {place.name: place}, find)
    except OSError as error:
        raise _unreadable(text, error) from error


def _unreadable(label: str, error: OSError) -> LoadError:
    return LoadError(f"{label} cannot be read: {error.strerror or error}; check its permissions")


class _Opening:
    """One call of `open_file`."""

    def __init__(self, bundle: OpenBundle | None):
        self._bundle = bundle

    def open(self, place: Path, origin: Origin, member: str | None) -> Source:
        try:
            if place.is_dir():
                return self._folder(place, origin, member)
            if place.is_file() and _is_archive(place, _beginning(place)):
                digest = origin.digest or _digest(place, origin.label)
                archives.fetch(os.fspath(place), digest)
                inside = archives.unpack(digest)
                return self._folder(inside, Origin(origin.label, digest), member)
            if member is not None:
                raise LoadError(
                    f"member = {member!r}: {origin.label} is neither folder nor archive; leave "
                    "member out"
                )
            if not (place.is_file() or tensorflow_files.is_prefix(place)):
                raise LoadError(f"{origin.label} is neither a file nor a folder")
            return self._file(place, origin)
        except OSError as error:
            raise _unreadable(origin.label, error) from error
        except ArchiveError as error:  # it knows the archive by its place in the cache
            raise LoadError(f"{origin.label} cannot be opened: {error}") from error

    def _folder(self, folder: Path, origin: Origin, member: str | None) -> Source:
        if member is None:
            found = list(_inside(folder))
            if len(found) != 1:
                raise _not_one(folder, origin, found)
            member = found[0]
        parts = Path(member).parts
        place = folder / member
        if Path(member).is_absolute() or ".." in parts or not _is_checkpoint(place):
            raise LoadError(
                f"member = {member!r}: there is no such checkpoint in {origin.label}; there is "
                f"{listed(_inside(folder))}"
            )
        inner = origin if member == "." else origin.of(member)
        if place.is_dir() and keras3.is_folder(place):
            return Apart("folder", place, inner)
        prefix = tensorflow_files.prefix_in(place) if place.is_dir() else None
        return self._tensorflow(prefix, inner) if prefix else self._file(place, inner)

    def _file(self, place: Path, origin: Origin) -> Source:
        if tensorflow_files.is_prefix(place):
            return self._tensorflow(place, origin)
        start = _beginning(place)
        if kind := _kind(place, start):
            return kind.open(place, origin)
        if prefix := tensorflow_files.prefix_of(place):
            return self._tensorflow(prefix, origin)
        raise _unknown(place, start, origin)

    def _tensorflow(self, prefix: Path, origin: Origin) -> Source:
        if self._bundle is None:
            raise LoadError(
                f"{origin.label} is a checkpoint of TensorFlow, which only TensorFlow reads: load "
                "it in a run, or pass what opens it (bundle)"
            )
        source = self._bundle(prefix, origin.label)
        source.digest = origin.digest
        return source


def _beginning(place: Path) -> bytes:
    with place.open("rb") as file:
        return file.read(_BEGINNING)


def _kind(place: Path, start: bytes) -> Kind | None:
    return next((kind for kind in _KINDS if kind.matches(place, start)), None)


def _is_archive(place: Path, start: bytes) -> bool:
    if start.startswith(_COMPRESSED) or start[257:262] == b"ustar":
        return True
    members = zip_names(place, start)
    return bool(members) and not _is_pickled(start, members) and _kind(place, start) is None


def _is_pickled(start: bytes, members: Collection[str]) -> bool:
    """Whether a file is one of PyTorch, or another that is read by running it."""
    protocol = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return protocol or any(name.endswith("/data.pkl") for name in members)


def _inside(folder: Path) -> Iterator[str]:
    """The checkpoints in a folder: their paths there, "." for one that is the folder itself."""
    looked_at = 0
    for root, folders, files in os.walk(folder):
        folders.sort()
        here = Path(root)
        if keras3.is_folder(here) or tensorflow_files.prefix_in(here):
            yield here.relative_to(folder).as_posix()
            # What else a training keeps there is asked for by name.
            folders.clear()
            continue
        for name in sorted(files):
            looked_at += 1
            if looked_at > _MOST_FILES:
                return
            if _is_one(here / name):
                yield (here / name).with_name(_asked_by(name)).relative_to(folder).as_posix()


def _asked_by(name: str) -> str:
    """The name of a file; of a checkpoint of TensorFlow that of all its files."""
    return name.removesuffix(".index")


def _is_one(place: Path) -> bool:
    """Whether a file is a checkpoint, rather than a part of one."""
    name = place.name
    if not place.is_file() or safetensors_files.PART.search(name):
        return False
    if tensorflow_files.PART.search(name):
        return name.endswith(".index") and tensorflow_files.prefix_of(place) is not None
    return _kind(place, _beginning(place)) is not None or bool(tensorflow_files.prefix_of(place))


def _is_checkpoint(place: Path) -> bool:
    if place.is_dir():
        return keras3.is_folder(place) or tensorflow_files.prefix_in(place) is not None
    return place.is_file() or tensorflow_files.is_prefix(place)


def _not_one(folder: Path, origin: Origin, found: Collection[str]) -> LoadError:
    if found:
        return LoadError(
            f"{origin.label} holds {len(found)} checkpoints; name one of them by "
            f"member: {listed(found)}"
        )
    names = [entry.name for entry in folder.iterdir()]
    return LoadError(
        f"{origin.label} holds nothing that can be loaded, only {listed(names)}; known are: "
        f"{'; '.join(KNOWN_KINDS)}"
    )


def _unknown(place: Path, start: bytes, origin: Origin) -> LoadError:
    if _is_pickled(start, zip_names(place, start)):
        return LoadError(
            f"{origin.label} is a pickle, perhaps of PyTorch: reading it would run what it says; "
            "save its tensors as safetensors or .npz where it is trusted"
        )
    if tensorflow_files.PART.search(place.name):
        name = tensorflow_files.PART.sub("", place.name)
        return LoadError(
            f"{origin.label} is a part of a checkpoint of TensorFlow; give the path without the "
            f"ending, .../{name}, with all its files there"
        )
    return LoadError(
        f"{origin.label} is of no kind that can be loaded (it begins with {start[:16]!r}); known "
        f"are: {'; '.join(KNOWN_KINDS)}"
    )
