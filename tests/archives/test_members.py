"""Reading the files of an archive in place: the same rules as for unpacking, nothing unpacked."""

import io
import os
import stat
import struct
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from archive_helpers import tar_of

from pipefit.archives import open_members, remembered
from pipefit.errors import ArchiveError

FILES = {"./top.txt": b"one", "sub//deep/data.bin": os.urandom(3000), "sub/empty": b""}
CLEAN = {"top.txt": FILES["./top.txt"], "sub/deep/data.bin": FILES["sub//deep/data.bin"]}
NAMES = ("sub/deep/data.bin", "sub/empty", "top.txt")


def zip_of(files: dict[str, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_with(member: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(member)
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "archive"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    "data",
    [tar_of(FILES, "w"), zip_of(FILES), zip_of(FILES, zipfile.ZIP_STORED)],
    ids=["tar", "zip", "stored zip"],
)
def test_names_and_bytes(data, write, tmp_path):
    members = open_members(write(data))
    assert members.names == NAMES
    for name, content in CLEAN.items():
        assert members.read(name) == content
    assert members.read("sub/empty") == b""
    with pytest.raises(KeyError):
        members.read("sub")
    members.close()
    with pytest.raises(ArchiveError, match=r"'top\.txt' cannot be read"):
        members.read("top.txt")


@pytest.mark.parametrize(
    "data", [tar_of(FILES, "w"), zip_of(FILES, zipfile.ZIP_STORED)], ids=["tar", "stored zip"]
)
def test_where_the_bytes_lie(data, write):
    members = open_members(write(data))
    for name, whole in CLEAN.items():
        offset, size = members.place(name)
        assert data[offset : offset + size] == whole
    members.close()


def test_compressed_bytes_lie_nowhere_nor_do_those_of_a_directory_that_lies(write):
    assert open_members(write(zip_of(FILES))).place("sub/deep/data.bin") is None
    data = zip_of({"a": b"1", "b": b"2"}, zipfile.ZIP_STORED)
    second = data.rindex(b"PK\x03\x04")
    path = write(data[:second] + b"no" + data[second + 2 :])
    with pytest.raises(ArchiveError, match="not where the directory says"):
        open_members(path).place("b")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names(form, write):
    names = {"d" * 150 + "/" + "f" * 150: b"long", "Größe/日本.txt": b"foreign"}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as tar:
        for name, content in names.items():
            info = member(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    members = open_members(write(data.getvalue()))
    assert {name: members.read(name) for name in members.names} == names


@pytest.mark.parametrize("make", [lambda f: tar_of(f, "w"), zip_of], ids=["tar", "zip"])
def test_many_threads_read_at_once(make, write):
    files = {f"{i}.bin": os.urandom(2000 + i) for i in range(300)}
    members = open_members(write(make(files)))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(members.read, list(files) * 5)) == list(files.values()) * 5


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (member("../out"), r"'\.\./out' has '\.\.' in its name"),
        (member("/etc/passwd"), "has an absolute name"),
        (member("a\\b"), "has a backslash"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "'link' is a symbolic link"),
        (member("link", tarfile.LNKTYPE, "other"), "'link' is a hard link"),
        (member("null", tarfile.CHRTYPE), "'null' is a device"),
        (member("pipe", tarfile.FIFOTYPE), "'pipe' is a named pipe"),
    ],
)
def test_hostile_members_of_a_tar_are_refused(info, problem, write):
    path = write(tar_with(info))
    with pytest.raises(ArchiveError, match=problem) as error:
        open_members(path)
    assert str(path) in str(error.value)


def test_a_member_that_stands_twice_is_refused(write):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(member("a"))
        tar.addfile(member("./a"))
    with pytest.raises(ArchiveError, match="stands twice"):
        open_members(write(data.getvalue()))


def test_hostile_members_of_a_zip_are_refused(write):
    with pytest.raises(ArchiveError, match=r"has '\.\.' in its name"):
        open_members(write(zip_of({"../out": b""})))
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(ArchiveError, match="is a symbolic link"):
        open_members(write(zip_of({link: b"/etc/passwd"})))


def test_a_zip_member_that_expands_without_measure_is_refused(write):
    zeros = bytes(2**21)
    with pytest.raises(ArchiveError, match="expands to 2097152 bytes, more than 200 times"):
        open_members(write(zip_of({"bomb": zeros})))
    assert open_members(write(zip_of({"zeros": zeros}, zipfile.ZIP_STORED))).read("zeros") == zeros


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_compressed_tar_is_refused_with_what_to_do(mode, write):
    with pytest.raises(
        ArchiveError, match=r"compressed as a whole.* unpack it .*or make it a plain"
    ):
        open_members(write(tar_of(FILES, mode)))


@pytest.mark.parametrize("data", [b"", b"no archive" * 200, tar_of(FILES, "w")[:1700]])
def test_what_is_no_whole_archive(data, write):
    with pytest.raises(ArchiveError, match="not a whole tar or zip archive"):
        open_members(write(data))


def test_damage_inside_a_zip_is_found_when_it_is_read(write):
    data = bytearray(zip_of({"a": b"x" * 5000}, zipfile.ZIP_STORED))
    data[1000] ^= 1
    members = open_members(write(bytes(data)))
    with pytest.raises(ArchiveError, match=r"archive: 'a' cannot be read: Bad CRC-32"):
        members.read("a")


def test_an_archive_that_shrinks_is_noticed(write):
    path = write(tar_of({"a": bytes(50_000)}, "w"))
    members = open_members(path)
    os.truncate(path, 20_000)
    with pytest.raises(ArchiveError, match="'a' ends early"):
        members.read("a")


def test_a_forged_size_is_no_whole_archive(write):
    data = bytearray(tar_of({"a": b"1"}, "w"))
    data[124:136] = b"77777777777\0"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(ArchiveError, match="not a whole tar or zip archive"):
        open_members(write(bytes(data)))


def test_no_file_no_rights(tmp_path):
    with pytest.raises(ArchiveError, match="cannot be read: No such file"):
        open_members(tmp_path / "absent.tar")


class TestTheIndex:
    """It is kept until the archive changes."""

    def test_is_built_once(self, write, tmp_path):
        path = write(tar_of({"a": b"1", "b": b"22"}, "w"))
        open_members(path)
        [entry] = (tmp_path / "home" / "cache" / "indexes").iterdir()
        entry.write_text('{"b": [1536, 2]}')
        assert open_members(path).names == ("b",)
        assert open_members(path).read("b") == b"22"

    def test_is_built_anew_for_another_archive(self, write):
        assert open_members(write(tar_of({"a": b"1"}, "w"))).names == ("a",)
        assert open_members(write(tar_of({"b": b"1", "c": b""}, "w"))).names == ("b", "c")

    def test_an_empty_entry_is_not_believed(self, write, tmp_path):
        path = write(tar_of({"a": b"1"}, "w"))
        open_members(path)
        [entry] = (tmp_path / "home" / "cache" / "indexes").iterdir()
        entry.write_text("")
        assert open_members(path).names == ("a",)

    def test_does_without_a_cache(self, write, tmp_path):
        (tmp_path / "home").write_text("a file, not a folder")
        assert open_members(write(tar_of({"a": b"1"}, "w"))).read("a") == b"1"


def test_what_is_found_while_a_file_changes_is_not_kept(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")

    def find():
        path.write_text("other")
        return "found"

    assert remembered("things", {"file": path}, find) == "found"
    assert remembered("things", {"file": path}, lambda: "again") == "again"
    assert remembered("things", {"file": path}, lambda: "not called") == "again"


def test_a_zip_whose_directory_lies(write):
    data = bytearray(zip_of({"a": b"12345"}, zipfile.ZIP_STORED))
    where = data.index(b"PK\x01\x02")
    data[where + 24 : where + 28] = struct.pack("<I", 3)
    members = open_members(write(bytes(data)))
    with pytest.raises(ArchiveError, match="'a' cannot be read"):
        members.read("a")
