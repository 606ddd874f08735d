"""Unpacking: whole folders only, and nothing from a hostile archive."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import signal
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import pytest
from archive_helpers import python, sha256, tar_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipefit import archives
from pipefit.archives import cache as cache_module
from pipefit.errors import ArchiveError

FILES = {"top.txt": b"one", "sub/deep/data.bin": os.urandom(3000), "sub/empty": b""}
UNPACK = "import sys; from pipefit import archives; archives.unpack(sys.argv[1])"


def zip_of(files: dict[str | zipfile.ZipInfo, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def put(data: bytes, folder: Path) -> str:
    """Put an archive into the cache and return its hash."""
    path = folder / "archive"
    path.write_bytes(data)
    archives.fetch(str(path), sha256(data))
    path.unlink()
    return sha256(data)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_refused(data: bytes, tmp_path: Path, message: str, *limits: archives.Limits) -> None:
    """The archive is refused, and afterwards there is nothing but the archive."""
    digest = put(data, tmp_path)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ArchiveError, match=message) as error:
        archives.unpack(digest, *limits)
    assert digest in str(error.value)
    assert archives.unpacked(digest) is None
    assert set(tmp_path.rglob("*")) == before


ALL_FORMATS = {
    "tar": tar_of(FILES, "w"),
    "tar.gz": tar_of(FILES, "w:gz"),
    "tar.bz2": tar_of(FILES, "w:bz2"),
    "tar.xz": tar_of(FILES, "w:xz"),
    "zip": zip_of(FILES),
    "stored zip": zip_of(FILES, zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("data", ALL_FORMATS.values(), ids=ALL_FORMATS)
def test_formats(data, tmp_path, cache):
    digest = put(data, tmp_path)
    assert archives.unpacked(digest) is None
    folder = archives.unpack(digest)
    assert contents(folder) == FILES
    assert archives.unpacked(digest) == folder == archives.unpack(digest)
    assert not list(cache.glob(".*"))


def test_names_with_dots_slashes_and_folders_given_twice(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name in (".", "./a", "./a/", "a//b"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            tar.addfile(member)
        member = tarfile.TarInfo("./a//b/./c")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"c"))
    folder = archives.unpack(put(data.getvalue(), tmp_path))
    assert contents(folder) == {"a/b/c": b"c"}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names(form, tmp_path):
    names = ["d" * 150 + "/" + "f" * 150, "Größe/日本.txt"]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    assert set(contents(archives.unpack(put(data.getvalue(), tmp_path)))) == set(names)


def test_modes_owners_and_times_are_not_taken_over(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        member = tarfile.TarInfo("tool")
        member.mode, member.uid, member.gid, member.mtime = 0o6777, 12345, 12345, 1
        tar.addfile(member)
    path = archives.unpack(put(data.getvalue(), tmp_path)) / "tool"
    found = path.stat()
    assert found.st_uid == os.geteuid() and found.st_mtime > 1
    assert stat.S_IMODE(found.st_mode) & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR) == 0


def tar_with(name: str, size: int = 0, everywhere=None, **attributes) -> bytes:
    """A tar archive with one good file and one odd member; `everywhere`: headers for both."""
    data = io.BytesIO()
    form = {"format": tarfile.PAX_FORMAT, "pax_headers": everywhere}
    with tarfile.open(fileobj=data, mode="w", **form) as tar:
        tar.addfile(tarfile.TarInfo("good"))
        member = tarfile.TarInfo(name)
        member.size = size
        for key, value in attributes.items():
            setattr(member, key, value)
        tar.addfile(member, io.BytesIO(bytes(size)))
    return data.getvalue()


def old_sparse_tar() -> bytes:
    """A GNU sparse file that claims 2**30 bytes for none."""
    header = bytearray(tar_with("a", type=tarfile.GNUTYPE_SPARSE)[512:1024])
    header[257:265] = tarfile.GNU_MAGIC
    header[345:512] = bytes(167)
    header[483:495] = b"%011o\0" % 2**30
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


HOSTILE = {
    "parent": (tar_with("../evil"), "has '..' in its name"),
    "parent inside": (tar_with("a/../../evil"), "has '..' in its name"),
    "absolute": (tar_with("/tmp/evil"), "has an absolute name"),
    "backslash": (tar_with("..\\evil"), "has a backslash"),
    "drive": (tar_with("c:evil"), "has an absolute name"),
    "no name": (tar_with("."), "is a file without a name"),
    "long name": (tar_with("x/" * 3000), "has a name of"),
    "symlink": (tar_with("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a symbolic link"),
    "inner symlink": (tar_with("a", type=tarfile.SYMTYPE, linkname="good"), "is a symbolic link"),
    "hard link": (tar_with("a", type=tarfile.LNKTYPE, linkname="../../x"), "is a hard link"),
    "device": (tar_with("a", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "is a device"),
    "block device": (tar_with("a", type=tarfile.BLKTYPE, devmajor=8), "is a device"),
    "fifo": (tar_with("a", type=tarfile.FIFOTYPE), "is a named pipe"),
    "unknown type": (tar_with("a", type=b"Z"), "is of the unknown type"),
    "sparse": (tar_with("a", pax_headers={"GNU.sparse.map": "0,1"}), "is a sparse file"),
    "claimed size": (tar_with("a", pax_headers={"GNU.sparse.realsize": "9"}), "is a sparse file"),
    "negative size": (tar_with("a", pax_headers={"size": "-512"}), "of -512 bytes"),
    "twice": (tar_with("good"), "stands twice"),
    "other case": (tar_with("GOOD"), "have one name where case or accents do not count"),
    "folder and file": (tar_with("good/x"), "needs 'good' as a file and as a folder"),
    "file and folder": (tar_with("good", type=tarfile.DIRTYPE), "as a file and as a folder"),
    "size for all": (tar_with("a", everywhere={"size": "5000"}), "inside the one before"),
    "old sparse": (old_sparse_tar(), "is a sparse file"),
    "huge header": (tar_with("a", pax_headers={"x": "y" * 10**6}), "bytes of headers"),
}


@pytest.mark.parametrize("data, message", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tar(data, message, tmp_path):
    assert_refused(data, tmp_path, message)


def test_names_equal_after_unicode_normalisation(tmp_path):
    assert_refused(tar_of({"\u00e9": b"", "e\u0301": b""}), tmp_path, "case or accents")
    assert_refused(tar_of({"Stra\u00dfe/a": b"", "STRASSE/b": b""}), tmp_path, "case or accents")


def zip_info(name: str, **attributes) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def encrypted_zip() -> bytes:
    data = bytearray(zip_of({"a": b"x"}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    return bytes(data)


HOSTILE_ZIPS = {
    "parent": (zip_of({"../evil": b""}), "has '..' in its name"),
    "absolute": (zip_of({"/tmp/evil": b""}), "has an absolute name"),
    "backslash": (zip_of({"..\\evil": b""}), "has a backslash"),
    "drive": (zip_of({"C:/evil": b""}), "has an absolute name"),
    "zero byte": (zip_of({"aQevil": b""}).replace(b"aQevil", b"a\0evil"), "a zero byte"),
    "symlink": (
        zip_of({zip_info("a", external_attr=(stat.S_IFLNK | 0o777) << 16): b"/etc/passwd"}),
        "is a symbolic link",
    ),
    "fifo": (zip_of({zip_info("a", external_attr=stat.S_IFIFO << 16): b""}), "is a special file"),
    "encrypted": (encrypted_zip(), "is encrypted"),
    "bzip2": (zip_of({"a": b"x" * 100}, zipfile.ZIP_BZIP2), "method 12, not stored or deflated"),
    "other case": (zip_of({"a/x": b"", "A/y": b""}), "case or accents"),
    "folder and file": (zip_of({"a": b"", "a/b": b""}), "as a file and as a folder"),
}


def test_the_second_name_of_a_zip_member_is_checked_where_python_reads_it(tmp_path):
    unicode_path = 0x7075
    extra = b"\1" + zlib.crc32(b"a").to_bytes(4, "little") + b"b\\c"
    extra = struct.pack("<HH", unicode_path, len(extra)) + extra
    digest = put(zip_of({zip_info("a", extra=extra): b""}), tmp_path)
    try:
        assert set(contents(archives.unpack(digest))) == {"a"}
    except ArchiveError as error:
        assert "has a backslash" in str(error)


@pytest.mark.parametrize("data, message", HOSTILE_ZIPS.values(), ids=HOSTILE_ZIPS)
def test_hostile_zip(data, message, tmp_path):
    assert_refused(data, tmp_path, message)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_refused_while_it_is_read(compress, tmp_path):
    bomb = compress(tar_of({"zeros": bytes(40 * 2**20)}, "w"))
    assert_refused(bomb, tmp_path, "more than 200 times its .* over the limit ratio = 200;")


def test_a_bomb_in_a_zip_is_refused_by_its_directory(tmp_path):
    assert_refused(zip_of({"zeros": bytes(40 * 2**20)}), tmp_path, "over the limit ratio = 200")


def test_a_bomb_of_headers_is_refused(tmp_path):
    """Header after header and no member, which tarfile would follow by recursion."""
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    assert_refused(header.tobuf() * 3000 + bytes(1024), tmp_path, "is not a whole tar")


def test_a_bomb_needs_little_memory(tmp_path):
    limit = "import sys, resource; resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28));"
    for bomb, message in (
        (tar_of({"a": bytes(2**27)}, "w"), "over the limit ratio = 200"),
        (tar_with("a", pax_headers={"x": "y" * 2**27}), "bytes of headers"),
    ):
        digest = put(gzip.compress(bomb), tmp_path)
        child = python(UNPACK.replace("import sys;", limit), digest)
        assert message in child.communicate(timeout=60)[1]


def test_limits_name_themselves_and_can_be_raised(tmp_path):
    data = tar_of({f"{i}": bytes(1000) for i in range(20)})
    small = archives.Limits(total_bytes=15_000)
    assert_refused(data, tmp_path, "more than 14.6 KiB, over the limit total_bytes = 15000", small)
    assert_refused(data, tmp_path, r"set max_bytes .*Limits\(total_bytes=...\)", small)
    few = archives.Limits(members=19)
    assert_refused(data, tmp_path, "more than 19 members, over .* = 19; .* set max_members", few)
    assert_refused(
        zip_of({"a": b"", "b": b""}), tmp_path, "members = 1;", archives.Limits(members=1)
    )
    assert archives.unpack(put(data, tmp_path), archives.Limits(members=20)).is_dir()
    with pytest.raises(ValueError, match="ratio = 0 must be larger than 0"):
        archives.Limits(ratio=0)


@pytest.mark.parametrize("form", ["tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_an_archive_cut_anywhere_is_refused(form, tmp_path, cache):
    data = ALL_FORMATS[form]
    for length in {0, 1, 100, len(data) // 2, len(data) - 9, len(data) - 1}:
        assert_refused(data[:length], tmp_path, "is not a whole tar")


def test_a_tar_cut_at_any_block_is_refused(tmp_path):
    data = tar_of(FILES, "w")
    last = len(data.rstrip(b"\0"))
    for length in range(0, last + 512, 512):
        assert_refused(data[:length], tmp_path, "is not a whole tar")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["tar", "tar.gz", "zip", "stored zip"]),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_bytes_give_files_or_an_archive_error(tmp_path, form, changes):
    data = bytearray(ALL_FORMATS[form])
    for position, byte in changes:
        data[position % len(data)] = byte
    digest = put(bytes(data), tmp_path)
    try:
        assert archives.unpack(digest) == archives.unpacked(digest)
    except ArchiveError:
        assert archives.unpacked(digest) is None


@pytest.mark.parametrize(
    "damage", ["missing", "shorter", "link", "manifest", "no manifest", "file"]
)
def test_a_damaged_folder_is_unpacked_again(damage, tmp_path, cache):
    digest = put(tar_of(FILES), tmp_path)
    folder = archives.unpack(digest)
    path, manifest = folder / "top.txt", folder.parent / "manifest.json"
    match damage:
        case "missing":
            path.unlink()
        case "shorter":
            path.write_bytes(b"on")
        case "link":
            path.rename(tmp_path / "moved")
            path.symlink_to(tmp_path / "moved")
        case "manifest":
            manifest.write_text(manifest.read_text()[:-1])
        case "no manifest":
            manifest.unlink()
        case "file":
            folder.parent.rename(tmp_path / "away")
            (cache / f"{digest}.unpacked").write_text("")
    assert archives.unpacked(digest) is None
    assert contents(archives.unpack(digest)) == FILES
    assert not list(cache.glob(".*"))


def test_a_whole_folder_is_left_alone(tmp_path):
    digest = put(tar_of(FILES), tmp_path)
    folder = archives.unpack(digest)
    before = folder.stat().st_ino
    archives.cached(digest).unlink()
    assert archives.unpack(digest).stat().st_ino == before


def test_without_the_archive_there_is_nothing_to_unpack():
    with pytest.raises(ArchiveError, match="is not in the cache"):
        archives.unpack("0" * 64)


def test_the_manifest_lists_the_files(tmp_path):
    digest = put(tar_of(FILES), tmp_path)
    manifest = json.loads((archives.unpack(digest).parent / "manifest.json").read_text())
    assert manifest == {"sha256": digest, "files": {k: len(v) for k, v in FILES.items()}}


def test_killed_in_the_middle_leaves_nothing_after_the_next_call(tmp_path, cache):
    files = {f"{i}": bytes([i % 256]) * 100 for i in range(4000)}
    digest = put(tar_of(files, "w"), tmp_path)
    child = python(UNPACK, digest)
    deadline = time.monotonic() + 60
    while not list(itertools.islice(cache.glob(".*.tmp/tree/files/*"), 1)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert archives.unpacked(digest) is None
    assert list(cache.glob(".*.tmp"))
    assert len(contents(archives.unpack(digest))) == len(files)
    assert not list(cache.glob(".*"))


def test_processes_that_unpack_at_once_agree(tmp_path, cache):
    digest = put(tar_of({f"{i}": b"x" for i in range(500)}), tmp_path)
    children = [python(UNPACK, digest) for _ in range(4)]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    assert len(contents(archives.unpacked(digest))) == 500


def test_without_locks_the_first_folder_stays(tmp_path, cache, monkeypatch):
    """Two processes work at once where there are no locks: the second keeps the first's folder."""
    digest = put(tar_of(FILES), tmp_path)
    (cache / f"{digest}.lock").unlink()
    (cache / f"{digest}.lock").mkdir()
    from pipefit.archives import unpacking

    build = unpacking._build

    def build_after_another(*args):
        monkeypatch.setattr(unpacking, "_build", build)
        other.append(archives.unpack(digest).stat().st_ino)
        build(*args)

    other = []
    monkeypatch.setattr(unpacking, "_build", build_after_another)
    assert archives.unpack(digest).stat().st_ino == other[0]
    assert not list(cache.glob(".*"))


def test_a_full_disk_leaves_nothing(tmp_path, cache):
    digest = put(tar_of({"a": os.urandom(300_000)}, "w:xz"), tmp_path)
    limit = "import sys, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
    _, err = python(UNPACK.replace("import sys;", limit), digest).communicate(timeout=60)
    assert "ArchiveError: no space for the archive: 293.0 KiB are needed" in err
    assert not list(cache.glob(".*")) and archives.unpacked(digest) is None


def test_the_shipped_archive_is_what_its_readme_says(cache):
    folder = Path(__file__).parent.parent.parent / "configs" / "archives"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    digest = sha256((folder / "optdigits.tar.gz").read_bytes())
    assert f"`{digest}`" in readme
    archives.fetch(str(folder / "optdigits.tar.gz"), digest)
    unpacked = archives.unpack(digest)
    assert "CC BY 4.0" in (unpacked / "README.txt").read_text()
    rows = [line.split(",") for line in (unpacked / "optdigits.csv").read_text().splitlines()]
    assert len(rows) == 1797 and {len(row) for row in rows} == {65}
    assert {int(pixel) for row in rows for pixel in row[:64]} == set(range(17))
    assert {int(row[64]) for row in rows} == set(range(10))


def test_abandoned_folders_count_by_their_newest_file(cache):
    cache.mkdir(parents=True)
    temp = cache / ".x.y.z.tmp"
    (temp / "deep").mkdir(parents=True)
    (temp / "deep" / "file").touch()
    os.utime(temp, (1, 1))
    os.utime(temp / "deep", (1, 1))
    assert cache_module._idle_seconds(temp) < 60
