"""Images: a folder for each class or a CSV of labels, from folders and archives."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipefit.data import content_digest, field_specs, files, image_decoder, image_folder
from pipefit.errors import DataError


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))


def pixels(number: int, height: int = 6, width: int = 4, channels: int = 3) -> np.ndarray:
    """Pixels of an image, by its number."""
    return np.random.default_rng(number).integers(0, 256, (height, width, channels), np.uint8)


def write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array.squeeze()).save(path)


def pack(folder: Path) -> Path:
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(folder, ".")
    return path


@pytest.fixture
def folder(tmp_path):
    """Ten images in two classes, and what is none."""
    folder = tmp_path / "photos"
    for i in range(10):
        write(folder / ("dogs" if i % 3 else "cats") / f"{i}.png", pixels(i))
    (folder / "cats" / "notes.txt").write_text("no image")
    (folder / "cats" / "._0.png").write_bytes(b"what macOS adds")
    return folder


@pytest.fixture(params=["folder", "tar"])
def place(request, folder):
    return folder if request.param == "folder" else pack(folder)


class TestFolders:
    def test_are_the_classes(self, place):
        source = image_folder(place)
        assert source.classes == ("cats", "dogs")
        assert source.names[:5] == (*(f"cats/{i}.png" for i in (0, 3, 6, 9)), "dogs/1.png")
        assert len(source) == 10
        fields = source.take(np.array([1, 4]))
        assert (fields["images"] == np.stack([pixels(3), pixels(1)])).all()
        assert fields["labels"].tolist() == [0, 1]
        specs = {name: str(spec) for name, spec in field_specs(source).items()}
        assert specs == {"images": "uint8[6,4,3]", "labels": "int64[]"}

    def test_float32_is_in_0_to_1(self, folder):
        images = image_folder(folder, dtype="float32").take(np.array([1]))["images"]
        assert images.dtype == np.float32
        np.testing.assert_allclose(images[0], pixels(3) / np.float32(255), rtol=1e-7)

    def test_inside_folders_and_archives(self, folder):
        write(folder / "cats" / "deep" / "er.png", pixels(50))
        assert len(image_folder(folder)) == 11
        (folder / "split").mkdir()
        (folder / "cats").rename(folder / "split" / "cats")
        (folder / "dogs").rename(folder / "split" / "dogs")
        assert image_folder("split", archive=folder).classes == ("cats", "dogs")
        assert image_folder("split", archive=pack(folder)).classes == ("cats", "dogs")

    def test_whole_numbers_are_sorted_as_numbers(self, tmp_path):
        for i in (0, 2, 10, 1):
            write(tmp_path / "digits" / f"{i}" / "a.png", pixels(i))
        source = image_folder(tmp_path / "digits")
        assert source.classes == ("0", "1", "2", "10")
        labels = source.take(np.arange(4))["labels"].tolist()
        assert dict(zip(source.names, labels, strict=True))["10/a.png"] == 3

    def test_classes_may_be_given_for_parts_that_lack_some(self, folder):
        source = image_folder(folder, classes=["birds", "dogs", "cats"])
        assert source.take(np.array([0, 9]))["labels"].tolist() == [2, 1]
        with pytest.raises(DataError, match=r"'dogs/1\.png': there is no class 'dogs'; there is c"):
            image_folder(folder, classes=["cats"])

    def test_an_image_outside_of_them(self, folder):
        write(folder / "alone.png", pixels(0))
        with pytest.raises(DataError, match=r"photos: 'alone\.png' lies in no folder"):
            image_folder(folder)

    def test_no_images(self, tmp_path):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "a.txt").touch()
        with pytest.raises(DataError, match=r"there are no images \(\.bmp.*; there is a\.txt"):
            image_folder(tmp_path / "photos")


class TestLabelsFromCsv:
    def table(self, folder, text):
        (folder / "labels.csv").write_text(text, encoding="utf-8")

    def test_say_what_the_examples_are(self, folder):
        self.table(folder, "\ufefflabel,file,note\nred,dogs/1.png,x\nblue,cats/0.png,\n")
        for place in (folder, pack(folder)):
            source = image_folder(place, labels="labels.csv")
            assert source.classes == ("blue", "red")
            assert source.names == ("cats/0.png", "dogs/1.png")
            assert source.take(np.array([1]))["labels"].tolist() == [1]

    def test_columns_may_have_other_names(self, folder):
        self.table(folder, "id,breed\ndogs/1.png,7\ncats/0.png,12\n")
        source = image_folder(folder, labels="labels.csv", label_columns=["id", "breed"])
        assert source.classes == ("7", "12")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("file,lable\n", r"labels\.csv: there is no column 'label', the nearest is 'lable'"),
            ("", "there is no column 'file'; there is nothing; see label_columns"),
            ("file,label\ndogs/11.png,a\n", r"line 2: there is no file 'dogs/11\.png', the nea"),
            ("file,label\ndogs/1.png,\n", r"line 2: 'dogs/1\.png' has no label"),
            ("file,label\ndogs/1.png\n", r"line 2: 'dogs/1\.png' has no label"),
            ("file,label\ndogs/1.png,a\ndogs/1.png,b\n", "line 3: .* stands there a second time"),
            ("file,label\n", "there are no images"),
        ],
    )
    def test_that_are_wrong(self, folder, text, problem):
        self.table(folder, text)
        with pytest.raises(DataError, match=problem):
            image_folder(folder, labels="labels.csv")

    def test_that_are_not_there(self, folder):
        with pytest.raises(DataError, match=r"labels\.csv: cannot be read: No such file"):
            image_folder(folder, labels="labels.csv")

    def test_are_part_of_the_digest(self, folder):
        self.table(folder, "file,label\ndogs/1.png,a\n")
        digest = content_digest(image_folder(folder, labels="labels.csv"))
        self.table(folder, "file,label\ndogs/1.png,b\n")
        assert content_digest(image_folder(folder, labels="labels.csv")) != digest


class TestSize:
    def test_another_one_is_refused_with_both_files(self, folder):
        write(folder / "dogs" / "8.png", pixels(8, height=7))
        source = image_folder(folder)
        with pytest.raises(DataError, match=r"'dogs/8\.png' gives images uint8\[7,4,3\]") as error:
            source.take(np.arange(10))
        message = str(error.value)
        assert "the first file, 'cats/0.png', gives images uint8[6,4,3]" in message
        assert "size = [height, width] scales them" in message

    def test_all_are_scaled_if_it_is_given(self, folder):
        flat = np.full((9, 30, 3), 200, np.uint8)
        flat[:, 15:] = 100
        write(folder / "dogs" / "8.png", flat)
        source = image_folder(folder, size=[3, 10])
        found = source.take(np.array([source.names.index("dogs/8.png")]))["images"][0]
        assert found.shape == (3, 10, 3)
        assert (found[:, :4] == 200).all() and (found[:, 6:] == 100).all()

    def test_what_has_it_already_keeps_its_pixels(self, folder):
        images = image_folder(folder, size=[6, 4]).take(np.array([1]))["images"]
        assert (images[0] == pixels(3)).all()


class TestDecoding:
    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_channels(self, tmp_path, channels):
        write(tmp_path / "a" / "a" / "1.png", pixels(1, channels=channels))
        images = image_folder(tmp_path / "a", channels=channels).take(np.array([0]))["images"]
        assert (images[0] == pixels(1, channels=channels)).all()

    def test_grey_and_palettes_become_colours(self, tmp_path):
        grey = pixels(1, channels=1)
        write(tmp_path / "a" / "a" / "1.png", grey)
        image = Image.fromarray(np.repeat(grey, 3, 2)).quantize(256)
        image.save(tmp_path / "a" / "a" / "2.gif")
        images = image_folder(tmp_path / "a").take(np.array([0, 1]))["images"]
        assert (images[0] == grey).all() and (images[1] == grey).all()

    @pytest.mark.parametrize(
        ("spoil", "problem"),
        [
            (lambda data: data[: len(data) // 2], "is damaged or too large: "),
            (lambda data: b"", "is not an image that Pillow knows"),
            (lambda data: b"GIF87 of another kind", "is not an image that Pillow knows"),
        ],
    )
    def test_an_unreadable_image_is_named(self, folder, spoil, problem):
        path = folder / "dogs" / "7.png"
        write(path, pixels(7, 60, 40))
        path.write_bytes(spoil(path.read_bytes()))
        source = image_folder(folder, size=[6, 4])
        with pytest.raises(DataError, match=rf"photos: 'dogs/7\.png': {problem}"):
            source.take(np.arange(10))

    def test_more_than_8_bits_are_not_cut_off(self, tmp_path):
        deep = np.array([[0, 1000], [40000, 65535]], np.uint16)
        write(tmp_path / "a" / "a" / "1.png", deep)
        with pytest.raises(DataError, match=r"'a/1\.png': has pixels of more than 8 bits"):
            image_folder(tmp_path / "a")

    def test_images_without_labels(self, folder):
        source = files(folder, decode=image_decoder(channels=1), match="*/?.png")
        assert field_specs(source).keys() == {"images"}
        assert source.take(np.array([0]))["images"].shape == (1, 6, 4, 1)

    @pytest.mark.parametrize(
        ("option", "problem"),
        [
            ({"size": [3]}, r"size = \[3\] must be \[height, width\]"),
            ({"size": [0, 3]}, r"size = \[0, 3\] must be"),
            ({"size": [2.5, 3]}, "must be"),
            ({"channels": 2}, "channels = 2 must be 1, 3 or 4"),
            ({"dtype": "float64"}, 'dtype = "float64" must be "uint8" or "float32"'),
            ({"labels": "x.csv", "label_columns": ["a"]}, "must be two names"),
        ],
    )
    def test_wrong_arguments(self, folder, option, problem):
        with pytest.raises(DataError, match=problem):
            image_folder(folder, **option)


def test_an_archive_gives_what_its_folder_gives(folder):
    data = io.BytesIO()
    Image.fromarray(pixels(99)).save(data, "JPEG")
    (folder / "dogs" / "z.jpeg").write_bytes(data.getvalue())
    unpacked, packed = image_folder(folder), image_folder(pack(folder))
    everything = np.arange(len(unpacked))
    first, second = unpacked.take(everything), packed.take(everything)
    assert all((first[name] == second[name]).all() for name in first)
    assert unpacked.names == packed.names
    packed.close()
