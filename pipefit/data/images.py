"""Images with labels: a folder for each class, or a CSV file of labels. See `image_folder`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipefit.data.decoded import Decoder, Files
from pipefit.data.fields import Fields
from pipefit.data.filesets import FileSet, open_files
from pipefit.data.places import absent, located, shortened
from pipefit.errors import DataError
from pipefit.refs import show

#: Endings of the names of images; other files are left alone.
SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# More than 8 bits a channel: Pillow would cut them off at 255 without a word.
_DEEP = ("I", "F")


def image_folder(
    path: str | Path | None = None,
    *,
    size: Sequence[int] | None = None,
    channels: int = 3,
    dtype: str = "uint8",
    labels: str | None = None,
    label_columns: Sequence[str] = ("file", "label"),
    classes: Sequence[str] | None = None,
    archive: Path | None = None,
) -> Images:
    """Images with the number of their class, decoded when they are asked for.

    Fields: images, [height, width, channels], and labels, int64, an index into `Images.classes`.
    The classes are the names of the folders in `path`, or the different labels of a CSV file;
    sorted, by number if all of them are whole numbers.

    Args:
        path: of the folder, or of a plain tar or zip archive (read in place) or a folder in it;
            relative to the archive of the experiment, if any.
        size: [height, width] to scale all images to (bilinear; their proportions are not kept);
            None: all must have one size.
        channels: 1 (grey), 3 (red, green, blue) or 4 (and alpha).
        dtype: "uint8" or "float32", which is in 0..1.
        labels: a CSV file in `path` with a header and a row for each image; None: folders.
        label_columns: the columns of that file with the names of images, and with their labels.
        classes: all classes in their order; needed where some do not occur in this folder. None:
            those that occur.
        archive: the unpacked archive, or with `unpack = false` the archive file.

    Raises:
        DataError: no images, one without a label, a class that is not among `classes`, or a first
            image that cannot be decoded.
    """
    decode = image_decoder(size, channels, dtype)
    fileset = open_files(located("image_folder", path, archive))
    found = _by_folder(fileset) if labels is None else _by_csv(fileset, labels, label_columns)
    if not found:
        raise DataError(
            f"image_folder: {fileset}: there are no images ({', '.join(sorted(SUFFIXES))}); there "
            f"is {shortened(fileset.names)}"
        )
    known = _sorted_classes(found.values()) if classes is None else tuple(map(str, classes))
    numbers = {name: number for number, name in enumerate(known)}
    for name, label in found.items():
        if label not in numbers:
            raise DataError(f"image_folder: {fileset}: {name!r}: {absent('class', label, known)}")
    by_name = {name: numbers[found[name]] for name in sorted(found)}
    return Images(fileset, by_name, known, decode, labels)


def image_decoder(
    size: Sequence[int] | None = None, channels: int = 3, dtype: str = "uint8"
) -> Decoder:
    """What decodes the bytes of an image, for `files`; the arguments are those of `image_folder`.

    Raises:
        DataError: for other arguments.
    """
    if size is not None and not (
        len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    ):
        raise DataError(f"size = {show(size)} must be [height, width] in pixels")
    if channels not in _MODES:
        raise DataError(f"channels = {show(channels)} must be 1, 3 or 4")
    if dtype not in ("uint8", "float32"):
        raise DataError(f'dtype = {show(dtype)} must be "uint8" or "float32"')

    def decode(name: str, data: bytes) -> Fields:
        pixels = _pixels(data, size, _MODES[channels])
        return {"images": pixels if dtype == "uint8" else pixels.astype(np.float32) / 255}

    return decode


class Images(Files):
    """A source of images with labels; made by `image_folder`.

    Attributes:
        classes: their names, by label.
        labels: by index.
    """

    def __init__(
        self,
        fileset: FileSet,
        labels: Mapping[str, int],
        classes: Sequence[str],
        decode: Decoder,
        table: str | None = None,
    ):
        self.classes = tuple(classes)
        self.labels = np.array(list(labels.values()), np.int64)
        self._table = [] if table is None else [table]
        super().__init__(fileset, list(labels), decode)

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices: images [len(indices), height, width, channels], labels."""
        return {**super().take(indices), "labels": self.labels[indices]}

    def digest(self) -> str:
        """The sha256 of images and labels, or of their archive; kept until they change."""
        return self.fileset.digest([*self._table, *self.names])

    def _differs(self, name: str, got: str, first: str) -> str:
        return super()._differs(name, got, first) + "; size = [height, width] scales them"


def _pixels(data: bytes, size: Sequence[int] | None, mode: str) -> npt.NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        image: Image.Image = Image.open(io.BytesIO(data))
        image.load()
    except UnidentifiedImageError as error:
        raise DataError("is not an image that Pillow knows, or is damaged") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"is damaged or too large: {error}") from error
    if image.mode.startswith(_DEEP):
        raise DataError(
            f"has pixels of more than 8 bits (mode {image.mode}); read it by a decoder of your "
            'own: builder = "pipefit.data:files"'
        )
    image = image.convert(mode)
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _is_image(name: str) -> bool:
    # macOS packs a second, hidden file with each: ._1.jpg
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and Path(name).suffix.lower() in SUFFIXES


def _by_folder(fileset: FileSet) -> dict[str, str]:
    found = {name: name.partition("/")[0] for name in fileset.names if _is_image(name)}
    for name, label in found.items():
        if name == label:
            raise DataError(
                f"image_folder: {fileset}: {name!r} lies in no folder; put the images of each "
                "class into a folder of its name, or give a CSV file: labels = ..."
            )
    return found


def _by_csv(fileset: FileSet, table: str, columns: Sequence[str]) -> dict[str, str]:
    origin = f"image_folder: {fileset}: {table}"
    if len(columns) != 2:
        raise DataError(f"image_folder: label_columns = {show(columns)} must be two names")
    try:
        text = fileset.read(table).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{origin}: is not UTF-8: {error}") from error
    rows = csv.DictReader(io.StringIO(text, newline=""))
    header = rows.fieldnames or ()
    for column in columns:
        if column not in header:
            raise DataError(f"{origin}: {absent('column', column, header)}; see label_columns")
    there = set(fileset.names)
    found: dict[str, str] = {}
    for row in rows:
        name, label = (row[column] for column in columns)
        where = f"{origin}, line {rows.line_num}"
        if name not in there:
            raise DataError(f"{where}: {absent('file', str(name), fileset.names)}")
        if not label:
            raise DataError(f"{where}: {name!r} has no label")
        if name in found:
            raise DataError(f"{where}: {name!r} stands there a second time")
        found[name] = label
    return found


def _sorted_classes(labels: Iterable[str]) -> tuple[str, ...]:
    def key(name: str) -> Any:
        return (int(name), name) if whole else name

    names = set(labels)
    whole = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=key))
