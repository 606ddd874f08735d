"""Of a large file only the wanted tensors are read: bytes are counted by the kernel."""

import json
import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipefit.loading import open_file

WANTED = 10 * 2**20
LARGE = 2**30


def bytes_read(process="self"):
    """What a process has read so far by system calls, from files and pipes."""
    io = Path(f"/proc/{process}/io").read_text()
    return int(re.search(r"rchar: (\d+)", io)[1])


def bytes_mapped(path):
    """What of a file that is mapped into memory has been touched."""
    maps = Path("/proc/self/smaps").read_text()
    sizes = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    return sum(int(size) for size in sizes) * 2**10


def sparse_safetensors(path):
    """1 GiB, of which the file system keeps nothing but the header."""
    end = LARGE + WANTED
    header = {
        "large": {"dtype": "U8", "shape": [LARGE], "data_offsets": [0, LARGE]},
        "wanted": {"dtype": "U8", "shape": [WANTED], "data_offsets": [LARGE, end]},
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def test_of_a_safetensors_file(tmp_path):
    path = tmp_path / "large.safetensors"
    sparse_safetensors(path)
    before = bytes_read()
    with open_file(path) as source:
        assert source.read(["wanted"])["wanted"].nbytes == WANTED
        moved = bytes_mapped(path) + bytes_read() - before
    assert WANTED <= moved < 1.2 * WANTED


def test_of_an_npz_file(tmp_path):
    path = tmp_path / "large.npz"
    np.savez(path, large=np.zeros(WANTED * 10, "u1"), wanted=np.zeros(WANTED, "u1"))
    before = bytes_read()
    with open_file(path) as source:
        assert source.read(["wanted"])["wanted"].nbytes == WANTED
    assert WANTED <= bytes_read() - before < 1.2 * WANTED


def sparse_hdf5(path, large):
    """As Keras lays it out; space is set aside for the values, and none is written."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        for key, name, size in (("dense", "large", large), ("dense_1", "wanted", WANTED)):
            group = file.create_group(f"layers/{key}/vars")
            group.attrs["name"] = name
            space = h5py.h5s.create_simple((size,))
            h5py.h5d.create(group.id, b"0", h5py.h5t.STD_U8LE, space, plan)


@pytest.mark.parametrize("kind", [".weights.h5", ".keras"])
def test_of_the_files_of_keras(tmp_path, kind):
    path = tmp_path / f"large{kind}"
    sparse_hdf5(tmp_path / "weights", LARGE if kind == ".weights.h5" else 10 * WANTED)
    if kind == ".keras":
        model = {"class_name": "Sequential", "config": {"name": "net", "layers": []}}
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata.json", '{"keras_version": "3.0.0"}')
            archive.writestr("config.json", json.dumps(model))
            archive.write(tmp_path / "weights", "model.weights.h5")
    else:
        (tmp_path / "weights").rename(path)
    name = "net/wanted/kernel" if kind == ".keras" else "wanted/kernel"
    here = bytes_read()
    with open_file(path) as source:
        child = source._process.pid
        there = bytes_read(child)
        assert source.read([name])[name].nbytes == WANTED
        moved = bytes_read(child) - there
        passed_on = bytes_read() - here
    # Once from the file, and once from the process that reads it.
    assert WANTED <= moved < 1.2 * WANTED
    assert WANTED <= passed_on < 1.2 * WANTED
