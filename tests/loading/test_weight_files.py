"""safetensors and .npz as sources, what is refused, and how the one file in a folder is found."""

import hashlib
import io
import json
import shutil
import tarfile
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipefit.errors import LoadError
from pipefit.loading import KNOWN_KINDS, open_file

ARRAYS = {
    "a/weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/weights/Momentum": np.ones((2, 3), np.float32),
    "half": np.arange(3, dtype=np.float16),
    "flags": np.array([True, False]),
    "global_step": np.array(7, np.int64),
}


def read(path, **options):
    with open_file(path, **options) as source:
        return source.read(source.tensors())


def same(found, wanted):
    return sorted(found) == sorted(wanted) and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array)
        for name, array in wanted.items()
    )


@pytest.fixture(params=["safetensors", "npz", "compressed npz", "sharded safetensors"])
def file(request, tmp_path):
    path = tmp_path / "file"
    if request.param == "safetensors":
        save_file(ARRAYS, path)
    elif request.param == "sharded safetensors":
        path = tmp_path / "model.safetensors.index.json"
        write_shards(path, ARRAYS)
    else:
        save = np.savez if request.param == "npz" else np.savez_compressed
        with path.open("wb") as opened:
            save(opened, **ARRAYS)
    return path


def write_shards(index, arrays):
    places = {}
    for number, (name, array) in enumerate(arrays.items()):
        shard = f"model-{number:05}-of-{len(arrays):05}.safetensors"
        save_file({name: array}, index.parent / shard)
        places[name] = shard
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_tensors_keep_name_dtype_and_value_and_roles_follow_the_names(file):
    with open_file(file) as source:
        infos = source.tensors()
        assert same(source.read(infos), ARRAYS)
        assert {name: (info.dtype, info.shape) for name, info in infos.items()} == {
            name: (array.dtype.name, array.shape) for name, array in ARRAYS.items()
        }
        assert {name: info.role for name, info in infos.items() if info.role != "model"} == {
            "a/weights/Momentum": "optimizer",
            "global_step": "other",
        }


def test_bfloat16_is_kept_by_safetensors(tmp_path):
    save_file({"x": np.ones(3, ml_dtypes.bfloat16)}, tmp_path / "x")
    assert read(tmp_path / "x")["x"].dtype == ml_dtypes.bfloat16


def test_layouts_of_npz_all_become_plain_arrays(tmp_path):
    arrays = {"columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "empty": np.ones((0, 2))}
    np.savez(tmp_path / "x.npz", big_endian=np.arange(3, dtype=">f4"), **arrays)
    found = read(tmp_path / "x.npz")
    assert same(found, arrays | {"big_endian": np.arange(3, dtype=np.float32)})
    assert found["columns"].flags.c_contiguous


@pytest.mark.parametrize(
    "array", [np.array(["text"]), np.array([{}], object), np.ones(2, ml_dtypes.bfloat16)]
)
def test_what_is_no_number_is_listed_and_refused_by_name(tmp_path, array):
    np.savez(tmp_path / "x.npz", good=np.ones(2), bad=array)
    with open_file(tmp_path / "x.npz") as source:
        assert set(source.tensors()) == {"good", "bad"}
        assert source.read(["good"])["good"].sum() == 2
        with pytest.raises(LoadError, match="tensor 'bad' is of dtype"):
            source.read(["bad"])


def test_a_file_of_no_known_kind_is_an_error_that_lists_those_there_are(tmp_path):
    (tmp_path / "x").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(LoadError) as error:
        open_file(tmp_path / "x")
    assert "x is of no kind" in str(error.value)
    assert "version https://" in str(error.value)
    assert all(kind in str(error.value) for kind in KNOWN_KINDS)


def test_pickles_are_not_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "torch.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", b"")
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    for name in ("torch.pt", "old.pt"):
        with pytest.raises(LoadError, match=rf"{name} is a pickle.*save its tensors as safeten"):
            open_file(tmp_path / name)


def test_a_device_is_not_read():
    with pytest.raises(LoadError, match="/dev/zero is neither a file nor a folder"):
        open_file("/dev/zero")


def test_a_path_without_a_file_names_where_it_was_looked_for(tmp_path):
    with pytest.raises(LoadError, match=r"path = 'no\.npz': there is no no\.npz nor /.*/no\.npz"):
        open_file("no.npz", base=tmp_path)


# ---- sha256, archives, folders ----


def test_a_sha256_is_verified_and_kept(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones(2))
    digest = hashlib.sha256((tmp_path / "x.npz").read_bytes()).hexdigest()
    with open_file("x.npz", sha256=digest, base=tmp_path) as source:
        assert source.digest == digest
    with pytest.raises(LoadError, match=f"has sha256 {digest}, expected 0000"):
        open_file(tmp_path / "x.npz", sha256="0" * 64)
    with pytest.raises(LoadError, match="is not one file"):
        open_file(tmp_path, sha256=digest)


def test_an_address_needs_a_sha256_and_is_fetched_once(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones(2))
    address = (tmp_path / "x.npz").as_uri()
    with pytest.raises(LoadError, match="is an address: give the sha256"):
        open_file(address)
    digest = hashlib.sha256((tmp_path / "x.npz").read_bytes()).hexdigest()
    read(address, sha256=digest)
    (tmp_path / "x.npz").unlink()
    with open_file(address, sha256=digest) as source:
        assert (source.label, source.digest) == (address, digest)


@pytest.fixture(params=["tar", "tar.gz", "zip"])
def pack(request, tmp_path):
    def pack(files):
        path = tmp_path / "archive"
        if request.param == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                for name, data in files.items():
                    archive.writestr(name, data)
            return path
        with tarfile.open(path, "w:gz" if request.param == "tar.gz" else "w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return path

    return pack


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_the_one_checkpoint_in_an_archive_is_opened(pack):
    path = pack({"run/README": b"words", "run/weights.npz": npz(x=np.ones(2))})
    with open_file(path) as source:
        assert source.label == f"{path}: run/weights.npz"
        assert source.digest == hashlib.sha256(path.read_bytes()).hexdigest()
        assert list(source.tensors()) == ["x"]


def test_of_several_in_an_archive_one_is_named(pack):
    path = pack({"a.npz": npz(a=np.ones(2)), "b/b.npz": npz(b=np.ones(2))})
    with pytest.raises(LoadError, match=r"holds 2 checkpoints; name one .* a\.npz, b/b\.npz"):
        open_file(path)
    assert list(read(path, member="b/b.npz")) == ["b"]
    for member in ("c.npz", "../a.npz", "/etc/passwd", "b"):
        with pytest.raises(LoadError, match=r"no such checkpoint .* a\.npz, b/b\.npz"):
            open_file(path, member=member)


def test_a_folder_is_searched_and_shards_count_as_one(tmp_path):
    write_shards(tmp_path / "model.safetensors.index.json", ARRAYS)
    assert same(read(tmp_path), ARRAYS)
    (tmp_path / "model-00000-of-00005.safetensors").unlink()
    with pytest.raises(LoadError, match=r"names model-00000-of-00005\.safetensors, not there"):
        open_file(tmp_path)


def test_folders_with_checkpoints_of_tensorflow_and_keras_are_found(saved, tmp_path):
    opened = []

    def bundle(prefix, label):
        opened.append(prefix.relative_to(tmp_path).as_posix())
        raise LoadError("no TensorFlow here")

    for name in ("tf2", "export", "tf1_adam/version1", "tf1_adam/version2"):
        shutil.copytree(saved / name, tmp_path / "in" / name)
        with pytest.raises(LoadError, match="no TensorFlow here"):
            open_file(tmp_path / "in" / name, bundle=bundle)
    with pytest.raises(LoadError, match="no TensorFlow here"):
        open_file(tmp_path / "in", member="tf2/ckpt-1", bundle=bundle)
    assert [name.removeprefix("in/") for name in opened] == [
        "tf2/ckpt-2",
        "export/variables/variables",
        "tf1_adam/version1/model.ckpt-3",
        "tf1_adam/version2/model.ckpt-3",
        "tf2/ckpt-1",
    ]
    with pytest.raises(LoadError, match=r"4 checkpoints.*export, tf1_adam/version1"):
        open_file(tmp_path / "in")
    with pytest.raises(LoadError, match="which only TensorFlow reads"):
        open_file(tmp_path / "in" / "tf2")
    (tmp_path / "in" / "tf2" / "ckpt-2.index").rename(tmp_path / "index")
    with pytest.raises(LoadError, match=r"is a part of a checkpoint of TensorFlow.*/ckpt-2,"):
        open_file(tmp_path / "in" / "tf2" / "ckpt-2.data-00000-of-00001")


def test_a_folder_with_nothing_says_what_there_is(tmp_path):
    (tmp_path / "notes").write_text("words")
    with pytest.raises(LoadError, match="holds nothing that can be loaded, only notes; known are"):
        open_file(tmp_path)
