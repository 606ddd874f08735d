"""Files decoded one by one: in a folder, in a tar, in a zip; and sets of files."""

import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipefit.data import content_digest, field_specs, files, open_files
from pipefit.errors import ArchiveError, DataError

CONTENTS = {
    "readme.txt": b"not data",
    "test/000.bin": b"\x07" * 8,
    **{f"train/{i:03}.bin": bytes([i]) * 8 for i in range(40)},
}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))


def write_folder(path: Path) -> Path:
    for name, data in CONTENTS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def write_tar(path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in reversed(CONTENTS.items()):
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in CONTENTS.items():
            archive.writestr(name, data)
    return path


@pytest.fixture(params=["folder", "tar", "zip"])
def place(request, tmp_path) -> Path:
    """The same files, packed or not."""
    write = {"folder": write_folder, "tar": write_tar, "zip": write_zip}[request.param]
    return write(tmp_path / "data")


def decode(name, data):
    return {"x": np.frombuffer(data, np.uint8), "number": data[0], "name": name}


class TestFileSets:
    def test_names_are_sorted_and_files_read(self, place):
        found = open_files(place)
        assert found.names == tuple(sorted(CONTENTS))
        assert {name: found.read(name) for name in found.names} == CONTENTS
        found.close()

    def test_a_folder_inside(self, place):
        found = open_files(f"{place}/train")
        assert found.names[:2] == ("000.bin", "001.bin") and len(found.names) == 40
        assert found.read("003.bin") == CONTENTS["train/003.bin"]
        assert str(found) == f"{place}/train"

    def test_no_such_file(self, place):
        with pytest.raises(DataError, match=r"absent"):
            open_files(place).read("absent")
        with pytest.raises(DataError, match=r"readme"):
            open_files(place / "train").read("readme.txt")

    def test_no_such_place(self, place, tmp_path):
        with pytest.raises(DataError, match=r"no such folder|holds no folder 'valid'; at its top"):
            open_files(place / "valid")
        with pytest.raises(DataError, match="there is no such folder, tar or zip archive"):
            open_files(tmp_path / "absent" / "deeper")

    def test_the_digest_is_of_the_contents(self, place, tmp_path):
        found = open_files(place)
        digest = found.digest(found.names)
        assert digest.startswith("sha256:") and digest == open_files(place).digest(found.names)
        assert open_files(place / "train").digest(["000.bin"]) != digest
        name = "train/007.bin"
        changed = {**CONTENTS, name: b"\x08" * 8}
        if place.is_dir():
            (place / name).write_bytes(changed[name])
        else:
            data = place.read_bytes()
            assert CONTENTS[name] in data
            place.write_bytes(data.replace(CONTENTS[name], changed[name]))
        assert open_files(place).digest(found.names) != digest

    def test_links_to_folders_are_followed_and_circles_are_not(self, tmp_path):
        folder = write_folder(tmp_path / "data")
        (folder / "again").symlink_to(folder / "train")
        (folder / "train" / "up").symlink_to(folder)
        (folder / "broken").symlink_to(folder / "nothing")
        names = open_files(folder).names
        assert "again/000.bin" in names and "train/000.bin" in names
        assert not any("up/" in name for name in names) and "broken" not in names

    @pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
    def test_a_compressed_tar_is_refused_with_what_to_do(self, mode, tmp_path):
        path = write_tar(tmp_path / "data.tar", mode)
        with pytest.raises(ArchiveError, match=r"compressed as a whole.*unpack it"):
            open_files(path)

    def test_a_hostile_tar_is_refused(self, tmp_path):
        info = tarfile.TarInfo("train/link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        with tarfile.open(tmp_path / "data.tar", "w") as tar:
            tar.addfile(info)
        with pytest.raises(ArchiveError, match="is a symbolic link"):
            files(tmp_path / "data.tar", decode=decode)


class TestFiles:
    def test_one_example_for_each_file_in_the_order_of_names(self, place):
        source = files(place, decode=decode, match="train/*.bin")
        assert len(source) == 40 and source.names[5] == "train/005.bin"
        fields = source.take(np.array([39, 5, 5]))
        assert fields["x"].tolist() == [[39] * 8, [5] * 8, [5] * 8]
        assert fields["number"].tolist() == [39, 5, 5]
        assert fields["name"].tolist() == ["train/039.bin", "train/005.bin", "train/005.bin"]
        specs = {name: str(spec) for name, spec in field_specs(source).items()}
        assert specs == {"x": "uint8[8]", "number": "int64[]", "name": "str"}

    def test_in_an_archive_of_the_experiment(self, place):
        assert len(files(archive=place, decode=decode, match="*.bin")) == 41
        assert len(files("train", archive=place, decode=decode)) == 40

    def test_several_threads_read_at_once(self, place):
        source = files(place / "train", decode=decode)
        orders = [np.random.default_rng(i).permutation(40)[:9] for i in range(200)]
        with ThreadPoolExecutor(6) as pool:
            for order, fields in zip(orders, pool.map(source.take, orders), strict=True):
                assert (fields["x"][:, 0] == order).all()

    def test_its_digest_is_that_of_the_files_used(self, tmp_path):
        folder = write_folder(tmp_path / "data")
        source = files(folder, decode=decode, match="train/*")
        digest = content_digest(source)
        (folder / "readme.txt").write_text("another word")
        assert content_digest(files(folder, decode=decode, match="train/*")) == digest
        (folder / "train/001.bin").write_bytes(b"otherone")
        assert content_digest(files(folder, decode=decode, match="train/*")) != digest

    def test_no_file_matches(self, place):
        with pytest.raises(DataError, match=r'no file matches "\*\.png"; there is readme\.txt, te'):
            files(place, decode=decode, match="*.png")

    def test_decode_must_be_a_function(self, place):
        with pytest.raises(DataError, match='decode = "mine:decode" must be a function'):
            files(place, decode="mine:decode")

    @pytest.mark.parametrize(
        ("result", "problem"),
        [
            ([1], "decode must return a dict of fields, not list"),
            ({}, "decode must return a dict of fields"),
            ({"x": object()}, "field 'x' holds Python objects"),
            (
                {"x": np.zeros(3)},
                r"gives x float64\[3\]; the first file, '000\.bin', gives x float",
            ),
            ({"x": np.zeros(2, np.float32)}, r"gives x float32\[2\]; the first"),
            ({"y": np.zeros(2)}, r"gives y float64\[2\]; the first"),
        ],
    )
    def test_a_file_that_gives_something_else_is_named(self, place, result, problem):
        source = files(
            place / "train",
            decode=lambda name, data: result if name == "007.bin" else {"x": np.zeros(2)},
        )
        source.take(np.arange(7))
        with pytest.raises(DataError, match=rf"train: '007\.bin'.*{problem}"):
            source.take(np.arange(5, 10))

    def test_what_decode_raises_names_the_file_and_shows_where(self, place):
        def fails(name, data):
            if data[0] == 3:
                raise KeyError("no such thing")
            return {"x": 1}

        source = files(place / "train", decode=fails)
        with pytest.raises(DataError, match=r"'003\.bin' cannot be decoded: KeyError") as error:
            source.take(np.arange(10))
        assert "in fails" in str(error.value)
        assert isinstance(error.value.__cause__, KeyError)
